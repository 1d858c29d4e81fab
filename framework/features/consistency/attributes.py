"""Declare the attributes that choose the database servers that a job reads from."""

from collections.abc import Mapping
from typing import ClassVar, get_args

from framework.declare import validators
from framework.declare.attribute import ClassValues, Constraint, attribute, attribute_group
from framework.declare.validators import ErrorCollector
from framework.types import DataConsistency

_CONSTRAINTS = (
    Constraint(
        attribute="data_consistency",
        value="delayed",
        other_attribute="retry",
        forbidden_values=(False, 0),
        reason="a job that finds no up-to-date replica is retried once",
        remedy="Take 'sticky' or 'always', or allow retries.",
    ),
)


def _check_overrides(faults: ErrorCollector, found: ClassValues) -> None:
    """Check the rule for ``delayed`` for single databases too."""
    retry = found.values["retry"]
    overrides: Mapping[str, DataConsistency] = found.values["data_consistency_overrides"] or {}
    delayed = [database for database, word in overrides.items() if word == "delayed"]
    if delayed and retry in (False, 0):
        message = (
            f"data_consistency_overrides = {overrides!r}, retry = {retry!r}: 'delayed' (of {delayed[0]!r}) forbids "
            "retry = False or 0, because a job that finds no up-to-date replica is retried once. Take 'sticky' or 'always', or "
            "allow retries."
        )
        faults.add(message, "data_consistency_overrides")


@attribute_group(constraints=_CONSTRAINTS, check=_check_overrides)
class ConsistencyAttributes:
    """The database servers that a job reads from."""

    data_consistency: ClassVar[DataConsistency] = attribute(
        "always",
        validator=validators.one_of(*get_args(DataConsistency)),
        group="flow_control",
        effect="For databases with replicas in the setting `databases`: the push records the position of the "
        "primary, and the job reads through `framework.databases` from a replica that has reached it. After its "
        "first write the job reads from the primary.",
        trap="`delayed` needs retries, because a job without an up-to-date replica is retried once. It has no effect "
        "on queries outside of `framework.databases`.",
    )
    """The database server that the job reads from: ``always`` the primary, ``sticky`` an up-to-date replica or else the primary,
    ``delayed`` the same, after one retry if no replica is up to date."""
    data_consistency_overrides: ClassVar[Mapping[str, DataConsistency] | None] = attribute(
        None,
        validator=validators.optional(
            validators.mapping_of(
                validators.identifier, validators.one_of(*get_args(DataConsistency)), "{'ci': 'sticky'}"
            )
        ),
        group="flow_control",
        effect="It overrides `data_consistency` for the databases that it names, by their names in the setting "
        "`databases`.",
        trap="A job has one decision for all its databases: the strategy that waits longest decides whether it is "
        "retried for a replica.",
    )
    """``data_consistency`` of single databases, for a class that uses several."""
