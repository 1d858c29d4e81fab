"""Limit the pushes of a class with ``max_waiting``, and carry out its ``on_full``."""

from collections.abc import Iterator, Sequence

from framework.declare.declaration import Declaration
from framework.errors import BacklogFullError, ShardUnavailableError
from framework.features.backlog.attributes import MaxWaiting, OnFull
from framework.push.client import Client
from framework.push.job_batch import JobBatch, PushFallback, PushLimit
from framework.push.push_plan import PushPlan
from framework.telemetry.counters import series_name
from framework.telemetry.logs import LogRateLimit
from framework.types import Jid
from framework.wire.accepted import AcceptedLimit

DROPPED = "sidekiq_jobs_backlog_dropped_total"
"""Jobs that were dropped because the backlog of their class was full."""

_LOG_INTERVAL_S = 60.0
_MOST_KEPT_TOGETHER = 100


def limit_pushes(plan: PushPlan, client: Client) -> PushPlan:
    """Return the plan of a class whose pushes are limited; unchanged for a class without ``max_waiting``."""
    most: MaxWaiting | None = plan.declaration.facts.get("max_waiting")
    return plan if most is None else plan._replace(limit=BacklogLimit(plan.declaration, most, client.fallback))


class BacklogLimit(PushLimit):
    """The limit of a class with ``max_waiting``."""

    def __init__(self, declaration: Declaration, most: MaxWaiting, fallback: PushFallback) -> None:
        worker = declaration.wire_name
        self._on_full: OnFull = declaration.facts["on_full"]
        counter = series_name(DROPPED, {"worker": worker}) if self._on_full == "drop" else ""
        self._limit = AcceptedLimit(worker, most.jobs, most.bytes, counter)
        self._fallback = fallback
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def accepted(self) -> AcceptedLimit:
        return self._limit

    def full(self, error: BacklogFullError, batch: JobBatch, *, locks_when_due: bool) -> Sequence[Jid | None]:
        """Keep or drop jobs, as the class declares. Raises BacklogFullError."""
        if self._on_full == "keep":
            self._keep(error, batch, locks_when_due=locks_when_due)
            return batch.jids
        if self._on_full == "refuse":
            raise error
        self._log_limit.warning(
            error.shard,
            "jobs are dropped, because the backlog of their class is full: it declares on_full = 'drop'. Let more processes run "
            "the class, or raise max_waiting",
            "backlog.dropped",
            shard=error.shard,
            jobs=len(batch.jids),
            **{"class": error.worker},
        )
        return [None] * len(batch.jids)

    def _keep(self, error: BacklogFullError, batch: JobBatch, *, locks_when_due: bool) -> None:
        refused = ShardUnavailableError(error.shard, str(error))
        try:
            for part in self._parts(batch):
                # No token: none of these jobs is written.
                self._fallback.keep(refused, part, None, locks_when_due=locks_when_due)
        except ShardUnavailableError as not_kept:
            raise error from not_kept

    def _parts(self, batch: JobBatch) -> Iterator[JobBatch]:
        """Yield the jobs in groups small enough to fit as soon as a tenth of the limit is free."""
        most = _MOST_KEPT_TOGETHER
        if self._limit.jobs is not None:
            most = min(most, self._limit.jobs // 10)
        if self._limit.bytes is not None and batch.counted is not None:
            most = min(most, self._limit.bytes // batch.counted.each // 10)
        while len(batch.jids) > max(1, most):
            part, batch = batch.split(max(1, most))
            yield part
        yield batch
