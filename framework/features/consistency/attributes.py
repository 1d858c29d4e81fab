"""Declare the attributes that choose the database servers that a job reads from."""

from collections.abc import Mapping
from typing import ClassVar, get_args

from framework.declare import validators
from framework.declare.attribute import attribute, attribute_group
from framework.types import DataConsistency


@attribute_group
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
