"""Declare the attributes that limit the jobs of a class that wait."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, get_args

from framework.declare import validators
from framework.declare.attribute import attribute, attribute_group
from framework.declare.policy_options import check_field_names, validate_fields
from framework.declare.validators import InvalidValue, Validator
from framework.errors import DeclarationError
from framework.types import OnFull

_MOST = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxWaiting:
    """The most jobs of a class, and bytes of their payloads, that a shard accepts before some of them end.

    Raises:
        DeclarationError: a value is not allowed, or neither ``jobs`` nor ``bytes`` is given.
    """

    jobs: int | None = None
    bytes: int | None = None

    def __new__(cls, **fields: Any) -> Self:
        """Reject unknown fields, and name the nearest known one."""
        check_field_names(cls.__name__, fields, _VALIDATORS)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        validate_fields(self, _VALIDATORS)
        if self.jobs is None and self.bytes is None:
            message = "needs jobs or bytes: how many jobs may wait, or how many bytes of them."
            raise DeclarationError("MaxWaiting", message, attribute="jobs")


_VALIDATORS: Mapping[str, Validator] = {
    "jobs": validators.optional(validators.integer(1, _MOST)),
    "bytes": validators.optional(validators.integer(1, 1 << 50)),
}


def _max_waiting(value: Any) -> MaxWaiting | None:
    if value is None or isinstance(value, MaxWaiting):
        return value
    if type(value) is int and 1 <= value <= _MOST:
        return MaxWaiting(jobs=value)
    raise InvalidValue(_RULE.allowed)


_RULE = Validator(f"a number of jobs from 1 to {_MOST:,}, MaxWaiting(...), or None", _max_waiting)


@attribute_group()
class BacklogAttributes:
    """How many jobs of a class may wait."""

    max_waiting: ClassVar[MaxWaiting | int | None] = attribute(
        None,
        validator=_RULE,
        group="flow_control",
        effect="A shard accepts at most so many jobs of the class before some of them end. Jobs that wait, are scheduled, deferred, "
        "held, failed or running count. `on_full` says what happens to a push beyond.",
        trap="Callbacks of batches, `perform_with_capacity` and pushes of Ruby do not count. While the class is full, a duplicate is "
        "refused too.",
    )
    """The most jobs of the class on a shard that were accepted and have not ended, or ``MaxWaiting(jobs=..., bytes=...)``."""
    on_full: ClassVar[OnFull] = attribute(
        "refuse",
        validator=validators.one_of(*get_args(OnFull)),
        group="flow_control",
        effect="`refuse` raises `BacklogFullError` before anything is written. `keep` writes the job to the push file of the "
        "process, which pushes it later. `drop` returns `None`, logs it and counts it.",
        trap="`keep` needs the setting `reliable_push.enabled`; without it, or when the file is full, the push is refused. A block "
        "of a batch is always refused, a step of a workflow always waits, and a tick of the schedule waits unless the class drops.",
    )
    """What happens to a push while the backlog of the class is full."""
