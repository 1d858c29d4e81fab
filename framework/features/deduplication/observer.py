"""Count the jobs that have waited in their queues for longer than their locks last: equal jobs were pushed meanwhile."""

from dataclasses import dataclass
from typing import ClassVar

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.declare.policy_options import Deduplicate
from framework.features.deduplication.store import OUTLIVED
from framework.settings.base import SettingsBase
from framework.telemetry.job_events import JobObserver, RunOfJob, StreamEvent, job_events
from framework.telemetry.logs import LogRateLimit
from framework.text import format_duration
from framework.wire.job import BUFFERED_AT, timestamp

_LOG_INTERVAL_S = 300.0


@dataclass(frozen=True, slots=True)
class LockOutlived(StreamEvent):
    """A job has waited in its queue for longer than its lock lasts."""

    counter: ClassVar[str] = OUTLIVED


class LockObserver(JobObserver):
    """Compare the wait of each deduplicated job with the lifetime of its lock."""

    def __init__(self) -> None:
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def ended(self, run: RunOfJob) -> None:
        declaration, payload = run.declaration, run.payload
        if declaration is None or payload is None or not (run.admitted and _has_lock(declaration)):
            return
        # The lock of a job that a limit or a pause holds lasts as long, and that of a failed one may have ended with its run.
        if BUFFERED_AT in payload or "retry_count" in payload:
            return
        policy: Deduplicate = declaration.deduplicate
        if policy.while_waiting:
            return
        enqueued_at, ttl_s = timestamp(payload.get("enqueued_at")), policy.ttl.total_seconds()
        waited_s = 0.0 if enqueued_at is None else run.started_at - enqueued_at
        if waited_s <= ttl_s:
            return
        job_events.emit(LockOutlived(declaration.wire_name))
        self._log_limit.warning(
            declaration.wire_name,
            f"a job has waited for {format_duration(waited_s)}, and its deduplication lock has ended after {format_duration(ttl_s)}: "
            "equal jobs were pushed meanwhile, and make the backlog longer. Let more processes run the class, or give Deduplicate "
            "while_waiting = True or a longer ttl: a lock ends with its job in any case",
            "deduplication.lock_outlived",
            queue=run.queue,
            **{"class": declaration.wire_name},
        )


def observer(settings: SettingsBase) -> JobObserver | None:
    """Return the observer of a worker process that has a deduplicated class."""
    del settings
    has_locks = job_events.is_worker and any(_has_lock(one.declaration()) for one in registry.workers())
    return LockObserver() if has_locks else None


def _has_lock(declaration: Declaration) -> bool:
    policy = declaration.deduplicate
    return policy is not None and declaration.deduplicates and not policy.has_window
