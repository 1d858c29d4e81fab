"""Declare the attribute of classes whose jobs are held after deaths of processes, or after many failures."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Self

from framework.declare import validators
from framework.declare.attribute import attribute, attribute_group
from framework.declare.policy_options import check_field_names, validate_fields
from framework.declare.validators import InvalidValue, Validator
from framework.errors import DeclarationError

_MOST_DEATHS = 1_000


@dataclass(frozen=True, slots=True)
class BreakAfter:
    """Open the breaker of a class after ``deaths`` of processes that ran it, or after a share of ``failures`` of its runs.

    Both count within ``within``; the share counts from ``runs`` runs on. While the breaker is open, jobs of the class are held,
    unchanged. After ``probe_after`` one job runs as a probe. If its process lives and the job does not fail, the breaker closes and
    the held jobs return to their queues; else the wait doubles, up to ``longest_wait``.

    Raises:
        DeclarationError: a value is not allowed, or neither ``deaths`` nor ``failures`` is given.
    """

    deaths: int | None = None
    failures: float | None = None
    within: timedelta = timedelta(minutes=10)
    runs: int = 20
    probe_after: timedelta = timedelta(minutes=1)
    longest_wait: timedelta = timedelta(hours=1)

    def __new__(cls, *values: Any, **fields: Any) -> Self:
        """Reject unknown fields, and name the nearest known one."""
        del values
        check_field_names(cls.__name__, fields, _VALIDATORS)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        validate_fields(self, _VALIDATORS)
        if self.deaths is None and self.failures is None:
            raise DeclarationError(
                "BreakAfter",
                "needs deaths or failures: how many deaths, or which share of the runs.",
                attribute="deaths",
            )


_VALIDATORS: Mapping[str, Validator] = {
    "deaths": validators.optional(validators.integer(1, _MOST_DEATHS)),
    "failures": validators.optional(validators.fraction),
    "within": validators.duration_up_to(timedelta(days=1), "a positive timedelta up to a day"),
    "runs": validators.integer(1, 1_000_000),
    "probe_after": validators.duration_up_to(timedelta(days=1), "a positive timedelta up to a day"),
    "longest_wait": validators.duration_up_to(timedelta(days=7), "a positive timedelta up to a week"),
}


def _break_after(value: Any) -> BreakAfter | None:
    if value is None or isinstance(value, BreakAfter):
        return value
    if type(value) is int and 1 <= value <= _MOST_DEATHS:
        return BreakAfter(deaths=value)
    raise InvalidValue(_RULE.allowed)


_RULE = Validator("a number of deaths from 1 to 1,000, BreakAfter(...), or None", _break_after)


@attribute_group()
class BreakerAttributes:
    """When the jobs of a class are held because they kill their processes, or fail."""

    break_after: ClassVar[BreakAfter | int | None] = attribute(
        None,
        validator=_RULE,
        group="flow_control",
        effect="When so many processes have died that ran the class, or such a share of its runs has failed, its breaker opens: the "
        "jobs are held, unchanged. After a minute one of them runs as a probe, and its success returns the others to their "
        "queues. `3` means three deaths in ten minutes.",
        trap="Each job of the class asks Redis once before it starts. A process that dies counts for each such class that it ran.",
    )
    """The deaths of processes, or the share of failures, after which jobs of the class are held until one has succeeded."""
