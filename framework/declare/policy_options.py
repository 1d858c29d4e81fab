"""Define the attribute ``deduplicate``, which has several fields, and check the fields of such attributes."""

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Any, Literal, Self, TypeAlias, get_args

from framework.declare import validators
from framework.declare.validators import ErrorCollector, Validator, validate_value
from framework.errors import DeclarationError
from framework.text import did_you_mean

DeduplicateStrategy: TypeAlias = Literal[
    "until_executing", "until_executed", "until_expired", "debounce", "accumulate", "none"
]

_LOCK_STRATEGIES: tuple[DeduplicateStrategy, ...] = ("until_executing", "until_executed", "until_expired")

_WINDOW_FIELDS: Mapping[str, tuple[str, ...]] = {
    "window": ("debounce", "accumulate"),
    "max_window": ("debounce",),
    "max_items": ("accumulate",),
    "max_bytes": ("accumulate",),
}
"""The strategies to which a field belongs."""


WAITING_TTL = timedelta(days=30)
"""The lifetime of a lock with ``while_waiting``. A process renews it while its job waits, and deletes it without such a job."""


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """Drop the pushes of jobs that equal a waiting job (GitLab guideline, Sidekiq Enterprise's unique jobs).

    ``until_executing`` drops a duplicate while an equal job waits, ``until_executed`` also while it runs, ``until_expired`` until
    ``ttl`` has passed since its start, which throttles equal jobs, ``none`` never. Only duplicates of an ``idempotent`` worker are
    dropped. With ``if_deduplicated="reschedule_once"`` a duplicate during the run causes one more run. ``including_scheduled`` locks
    jobs for later from their push on. While the flag ``feature_flag`` is off, the strategy is ``none``. The lock lasts for ``ttl``
    after its job was pushed, moved or started. With ``while_waiting`` it lasts for as long as its job waits, and for ``ttl`` after
    its start.

    ``debounce`` and ``accumulate`` let a push wait for ``window`` in the schedule set. With ``debounce`` an equal push replaces the
    job that waits, and the window begins again, until ``max_window`` after the first push. With ``accumulate`` an equal push adds the
    items of its last argument, a list, to those of the job that waits, up to ``max_items`` (1,000) and ``max_bytes`` of payload
    (65,536); the last argument does not count for equality.

    Raises:
        DeclarationError: a value is not allowed.
    """

    strategy: DeduplicateStrategy = "until_executing"
    _: KW_ONLY
    ttl: timedelta = timedelta(minutes=10)
    if_deduplicated: Literal["reschedule_once"] | None = None
    including_scheduled: bool = False
    while_waiting: bool = False
    feature_flag: str | None = None
    window: timedelta | None = None
    max_window: timedelta | None = None
    max_items: int | None = None
    max_bytes: int | None = None

    @property
    def waiting_ttl(self) -> timedelta:
        """How long the lock of a waiting job lasts, if nothing moves the job."""
        return max(self.ttl, WAITING_TTL) if self.while_waiting else self.ttl

    @property
    def has_window(self) -> bool:
        """Whether a push waits in the schedule set for further pushes."""
        return self.window is not None

    def __new__(cls, *values: Any, **fields: Any) -> Self:
        """Reject unknown fields, and name the nearest known one."""
        del values
        check_field_names(cls.__name__, fields, _DEDUPLICATE_VALIDATORS)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        validate_fields(self, _DEDUPLICATE_VALIDATORS)
        if self.if_deduplicated is not None and self.strategy != "until_executed":
            raise DeclarationError(
                "Deduplicate",
                "if_deduplicated = 'reschedule_once' needs strategy 'until_executed': only a job that still runs can be run again.",
                attribute="if_deduplicated",
            )
        if self.while_waiting and self.strategy not in _LOCK_STRATEGIES:
            raise DeclarationError(
                "Deduplicate",
                f"while_waiting belongs to the strategies with a lock ({', '.join(_LOCK_STRATEGIES)}), not to {self.strategy!r}. "
                "Leave it out.",
                attribute="while_waiting",
            )
        _check_window(self)


def _check_window(policy: Deduplicate) -> None:
    """Check the fields of the strategies with a window against the strategy. Raises DeclarationError."""
    faults = ErrorCollector("Deduplicate")
    for name, strategies in _WINDOW_FIELDS.items():
        if getattr(policy, name) is not None and policy.strategy not in strategies:
            known = " or ".join(map(repr, strategies))
            faults.add(f"{name} belongs to strategy {known}, not to {policy.strategy!r}. Leave it out.", name)
    if policy.strategy in _WINDOW_FIELDS["window"]:
        if policy.window is None:
            faults.add(f"strategy {policy.strategy!r} needs window: how long a push waits for further ones.", "window")
        if policy.including_scheduled:
            message = (
                f"strategy {policy.strategy!r} leaves jobs for later (perform_in) alone. Leave including_scheduled out."
            )
            faults.add(message, "including_scheduled")
        if policy.window and policy.max_window and policy.max_window < policy.window:
            faults.add(f"max_window = {policy.max_window} is shorter than window = {policy.window}.", "max_window")
    faults.raise_errors()


def check_field_names(owner: str, fields: Iterable[str], validators: Mapping[str, Validator]) -> None:
    """Reject unknown fields, and name the nearest known one. Raises DeclarationError."""
    faults = ErrorCollector(owner)
    for name in fields:
        if name not in validators:
            message = (
                f"{name!r} is not one of its fields{did_you_mean(name, validators)}. Allowed: {', '.join(validators)}."
            )
            faults.add(message, name)
    faults.raise_errors()


def validate_fields(owner: Any, validators: Mapping[str, Validator]) -> None:
    """Replace the fields of a frozen dataclass by their normalised values. Raises DeclarationError."""
    faults = ErrorCollector(type(owner).__name__)
    for name, rule in validators.items():
        with faults.collect():
            normalised = validate_value(faults.worker, name, getattr(owner, name), rule)
            object.__setattr__(owner, name, normalised)
    faults.raise_errors()


_DEDUPLICATE_VALIDATORS: Mapping[str, Validator] = {
    "strategy": validators.one_of(*get_args(DeduplicateStrategy)),
    "ttl": validators.duration,
    "if_deduplicated": validators.optional(validators.one_of("reschedule_once")),
    "including_scheduled": validators.boolean,
    "while_waiting": validators.boolean,
    "feature_flag": validators.optional(validators.identifier),
    "window": validators.optional(validators.duration),
    "max_window": validators.optional(validators.duration),
    "max_items": validators.optional(validators.integer(1)),
    "max_bytes": validators.optional(validators.integer(1, 1_000_000)),
}
