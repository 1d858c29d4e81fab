"""What a worker may say about itself: the grouped facts, and the rule for each attribute (design section 4)."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from reprlib import repr as short_repr
from typing import Any, Literal, TypeAlias, get_args

from framework.declare import values
from framework.declare.values import Invalid, Rule
from framework.errors import DeclarationError
from framework.types import Ack, DataConsistency, ResourceBoundary, Urgency

DeduplicateStrategy: TypeAlias = Literal["until_executing", "until_executed", "none"]


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """How equal jobs are kept from piling up (GitLab guideline, Sidekiq Enterprise's unique jobs).

    ``until_executing`` drops a duplicate while an equal job waits, ``until_executed`` also while it runs, ``none``
    never. Only an ``idempotent`` worker's duplicates are dropped. ``if_deduplicated="reschedule_once"`` runs the job once
    more when a duplicate came during its run; ``feature_flag`` names a flag without which the strategy is ``none``.
    Declared and validated now; dropping comes with the deduplication policy.

    Raises DeclarationError for a value that is not allowed.
    """

    strategy: DeduplicateStrategy = "until_executing"
    _: KW_ONLY
    ttl: timedelta = timedelta(minutes=10)
    if_deduplicated: Literal["reschedule_once"] | None = None
    including_scheduled: bool = False
    feature_flag: str | None = None

    def __post_init__(self) -> None:
        _check_fields(self, _DEDUPLICATE)
        if self.if_deduplicated is not None and self.strategy != "until_executed":
            raise DeclarationError(
                "Deduplicate",
                "if_deduplicated = 'reschedule_once' needs strategy 'until_executed': only a job that still runs can be run again.",
                attribute="if_deduplicated",
            )


@dataclass(frozen=True, slots=True)
class DeferOnHealth:
    """When a database is unwell, jobs of this worker wait (GitLab's database health signal).

    A job is put back for ``delay`` while an indicator says stop, then for twice that and so on up to ``max_delay``;
    after ``max_deferrals`` it runs anyway (None: it waits as long as the indicator says stop). ``indicators`` names those
    to ask, None asks all. Declared and validated now; deferring comes with the health policy.

    Raises DeclarationError for a value that is not allowed.
    """

    database: str = "main"
    _: KW_ONLY
    tables: tuple[str, ...] = ()
    delay: timedelta = timedelta(seconds=5)
    max_delay: timedelta = timedelta(minutes=30)
    max_deferrals: int | None = None
    indicators: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _check_fields(self, _DEFER_ON_HEALTH)
        if self.max_delay < self.delay:
            raise DeclarationError(
                "DeferOnHealth",
                f"max_delay = {self.max_delay} is shorter than delay = {self.delay}.",
                attribute="max_delay",
            )


def check_value(worker: str, name: str, value: Any, rule: Rule) -> Any:
    """The normalised value; raises DeclarationError naming worker, attribute, value and what is allowed."""
    try:
        return rule(value)
    except Invalid as error:
        message = f"{name} = {short_repr(value)} is not allowed. Allowed: {error}."
        raise DeclarationError(worker, message, attribute=name) from None


def _check_fields(owner: Deduplicate | DeferOnHealth, rules: Mapping[str, Rule]) -> None:
    for name, rule in rules.items():
        normalised = check_value(type(owner).__name__, name, getattr(owner, name), rule)
        object.__setattr__(owner, name, normalised)


_TABLES = values.tuple_of(values.queue, "('projects',)")

_DEDUPLICATE: Mapping[str, Rule] = {
    "strategy": values.one_of(*get_args(DeduplicateStrategy)),
    "ttl": values.duration,
    "if_deduplicated": values.optional(values.one_of("reschedule_once")),
    "including_scheduled": values.boolean,
    "feature_flag": values.optional(values.word),
}

_DEFER_ON_HEALTH: Mapping[str, Rule] = {
    "database": values.word,
    "tables": _TABLES,
    "delay": values.duration,
    "max_delay": values.duration,
    "max_deferrals": values.optional(values.integer(1)),
    "indicators": values.optional(values.words),
}

ATTRIBUTES: Mapping[str, Rule] = {
    "feature_category": values.optional(values.word),
    "urgency": values.one_of(*get_args(Urgency)),
    "resource_boundary": values.one_of(*get_args(ResourceBoundary)),
    "has_external_dependencies": values.boolean,
    "data_consistency": values.one_of(*get_args(DataConsistency)),
    "queue_namespace": values.optional(values.word),
    "queue": values.optional(values.queue),
    "shard": values.optional(values.shard),
    "weight": values.integer(1),
    "tags": values.tags,
    "version": values.integer(0),
    "wire_name": values.optional(values.wire_name),
    "aliases": values.wire_names,
    "retry": values.switch_or_count(0),
    "retry_for": values.optional(values.duration),
    "retry_queue": values.optional(values.queue),
    "dead": values.boolean,
    "backtrace": values.switch_or_count(1),
    "max_retries_after_interruption": values.integer(-1),
    "ack": values.one_of(*get_args(Ack)),
    "timeout": values.optional(values.duration),
    "expires_in": values.optional(values.duration),
    "status_expiration": values.optional(values.duration),
    "track": values.boolean,
    "idempotent": values.boolean,
    "deduplicate": values.instance_of(Deduplicate, "Deduplicate(...)"),
    "concurrency_limit": values.limit,
    "max_concurrency_limit_percentage": values.optional(values.share),
    "defer_on_health": values.instance_of(DeferOnHealth, "DeferOnHealth(...)"),
    "pause_control": values.optional(values.word),
    "big_payload": values.boolean,
    "loggable_arguments": values.words,
}
"""Every attribute a worker may declare. A name that is not here is refused when the class is created."""

OWN_ATTRIBUTES = frozenset({"wire_name", "aliases"})
"""The identity of one class: never inherited, or each child would claim its parent's name."""
