"""Limit the pushes of classes: by their ``max_waiting``, and while the memory of the shard is above its budget."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from redis.exceptions import RedisError

from framework.declare.declaration import Declaration
from framework.errors import BacklogFullError, ShardUnavailableError
from framework.features.backlog.attributes import MaxWaiting
from framework.push.client import Client
from framework.push.job_batch import JobBatch, PushFallback, PushLimit
from framework.push.push_plan import PushPlan
from framework.shard.held_back import LimitTime
from framework.shard.shard import Shard
from framework.telemetry.counters import series_name
from framework.telemetry.logs import LogRateLimit
from framework.types import Jid, OnFull
from framework.wire import keys
from framework.wire.accepted import AcceptedLimit

DROPPED = "sidekiq_jobs_backlog_dropped_total"
"""Jobs that were dropped because the backlog of their class was full."""

_LOG_INTERVAL_S = 60.0
_MOST_KEPT_TOGETHER = 100


def limit_pushes(plan: PushPlan, client: Client) -> PushPlan:
    """Return the plan of a class whose pushes are limited."""
    return plan._replace(limit=BacklogLimit(plan.declaration, plan.shard, client.fallback))


class BacklogLimit(PushLimit):
    """The limits of one class on one shard."""

    def __init__(self, declaration: Declaration, shard: Shard, fallback: PushFallback) -> None:
        self._worker = worker = declaration.wire_name
        most: MaxWaiting | None = declaration.facts.get("max_waiting")
        # A class of another program is known by its name only.
        self._on_full: OnFull = declaration.facts.get("on_full", "refuse")
        self._counter = series_name(DROPPED, {"worker": worker})
        self.drop_counter = self._counter if self._on_full == "drop" else ""
        self._limit = None if most is None else AcceptedLimit(worker, most.jobs, most.bytes, self.drop_counter)
        self._shard = shard
        self._fallback = fallback
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)
        self.time = shard.held_back if self._limit is None else LimitTime()

    def accepted(self) -> AcceptedLimit | None:
        unseen, self.unseen_bytes = self.unseen_bytes, 0
        self._shard.held_back.check(self._worker, unseen)
        return self._limit

    def full(self, error: BacklogFullError, batch: JobBatch, *, locks_when_due: bool) -> Sequence[Jid | None]:
        """Keep or drop jobs, as the class declares. Raises BacklogFullError."""
        if self._on_full == "keep":
            self._keep(error, batch, locks_when_due=locks_when_due)
            return batch.jids
        if self._on_full == "refuse":
            raise error
        if batch.counted is None:
            # The script has not counted them, as it was not called.
            with suppress(RedisError, OSError):
                self._shard.client.hincrby(keys.COUNTERS, self._counter, len(batch.jids))
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
        most, limit = _MOST_KEPT_TOGETHER, self._limit
        if limit is not None and limit.jobs is not None:
            most = min(most, limit.jobs // 10)
        if limit is not None and limit.bytes is not None and batch.counted is not None:
            most = min(most, limit.bytes // batch.counted.each // 10)
        while len(batch.jids) > max(1, most):
            part, batch = batch.split(max(1, most))
            yield part
        yield batch
