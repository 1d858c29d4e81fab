"""Combinations of two attributes that a class may not have (GitLab guideline: urgency and data consistency)."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, get_origin

from framework.declare.error_collector import ErrorCollector
from framework.declare.policy_options import Deduplicate
from framework.declare.signature import JobSignature


@dataclass(frozen=True, slots=True)
class Constraint:
    """``attribute`` = ``value`` excludes ``forbidden_values`` of ``other_attribute``, for ``reason``; ``remedy`` helps."""

    attribute: str
    value: Any
    other_attribute: str
    forbidden_values: tuple[Any, ...]
    reason: str
    remedy: str

    def __str__(self) -> str:
        """Return the rule in one sentence: "urgency = 'high' forbids resource_boundary = 'memory'"."""
        forbidden = " or ".join(map(repr, self.forbidden_values))
        return f"{self.attribute} = {self.value!r} forbids {self.other_attribute} = {forbidden}"

    def attribute_names(self) -> tuple[str, str]:
        """The two attributes of the rule."""
        return self.attribute, self.other_attribute


CONSTRAINTS = (
    Constraint(
        attribute="urgency",
        value="high",
        other_attribute="has_external_dependencies",
        forbidden_values=(True,),
        reason="a job that waits for other services cannot keep the target of 10 s",
        remedy="Take urgency 'low', or split the job.",
    ),
    Constraint(
        attribute="urgency",
        value="high",
        other_attribute="resource_boundary",
        forbidden_values=("memory",),
        reason="processes for memory-bound jobs are few and start slowly",
        remedy="Take urgency 'low', or split the job.",
    ),
    Constraint(
        attribute="data_consistency",
        value="delayed",
        other_attribute="retry",
        forbidden_values=(False, 0),
        reason="a job that finds no up-to-date replica is retried once",
        remedy="Take 'sticky' or 'always', or allow retries.",
    ),
)


def check_constraints(
    faults: ErrorCollector,
    attributes: Mapping[str, Any],
    inherited_from: Mapping[str, str],
    invalid_attributes: AbstractSet[str],
) -> None:
    """Note each broken rule, with both values, the reason and the remedy.

    ``places`` names the class of an inherited attribute: the two values may be written in different classes. Attributes that
    are ``wrong`` themselves are left out.
    """
    for rule in CONSTRAINTS:
        if not invalid_attributes.isdisjoint(rule.attribute_names()):
            continue
        if attributes[rule.attribute] == rule.value and attributes[rule.other_attribute] in rule.forbidden_values:
            fact = ", ".join(
                f"{name} = {attributes[name]!r}{inherited_from.get(name, '')}" for name in rule.attribute_names()
            )
            message = f"{fact}: {rule}, as {rule.reason}. {rule.remedy}"
            faults.add(message, rule.attribute)
    _check_database_overrides(faults, attributes)
    _check_result(faults, attributes)
    if (
        attributes["memory_limit"] is not None
        and attributes["isolation"] is None
        and "isolation" not in invalid_attributes
    ):
        message = (
            f"memory_limit = {attributes['memory_limit']!r} limits nothing without isolation = 'process': the threads of a process "
            "share its memory. Declare both, or limit the worker processes: cluster --memory-limit."
        )
        faults.add(message, "memory_limit")


def _check_result(faults: ErrorCollector, attributes: Mapping[str, Any]) -> None:
    """Note a class that keeps results and cannot: its results would be stored in plain text, or one job runs for several pushes."""
    if attributes["keep_result"] is None:
        return
    reason = refused_result(attributes["deduplicate"], encrypts=attributes["encrypt"])
    if reason is not None:
        faults.add(f"keep_result = {attributes['keep_result']!r}: the class {reason}.", "keep_result")


def refused_result(policy: Deduplicate | None, *, encrypts: bool) -> str | None:
    """Return why no result of a class may be kept, ``None`` if it may."""
    if encrypts:
        return "declares encrypt, and results are not encrypted: let the job store its result itself"
    if policy is not None and policy.has_window:
        return (
            f"declares Deduplicate({policy.strategy!r}): a later push takes the place of the job, or is added to it, so no caller "
            "has a result of its own"
        )
    return None


def _check_database_overrides(faults: ErrorCollector, attributes: Mapping[str, Any]) -> None:
    """Check the rule for ``delayed`` for single databases too."""
    overrides: Mapping[str, Any] = attributes["data_consistency_overrides"] or {}
    delayed = [database for database, word in overrides.items() if word == "delayed"]
    if delayed and attributes["retry"] in (False, 0):
        message = (
            f"data_consistency_overrides = {overrides!r}, retry = {attributes['retry']!r}: 'delayed' (of {delayed[0]!r}) forbids "
            "retry = False or 0, because a job that finds no up-to-date replica is retried once. Take 'sticky' or 'always', or "
            "allow retries."
        )
        faults.add(message, "data_consistency_overrides")


def check_cron_arguments(faults: ErrorCollector, cron: str, needed: Sequence[str]) -> None:
    """Note parameters of ``perform`` without a default, which the ticks of the attribute ``cron`` cannot give."""
    if needed:
        message = (
            f"cron = {cron!r} pushes jobs without arguments, and perform needs {', '.join(needed)}. Give these parameters defaults, "
            "or put an entry with args into config/schedule.yml instead of cron."
        )
        faults.add(message, "cron")


def check_window(faults: ErrorCollector, attributes: Mapping[str, Any], signature: JobSignature) -> None:
    """Note what a class lacks for ``Deduplicate("debounce")`` or ``Deduplicate("accumulate")``."""
    policy: Deduplicate | None = attributes["deduplicate"]
    if policy is None or not policy.has_window:
        return
    strategy = f"Deduplicate({policy.strategy!r})"
    if not attributes["idempotent"]:
        message = (
            f"{strategy} ends jobs that others replace: declare idempotent = True, and make a second run harmless."
        )
        faults.add(message, "deduplicate")
    if policy.strategy != "accumulate":
        return
    last = signature.names[-1] if signature.names else "none"
    is_list = signature.required == len(signature.names) > 0 and get_origin(signature.annotations[-1]) is list
    if not is_list or signature.varargs is not None:
        message = (
            f"{strategy} adds to the last argument: declare the last parameter of perform as list[...], without a default. "
            f"It is {last!r}."
        )
        faults.add(message, "deduplicate")
    for name, values in (("data_consistency", ("sticky", "delayed")), ("encrypt", (True,))):
        if attributes[name] in values:
            message = (
                f"{strategy} does not fit {name} = {attributes[name]!r}: Redis adds the arguments, and knows neither."
            )
            faults.add(message, "deduplicate")
