"""Define attributes with several fields: deduplication, scopes of a limit, deferral on database health."""

from collections.abc import Callable, Iterable, Mapping, Sequence
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

_WINDOW_FIELDS: Mapping[str, tuple[str, ...]] = {
    "window": ("debounce", "accumulate"),
    "max_window": ("debounce",),
    "max_items": ("accumulate",),
    "max_bytes": ("accumulate",),
}
"""The strategies to which a field belongs."""


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """Drop the pushes of jobs that equal a waiting job (GitLab guideline, Sidekiq Enterprise's unique jobs).

    ``until_executing`` drops a duplicate while an equal job waits, ``until_executed`` also while it runs, ``until_expired`` until
    ``ttl`` has passed since its start, which throttles equal jobs, ``none`` never. Only duplicates of an ``idempotent`` worker are
    dropped. With ``if_deduplicated="reschedule_once"`` a duplicate during the run causes one more run. ``including_scheduled`` locks
    jobs for later from their push on. While the flag ``feature_flag`` is off, the strategy is ``none``. The lock lasts for ``ttl``
    after its job was pushed, moved or started.

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
    feature_flag: str | None = None
    window: timedelta | None = None
    max_window: timedelta | None = None
    max_items: int | None = None
    max_bytes: int | None = None

    @property
    def has_window(self) -> bool:
        """Whether a push waits in the schedule set for further pushes."""
        return self.window is not None

    def __new__(cls, *values: Any, **fields: Any) -> Self:
        """Reject unknown fields, and name the nearest known one."""
        del values
        _check_field_names(cls.__name__, fields, _DEDUPLICATE_VALIDATORS)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        _validate_fields(self, _DEDUPLICATE_VALIDATORS)
        if self.if_deduplicated is not None and self.strategy != "until_executed":
            raise DeclarationError(
                "Deduplicate",
                "if_deduplicated = 'reschedule_once' needs strategy 'until_executed': only a job that still runs can be run again.",
                attribute="if_deduplicated",
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


@dataclass(frozen=True, slots=True)
class ConcurrencyScope:
    """Limit the slots of one scope, such as a tenant, within the limit of the class (GitLab's per-tenant limits).

    ``by`` is the name of a fact in the job's context (``"user"`` is ``meta.user``), or a function of the job's arguments that
    returns a text or a number. A job without a scope is not counted. Give either ``limit``, the maximum of slots of one scope, or
    ``max_percentage``, its share of the class's limit (0.2 is a fifth), rounded up.

    Raises:
        DeclarationError: a value is not allowed.
    """

    by: str | Callable[[Sequence[Any]], str | int | None]
    _: KW_ONLY
    limit: int | None = None
    max_percentage: float | None = None

    def __new__(cls, *values: Any, **fields: Any) -> Self:
        """Reject unknown fields, and name the nearest known one."""
        del values
        _check_field_names(cls.__name__, fields, _CONCURRENCY_SCOPE_VALIDATORS)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        _validate_fields(self, _CONCURRENCY_SCOPE_VALIDATORS)
        if (self.limit is None) == (self.max_percentage is None):
            raise DeclarationError(
                "ConcurrencyScope",
                "needs limit or max_percentage, and not both: the maximum of slots of one scope, or its share of the limit.",
                attribute="limit",
            )


@dataclass(frozen=True, slots=True)
class DeferOnHealth:
    """Defer jobs of this worker while a database is unhealthy (GitLab's database health signal).

    While an indicator returns ``Stop``, a job is deferred for ``delay``. The delay doubles from the third deferral on, up to
    ``max_delay``, and is reduced at random by up to a tenth, so that jobs do not all return at once. After ``max_deferrals``
    deferrals the job runs anyway (None: no maximum). ``indicators`` names the indicators to ask; None asks all.
    ``resolver`` returns the database and the tables for a job's arguments; when it fails, the declared ones count. An indicator
    that does not answer defers nothing.

    Raises:
        DeclarationError: a value is not allowed.
    """

    database: str = "main"
    _: KW_ONLY
    tables: tuple[str, ...] = ()
    delay: timedelta = timedelta(seconds=5)
    max_delay: timedelta = timedelta(minutes=30)
    max_deferrals: int | None = None
    indicators: tuple[str, ...] | None = None
    resolver: Callable[[tuple[Any, ...]], tuple[str, Sequence[str]]] | None = None

    def __new__(cls, *values: Any, **fields: Any) -> Self:
        """Reject unknown fields, and name the nearest known one."""
        del values
        _check_field_names(cls.__name__, fields, _DEFER_ON_HEALTH_VALIDATORS)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        _validate_fields(self, _DEFER_ON_HEALTH_VALIDATORS)
        if self.max_delay < self.delay:
            raise DeclarationError(
                "DeferOnHealth",
                f"max_delay = {self.max_delay} is shorter than delay = {self.delay}.",
                attribute="max_delay",
            )


def _check_field_names(owner: str, fields: Iterable[str], validators: Mapping[str, Validator]) -> None:
    faults = ErrorCollector(owner)
    for name in fields:
        if name not in validators:
            message = (
                f"{name!r} is not one of its fields{did_you_mean(name, validators)}. Allowed: {', '.join(validators)}."
            )
            faults.add(message, name)
    faults.raise_errors()


def _validate_fields(
    owner: ConcurrencyScope | Deduplicate | DeferOnHealth, validators: Mapping[str, Validator]
) -> None:
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
    "feature_flag": validators.optional(validators.identifier),
    "window": validators.optional(validators.duration),
    "max_window": validators.optional(validators.duration),
    "max_items": validators.optional(validators.integer(1)),
    "max_bytes": validators.optional(validators.integer(1, 1_000_000)),
}

_CONCURRENCY_SCOPE_VALIDATORS: Mapping[str, Validator] = {
    "by": validators.identifier_or_callable,
    "limit": validators.optional(validators.integer(1)),
    "max_percentage": validators.optional(validators.fraction),
}

_DEFER_ON_HEALTH_VALIDATORS: Mapping[str, Validator] = {
    "database": validators.identifier,
    "tables": validators.queues,
    "delay": validators.duration,
    "max_delay": validators.duration,
    "max_deferrals": validators.optional(validators.integer(1)),
    "indicators": validators.optional(validators.identifiers),
    "resolver": validators.optional(validators.resolver),
}
