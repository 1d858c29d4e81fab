"""What two attributes of one class may not say together (GitLab guideline: its rules for urgency and data consistency)."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from framework.declare.faults import Faults


@dataclass(frozen=True, slots=True)
class CrossRule:
    """``attribute`` = ``value`` forbids ``other`` to be one of ``forbidden``; ``because`` says why, ``instead`` what to do."""

    attribute: str
    value: Any
    other: str
    forbidden: tuple[Any, ...]
    because: str
    instead: str

    def __str__(self) -> str:
        """The rule in one sentence: "urgency = 'high' forbids resource_boundary = 'memory'"."""
        forbidden = " or ".join(map(repr, self.forbidden))
        return f"{self.attribute} = {self.value!r} forbids {self.other} = {forbidden}"

    def names(self) -> tuple[str, str]:
        """The two attributes it is about."""
        return self.attribute, self.other


CROSS_RULES = (
    CrossRule(
        attribute="urgency",
        value="high",
        other="has_external_dependencies",
        forbidden=(True,),
        because="a job that waits for others cannot promise 10 s",
        instead="Take urgency 'low', or split the job.",
    ),
    CrossRule(
        attribute="urgency",
        value="high",
        other="resource_boundary",
        forbidden=("memory",),
        because="memory-bound shards are small and slow to start",
        instead="Take urgency 'low', or split the job.",
    ),
    CrossRule(
        attribute="data_consistency",
        value="delayed",
        other="retry",
        forbidden=(False, 0),
        because="a job that meets a stale replica is retried once",
        instead="Take 'sticky' or 'always', or allow retries.",
    ),
)


def check_cross_rules(
    faults: Faults, attributes: Mapping[str, Any], places: Mapping[str, str], wrong: AbstractSet[str]
) -> None:
    """Note each rule that does not hold, with both values, why, and what to do.

    ``places`` says of an inherited attribute where it stands: the two values may be written in different classes. Of the
    attributes that are ``wrong`` themselves nothing more is said.
    """
    for rule in CROSS_RULES:
        if not wrong.isdisjoint(rule.names()):
            continue
        if attributes[rule.attribute] == rule.value and attributes[rule.other] in rule.forbidden:
            said = ", ".join(f"{name} = {attributes[name]!r}{places.get(name, '')}" for name in rule.names())
            message = f"{said}: {rule}, as {rule.because}. {rule.instead}"
            faults.add(message, rule.attribute)
    _check_overrides(faults, attributes)


def _check_overrides(faults: Faults, attributes: Mapping[str, Any]) -> None:
    """The rule for ``delayed``, once more for single databases."""
    overrides: Mapping[str, Any] = attributes["data_consistency_overrides"] or {}
    delayed = [database for database, word in overrides.items() if word == "delayed"]
    if delayed and attributes["retry"] in (False, 0):
        message = (
            f"data_consistency_overrides = {overrides!r}, retry = {attributes['retry']!r}: 'delayed' (of {delayed[0]!r}) forbids "
            "retry = False or 0, as a job that meets a stale replica is retried once. Take 'sticky' or 'always', or allow retries."
        )
        faults.add(message, "data_consistency_overrides")
