"""The attributes of a worker class as keywords of ``background``. Written by ``application-worker attributes --write``."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypedDict

from framework.declare.policy_options import Deduplicate
from framework.declare.spread import Spread
from framework.features.backlog.attributes import MaxWaiting
from framework.features.breaker.attributes import BreakAfter
from framework.features.concurrency.attributes import ConcurrencyScope
from framework.features.health.attributes import DeferOnHealth
from framework.features.limiters.limiter import Limiter
from framework.types import (
    Ack,
    DataConsistency,
    Isolation,
    Json,
    OnFull,
    Priority,
    ResourceBoundary,
    StrictArguments,
    Urgency,
    WithoutMetaShard,
)


class WorkerAttributes(TypedDict, total=False):
    """The attributes that a function may have: those that belong to no base class."""

    feature_category: str | None
    urgency: Urgency
    resource_boundary: ResourceBoundary
    has_external_dependencies: bool
    tags: tuple[str, ...]
    worker_context: Mapping[str, Json] | None
    queue_namespace: str | None
    queue: str | None
    shard: str | Spread | None
    weight: int | None
    version: int
    wire_name: str | None
    aliases: tuple[str, ...]
    retry: bool | int
    retry_for: timedelta | float | None
    retry_delay: timedelta | float | tuple[timedelta | float, ...] | None
    retry_queue: str | None
    dead: bool
    backtrace: bool | int | None
    max_retries_after_interruption: int | None
    ack: Ack
    timeout: timedelta | float | None
    expires_in: timedelta | float | None
    strict_arguments: StrictArguments | None
    loggable_arguments: tuple[str, ...]
    big_payload: bool
    compress: bool
    isolation: Isolation | None
    memory_limit: int | None
    encrypt: bool
    status_expiration: timedelta | float | None
    keep_result: timedelta | float | None
    track: bool
    idempotent: bool
    deduplicate: Deduplicate | None
    concurrency_limit: int | Callable[[], int | None] | None
    without_meta_shard: WithoutMetaShard
    max_concurrency_limit_percentage: float | None
    concurrency_scope: ConcurrencyScope | None
    fair_by: str | Callable[[tuple[Any, ...]], str | int | None] | None
    priority: Priority | None
    limiter: Limiter | None
    defer_on_health: DeferOnHealth | None
    pause_control: str | None
    break_after: BreakAfter | int | None
    max_waiting: MaxWaiting | int | None
    on_full: OnFull
    data_consistency: DataConsistency
    data_consistency_overrides: Mapping[str, DataConsistency] | None
