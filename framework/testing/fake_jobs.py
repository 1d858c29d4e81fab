"""Look at the jobs of a fake, and run them."""

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, cast

from framework.admin.search import list_held_stores, payload_of_member, scan_members
from framework.all_settings import Settings
from framework.declare.setter import declaration_of
from framework.errors import EmptyQueueError, EndlessJobsError, PayloadError
from framework.testing.fake_client import FakeClient
from framework.testing.fake_clock import FakeClock
from framework.testing.fake_redis import FakeShard
from framework.testing.fake_worker import DueSet, FakeWorker
from framework.testing.job_checks import WorkerClass, belongs_to, check_enqueued
from framework.testing.stubs import Stubs
from framework.types import Jid, Payload
from framework.wire import keys
from framework.wire.compress import COMPRESSED, decompress_arguments
from framework.wire.job import BATCH_EVENT, Job, decode, timestamp

MAX_STEPS = 100_000
"""The most runs, and moves of due jobs, of one call: more come from jobs without end."""

_DUE_SETS: tuple[DueSet, ...] = ("schedule", "retry")
_ALL = 1_000_000_000
_FIRST_LOOK = 20
"""The jobs of each place that a look for the next job reads first. It reads more if none of them is wanted."""
_LAST = 1 << 60
_Scored: TypeAlias = list[tuple[bytes, float]]

_LOOK = """
local most = tonumber(ARGV[1])
local found = {
  redis.call('EXISTS', 'aw:limits:waiting', 'aw:paused_classes'), redis.call('EXISTS', 'aw:cancelled'),
  redis.call('ZRANGE', 'schedule', 0, most - 1, 'WITHSCORES'), redis.call('ZRANGE', 'retry', 0, most - 1, 'WITHSCORES'),
}
local queues = redis.call('SMEMBERS', 'queues')
table.sort(queues)
for _, queue in ipairs(queues) do
  local jobs = redis.call('LRANGE', 'queue:' .. queue, -most, -1)
  if jobs[1] then found[#found + 1] = { queue, jobs } end
end
return found
"""


@dataclass
class StoredJob:
    """One job: where it is, and when it is due if it waits for a time."""

    shard: str
    place: str
    """The set of due jobs, or its queue."""
    data: bytes
    due: float = 0.0

    @cached_property
    def payload(self) -> Payload:
        """The payload, not to be changed; of a job that cannot be read, one without fields."""
        try:
            return decode(self.data, None)
        except PayloadError:
            return {}


class _Look(NamedTuple):
    """The jobs that wait on one shard, in each place the first to run first."""

    holds: bool
    """Whether limits or pauses hold jobs."""
    cancels: bool
    """Whether jobs are cancelled."""
    due: Mapping[DueSet, list[StoredJob]]
    queues: list[list[StoredJob]]
    whole: bool
    """Whether these are all jobs."""


class FakeJobs:
    """The jobs of ``fake()`` or ``inline()``, with the stubs and the clock of the test."""

    def __init__(
        self,
        settings: Settings,
        clock: FakeClock,
        shards: Mapping[str, FakeShard],
        server_middlewares: Sequence[type[Any]] | None,
    ) -> None:
        self._shards = {name: shard.own for name, shard in shards.items()}
        self._stubs = stubs = Stubs(settings, clock, self._shards)
        self._settings = settings
        self.clock = clock
        """Decides which jobs are due."""
        self.flags, self.limits, self.health, self.replicas = stubs.flags, stubs.limits, stubs.health, stubs.replicas
        self.limiters, self.leases = stubs.limiters, stubs.leases
        self.client = FakeClient(settings, stubs, clock, shards, server_middlewares)
        """The client that takes the place of the process's."""

    @property
    def now(self) -> float:
        """Return the time by which jobs are due, in epoch seconds."""
        return self.clock()

    @property
    def interrupt_every(self) -> int | None:
        """After so many items an iterable job is interrupted, as by a deploy, and continues at its cursor; None: never."""
        return self._stubs.interrupt_every

    @interrupt_every.setter
    def interrupt_every(self, items: int | None) -> None:
        if items is not None and (type(items) is not int or items < 1):
            raise ValueError(f"interrupt_every = {items!r}: give a whole number from 1, or None")
        self._stubs.interrupt_every = items

    def enqueued(self, worker: WorkerClass | None = None) -> list[Job]:
        """Return the jobs that wait in queues, then those scheduled for later (with their time in ``at``)."""
        looks = [self.look(one, _ALL) for one in self._shards.values()]
        queued = list(self.in_order([queue for look in looks for queue in look.queues]))
        return self._views([*queued, *_by_time(looks, "schedule")], worker)

    def retries(self, worker: WorkerClass | None = None) -> list[Job]:
        """Return the failed jobs that wait for their retry, with its time in ``at``."""
        return self._views(_by_time([self.look(one, _ALL) for one in self._shards.values()], "retry"), worker)

    def dead(self, worker: WorkerClass | None = None) -> list[Job]:
        """Return the jobs of the dead set."""
        found = [
            StoredJob(shard.name, keys.DEAD, data, score)
            for shard in self._shards.values()
            for data, score in cast("_Scored", shard.client.zrange(keys.DEAD, 0, -1, withscores=True))
        ]
        return self._views(sorted(found, key=lambda one: one.due), worker)

    def held(self, worker: WorkerClass | None = None) -> list[Job]:
        """Return the jobs that a limit or a pause holds."""
        found = [
            StoredJob(shard.name, "held", payload_of_member(member), score)
            for shard in self._shards.values()
            for store in list_held_stores(shard.client)
            for page in scan_members(shard.client, store.key)
            for member, score in page
        ]
        return self._views(sorted(found, key=lambda one: one.due), worker)

    def clear(self) -> None:
        """Forget every job, lock and state. The clock, flags and other stubs stay."""
        for shard in self._shards.values():
            shard.database.clear()
        self.limits.restore()
        self.leases.restore()
        self.client.order.clear()
        self.client.close_recorder()

    @contextmanager
    def unavailable(self) -> Generator[None]:
        """Let every push within the block fail with ``ShardUnavailableError``, as if no Redis answered."""
        databases = [shard.database for shard in self._shards.values()]
        for database in databases:
            database.available = False
        try:
            yield
        finally:
            for database in databases:
                database.available = True

    def assert_enqueued(
        self,
        worker: WorkerClass,
        *args: Any,
        at: datetime | timedelta | float | None = None,
        count: int = 1,
    ) -> None:
        """Fail unless exactly ``count`` jobs of the class wait: with these arguments if any are given, due at ``at`` if given.

        ``at`` is an aware datetime, epoch seconds, or a timedelta from now; one second of difference is allowed.
        """
        __tracebackhide__ = True
        check_enqueued(self, worker, args, at, count)

    def drain(self, worker: WorkerClass | None = None, *, raise_errors: bool = True) -> int:
        """Run the waiting jobs of the class, or of all, and those that they push; return the number of runs.

        Jobs run in the order of their pushes. Then the clock moves to the time of the next scheduled job or retry, unless it is
        frozen: a frozen clock runs what is due. A job that a policy holds or defers is tried once in each call.

        The error of a failed job is raised when its retry is written. Without ``raise_errors`` failed jobs are retried until they
        succeed or die.

        Raises:
            EndlessJobsError: the jobs never end.
            Exception: what a job raised.
        """
        return _Drain(self, worker).all(raise_errors=raise_errors)

    def perform_one(self, worker: WorkerClass) -> Job:
        """Run the first waiting job of the class, else the next one due; return the job as it was.

        Raises:
            EmptyQueueError: no job of the class waits, or by a frozen clock none is due.
            Exception: what the job raised.
        """
        job = _Drain(self, worker).one()
        if job is None:
            name, waiting = declaration_of(worker).class_name, len(self.enqueued(worker)) + len(self.retries(worker))
            frozen = f": {waiting} due later than the frozen clock" if waiting else ""
            raise EmptyQueueError(f"no job of {name} can run now{frozen}.")
        return job

    def run_now(self, jids: Sequence[Jid]) -> None:
        """Run each of these waiting jobs once, whatever its time (mode ``inline``). Raises what a job raises."""
        drain = _Drain(self, None)
        for jid in jids:
            drain.run_once(jid)

    def run_callbacks(self) -> None:
        """Run the callbacks that wait, and those that they cause, each once (mode ``inline``). Raises what a job raises."""
        drain, seen = _Drain(self, None), set[Jid]()
        while jid := next(self._callbacks(seen), None):
            seen.add(jid)
            drain.run_once(jid)

    def _callbacks(self, seen: set[Jid]) -> Iterator[Jid]:
        for shard in self._shards.values():
            look = self.look(shard, _ALL)
            for job in (*(one for queue in look.queues for one in queue), *look.due["schedule"]):
                if BATCH_EVENT in job.payload and job.payload["jid"] not in seen:
                    yield job.payload["jid"]

    def look(self, shard: FakeShard, most: int) -> _Look:
        """Return the first jobs of each place of a shard, ``most`` at most."""
        found: Any = shard.client.eval(_LOOK, 0, most)
        holds, cancels, *due = found[:4]
        jobs = [
            [StoredJob(shard.name, queue.decode(), data) for data in reversed(listed)] for queue, listed in found[4:]
        ]
        sets: dict[DueSet, list[StoredJob]] = {}
        for name, one in zip(_DUE_SETS, due, strict=True):
            members = zip(one[::2], one[1::2], strict=True)
            sets[name] = [StoredJob(shard.name, name, data, float(score)) for data, score in members]
        whole = max((len(one) for one in (*jobs, *sets.values())), default=0) < most
        return _Look(bool(holds), bool(cancels), sets, jobs, whole)

    def in_order(self, queues: Sequence[Sequence[StoredJob]]) -> Iterator[StoredJob]:
        """Yield the jobs of these queues in the order in which they came there."""
        left: list[list[StoredJob]] = [list(reversed(queue)) for queue in queues if queue]
        while left:
            first: list[StoredJob] = min(left, key=lambda queue: self._arrival(queue[-1]))
            yield first.pop()
            if not first:
                left.remove(first)

    def view(self, stored: StoredJob) -> Job:
        """Return a job as hooks see it: with decompressed arguments, and in the sets with its time."""
        payload = dict(stored.payload)
        if payload.get(COMPRESSED):
            sizes = self._settings.size_limit
            protected = self.client.protection.reader
            decompress_arguments(payload, sizes.decompressed_limit, sizes.decoded_limit, protected=protected)
        if stored.place in _DUE_SETS:
            payload["at"] = stored.due
        return Job(payload)

    def _arrival(self, job: StoredJob) -> tuple[float, int]:
        payload = job.payload
        # Jobs of one moment, as a clock that stands has many: as they were pushed.
        return timestamp(payload.get("enqueued_at")) or 0.0, self.client.order.get(str(payload.get("jid")), _LAST)

    def _views(self, found: Sequence[StoredJob], worker: WorkerClass | None) -> list[Job]:
        return [job for job in map(self.view, found) if belongs_to(job, worker)]


def _by_time(looks: Sequence[_Look], place: DueSet) -> list[StoredJob]:
    return sorted((job for look in looks for job in look.due[place]), key=lambda job: job.due)


class _Drain:
    """One call that runs jobs. It has workers of its own: middlewares, flags and classes are read again."""

    def __init__(self, jobs: FakeJobs, worker: WorkerClass | None) -> None:
        self._jobs = jobs
        self._worker = worker
        self._tools = jobs.client.tools()
        self._shards = self._tools.shards
        self._workers: dict[str, FakeWorker] = {}
        self._looks: dict[str, _Look] = {}
        self._tried: set[Jid] = set()
        """Jobs that a policy has held or deferred, or whose move a client middleware refused: the next call tries them again."""
        self._steps: Counter[str] = Counter()
        for name, shard in self._shards.items():
            if jobs.look(shard, 1).holds:
                self._worker_of(name).do_periodic_work()

    def all(self, *, raise_errors: bool) -> int:
        runs = 0
        while (found := self._next()) is not None:
            counted, error = self._run(found)
            runs += counted
            if not counted:
                self._tried.add(str(found.payload.get("jid")))
            if error is not None and (raise_errors or not isinstance(error, Exception)):
                raise error
        return runs

    def one(self) -> Job | None:
        found = self._next()
        if found is None:
            return None
        job = self._jobs.view(found)
        _, error = self._run(found)
        if error is not None:
            raise error
        return job

    def run_once(self, jid: Jid) -> None:
        def find(place: DueSet | None) -> StoredJob | None:
            for name, shard in self._shards.items():
                look = self._looks[name] = self._jobs.look(shard, _ALL)
                listed = look.due[place] if place is not None else [job for queue in look.queues for job in queue]
                if found := next((job for job in listed if job.payload.get("jid") == jid), None):
                    return found
            return None

        scheduled = find("schedule")
        if scheduled is not None:
            self._move_due("schedule", scheduled)
        queued = find(None)
        if queued is not None:
            _, error = self._run(queued)
            if error is not None:
                raise error

    def _next(self) -> StoredJob | None:
        """Return the next job that can run, after the moves that bring it into its queue."""
        clock = self._jobs.clock
        most = _FIRST_LOOK
        while True:
            looks = self._looks = {name: self._jobs.look(shard, most) for name, shard in self._shards.items()}
            place, waiting = self._next_due()
            queued = self._next_queued()
            if (waiting is None or queued is None) and not all(look.whole for look in looks.values()):
                most *= 50
                continue
            if waiting is None or waiting.due > clock():
                if queued is not None:
                    self._count(queued)
                    return queued
                if waiting is None or clock.frozen:
                    return None
                clock.move_to(waiting.due)
            self._count(waiting)
            if not self._move_due(place, waiting):
                self._tried.add(str(waiting.payload.get("jid")))

    def _next_due(self) -> tuple[DueSet, StoredJob | None]:
        """Return the scheduled job or retry with the earliest time, and its set."""
        found: list[tuple[DueSet, StoredJob]] = []
        for place in _DUE_SETS:
            first = next(filter(self._is_wanted, _by_time(list(self._looks.values()), place)), None)
            if first is not None:
                found.append((place, first))
        return min(found, key=lambda one: one[1].due, default=("schedule", None))

    def _next_queued(self) -> StoredJob | None:
        wanted = [list(filter(self._is_wanted, queue)) for look in self._looks.values() for queue in look.queues]
        return next(self._jobs.in_order([queue[:1] for queue in wanted]), None)

    def _is_wanted(self, job: StoredJob) -> bool:
        return belongs_to(Job(job.payload), self._worker) and job.payload.get("jid") not in self._tried

    def _run(self, job: StoredJob) -> tuple[bool, BaseException | None]:
        return self._worker_of(job.shard).run(job.place, job.data, cancels=self._looks[job.shard].cancels)

    def _move_due(self, place: DueSet, job: StoredJob) -> bool:
        return self._worker_of(job.shard).move_due(place, job.data, job.due)

    def _worker_of(self, shard: str) -> FakeWorker:
        if shard not in self._workers:
            self._workers[shard] = FakeWorker(self._shards[shard], self._tools)
        return self._workers[shard]

    def _count(self, job: StoredJob) -> None:
        self._steps[str(job.payload.get("class"))] += 1
        if self._steps.total() > MAX_STEPS:
            name, number = self._steps.most_common(1)[0]
            raise EndlessJobsError(
                f"the jobs do not end after {MAX_STEPS:,} steps, {number:,} of them by {name}: each pushes another, or asks to run "
                "again. Use perform_one, or a frozen clock."
            )
