"""Cancel the jobs that match a filter, in every place: waiting for their time, held, in a queue, running.

A job of the schedule or the retry set, or a held one, ends at once: one atomic step removes it. A job in a queue or in a process, of
Sidekiq too, is marked (``aw:cancelled``): its process ends it before its start, or asks it to end. At a crash: what is done stays,
and a second call goes on; a job that moves meanwhile is found at its next place, or by its mark.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import Any, Unpack

from redis.exceptions import ConnectionError as RedisConnectionError

from framework.admin import port
from framework.admin.access import TIME_LIMIT_S, check_writable, deadline_of, run_on_each
from framework.admin.audit import audited
from framework.admin.entries import JobSetKind
from framework.admin.held_set import HeldEnd, purge
from framework.admin.job_record import JobCriteria, JobFilter, JobQuota, JobRecord, job_filter
from framework.admin.search import JobLocation, JobStore, list_job_stores, search_lists, search_records
from framework.admin.shard_job_set import ShardJobSet
from framework.admin.statistics import OnProgress, ignore_progress
from framework.async_twin import async_twin
from framework.errors import ShardUnavailableError
from framework.finish.endings import CANCELLED_JOBS
from framework.settings.model import CoreSettings
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.store.script import MARK_CANCELLED
from framework.store.steps import BoundedSteps
from framework.types import Jid
from framework.wire import keys

_CANCELLED = HeldEnd("cancelled", CANCELLED_JOBS, {})
_SETS: tuple[JobSetKind, ...] = ("scheduled", "retry")
_MARKS_AT_ONCE = (20, 150)
"""The fewest and the most jobs of one call of the script: a mark takes some 20 us of Redis."""


class _TimeIsUp(Exception):
    """The time limit ended."""


@dataclass(slots=True)
class CancelResult:
    """The results of a cancellation: jobs that waited and are gone, and jobs that end by their marks."""

    matched: int = 0
    ended: int = 0
    """Jobs of the schedule and retry sets, and held ones: they are gone."""
    marked: int = 0
    """Jobs in queues and processes: they end when their turn comes, or when they see it."""
    refused: int = 0
    """Jobs on their way to another shard, and others that had moved: a second call finds them."""
    scanned: int = 0
    completed: bool = True
    """Whether every place was scanned. Else the time limit ended, or a shard did not answer: call it again."""
    unanswered: dict[str, ShardUnavailableError] = field(default_factory=dict[str, ShardUnavailableError])

    def add(self, other: "CancelResult") -> None:
        for name in ("matched", "ended", "marked", "refused", "scanned"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.completed = self.completed and other.completed


def cancel_jobs(
    *,
    shard: str | None = None,
    time_limit: timedelta | float | None = TIME_LIMIT_S,
    **criteria: Unpack[JobCriteria],
) -> CancelResult:
    """Cancel every job that matches, in bounded steps, until ``time_limit``; return what was done. May be called again.

    ``JobCriteria`` explains the criteria. Jobs that are pushed meanwhile may be missed. ``framework.cancel`` is for one job.

    Raises:
        TypeError, ValueError: there is no criterion, or one is unknown, empty or of a wrong type.
        ReadOnlyError: inside of a ``read_only`` block.
        UnknownShardError: the configuration has no such shard.
    """
    check_writable("cancel_jobs()")
    wanted = job_filter(**criteria)
    if not wanted:
        raise ValueError("cancel_jobs(): give a criterion, such as cls=...: without one it would cancel every job")
    deadline = deadline_of(time_limit)
    quota, settings = JobQuota(wanted), port.current().settings

    def step(home: Shard) -> CancelResult:
        return cancel_on_shard(home, wanted, settings, deadline, ignore_progress, quota=quota)

    act = audited("cancel_jobs", step, {"jobs": wanted}, lambda one: one.ended + one.marked)
    answers = run_on_each(shard, act)
    result = CancelResult(completed=not answers.unanswered, unanswered=answers.unanswered)
    for done in answers.by_shard.values():
        result.add(done)
    return result


acancel_jobs = async_twin(cancel_jobs)


def cancel_on_shard(
    shard: Shard,
    wanted: JobFilter,
    settings: CoreSettings,
    deadline: float,
    on_progress: OnProgress,
    *,
    quota: JobQuota,
    dry_run: bool = False,
    rate: float | None = None,
) -> CancelResult:
    """Cancel the matching jobs of one shard until ``deadline`` (monotonic clock). Raises redis errors; what is done stays.

    ``rate`` is that of ``BoundedSteps``.
    """
    one = _Cancellation(shard, wanted, settings, deadline, on_progress, quota=quota, dry_run=dry_run, rate=rate)
    try:
        one.run()
    except _TimeIsUp:
        one.result.completed = False
    return one.result


class _Cancellation:
    def __init__(
        self,
        shard: Shard,
        wanted: JobFilter,
        settings: CoreSettings,
        deadline: float,
        on_progress: OnProgress,
        *,
        quota: JobQuota,
        dry_run: bool,
        rate: float | None,
    ) -> None:
        self.result = CancelResult()
        self._shard = shard
        self._client = shard.client
        self._wanted = wanted
        self._settings = settings
        self._deadline = deadline
        self._on_progress = on_progress
        self._quota = quota
        self._dry_run = dry_run
        self._rate = rate
        self._steps = BoundedSteps(*_MARKS_AT_ONCE, rate=rate)
        self._marked = set[Jid]()

    def run(self) -> None:
        """Cancel the jobs of each place, in the order of a job's way; those of processes first and last."""
        stores = list_job_stores(self._client)
        now = server_time(self._client)
        # Running jobs first: a job that fails meanwhile has its mark. A job that is fetched meanwhile is found at the end.
        self._mark_lists([store for store in stores if store.kind == "in flight"], now)
        for kind in _SETS:
            self._end_set(kind)
        self._end_held()
        self._mark_lists([store for store in stores if store.kind == "queue"], now)
        working = [store for store in list_job_stores(self._client) if store.kind == "in flight"]
        self._mark_lists(working, now)
        self._mark(search_records(self._client, self._wanted.needle or b"", self._note_scanned), now)

    def _check_time(self) -> None:
        if time.monotonic() >= self._deadline:
            raise _TimeIsUp

    def _end_set(self, kind: JobSetKind) -> None:
        jobs = ShardJobSet(self._shard, kind, self._settings)
        if self._dry_run:
            count = sum(1 for _ in self._quota.of(jobs.matching(self._wanted, self._on_progress)))
            self.result.matched += count
            self.result.ended += count
            return
        done = jobs.act_on_matching(
            self._wanted, "cancel", self._deadline, self._on_progress, quota=self._quota, rate=self._rate
        )
        self.result.matched += done.matched
        self.result.ended += done.done
        self.result.scanned += done.scanned
        self.result.refused += done.gone + done.in_doubt + sum(done.refused.values())
        if done.failure is not None:
            raise RedisConnectionError(str(done.failure))
        if not done.completed:
            raise _TimeIsUp

    def _end_held(self) -> None:
        sizes = self._settings.size_limit
        done = purge(
            self._shard,
            self._wanted,
            sizes,
            self._deadline,
            self._on_progress,
            quota=self._quota,
            dry_run=self._dry_run,
            end=_CANCELLED,
            rate=self._rate,
        )
        self.result.matched += done.matched
        self.result.ended += done.matched if self._dry_run else done.dropped
        self.result.refused += 0 if self._dry_run else done.matched - done.dropped
        self.result.scanned += done.scanned
        if not done.completed:
            raise _TimeIsUp

    def _mark_lists(self, stores: Sequence[JobStore], now: float) -> None:
        self._check_time()
        self._mark(search_lists(self._client, stores, self._wanted.needle or b"", self._note_scanned), now)

    def _note_scanned(self, key: str, scanned: int) -> None:
        self.result.scanned += scanned
        self._on_progress(key, self.result.scanned)

    def _mark(self, found: Iterable[JobLocation], now: float) -> None:
        jids = self._quota.of(self._jids(found, now))
        while part := list(islice(jids, self._steps.size)):
            self._check_time()
            self._marked.update(part)
            self.result.matched += len(part)
            self.result.marked += len(part) if self._dry_run else self._write_marks(part)

    def _jids(self, locations: Iterable[JobLocation], now: float) -> Iterator[Jid]:
        """Yield the ids of the matching jobs that are not marked yet. A job without an id cannot be marked."""
        sizes = self._settings.size_limit
        for found in locations:
            job = JobRecord(self._shard.name, found.data, sizes)
            if job.jid and job.jid not in self._marked and self._wanted.matches(job, job.enqueued_at, now):
                yield job.jid

    def _write_marks(self, jids: Sequence[Jid]) -> int:
        names = [keys.CANCELLED, *map(keys.status, jids)]
        with self._steps.step(len(jids)):
            reply: Any = MARK_CANCELLED(self._client, names, [keys.CANCELLED_TTL_S, *jids])
        return sum(reply)
