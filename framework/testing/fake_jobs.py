"""Look at the jobs of a fake, and run them."""

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from framework.all_settings import Settings
from framework.declare.setter import declaration_of
from framework.errors import EmptyQueueError, EndlessJobsError
from framework.testing.fake_client import FakeClient
from framework.testing.fake_clock import FakeClock
from framework.testing.memory import Place, StoredJob, Wanted
from framework.testing.memory_policies import Stubs
from framework.testing.memory_worker import DueSet, MemoryWorker
from framework.testing.waiting_jobs import WorkerClass, belongs_to, check_enqueued
from framework.types import Jid
from framework.wire.compress import COMPRESSED, decompress_arguments
from framework.wire.job import Job

MAX_STEPS = 100_000
"""The most runs, and moves of due jobs, of one call: more come from jobs without end."""

_DUE_SETS: tuple[DueSet, ...] = ("schedule", "retry")
Found: TypeAlias = tuple[str, StoredJob]
"""The shard of a job, and the job."""


class FakeJobs:
    """The jobs of ``fake()`` or ``inline()``, in memory, with the stubs and the clock of the test."""

    def __init__(self, settings: Settings, clock: FakeClock, server_middlewares: Sequence[type[Any]] | None) -> None:
        self._stubs = stubs = Stubs(settings, clock)
        self._settings = settings
        self.clock = clock
        """Decides which jobs are due."""
        self.flags, self.limits, self.health, self.replicas = stubs.flags, stubs.limits, stubs.health, stubs.replicas
        self.limiters, self.leases = stubs.limiters, stubs.leases
        self.client = FakeClient(settings, stubs, clock, server_middlewares)
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
        return [*self._jobs(worker, "queue"), *self._jobs(worker, "schedule")]

    def retries(self, worker: WorkerClass | None = None) -> list[Job]:
        """Return the failed jobs that wait for their retry, with its time in ``at``."""
        return self._jobs(worker, "retry")

    def dead(self, worker: WorkerClass | None = None) -> list[Job]:
        """Return the jobs of the dead set."""
        return self._jobs(worker, "dead")

    def held(self, worker: WorkerClass | None = None) -> list[Job]:
        """Return the jobs that a limit or a pause holds."""
        return self._jobs(worker, "held")

    def clear(self) -> None:
        """Forget every job, lock and state. The clock, flags and other stubs stay."""
        for shard in self.client.memory_shards.values():
            shard.memory.clear()
        self.client.recorder.close()

    @contextmanager
    def unavailable(self) -> Generator[None]:
        """Let every push within the block fail with ``ShardUnavailableError``, as if no Redis answered."""
        shards = self.client.memory_shards.values()
        for shard in shards:
            shard.available = False
        try:
            yield
        finally:
            for shard in shards:
                shard.available = True

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

    def view(self, place: Place, stored: StoredJob) -> Job:
        """Return a job as hooks see it: with decompressed arguments, and in the sets with its time."""
        payload = dict(stored.payload)
        if payload.get(COMPRESSED):
            sizes = self._settings.size_limit
            protected = self.client.protection.reader
            decompress_arguments(payload, sizes.decompressed_limit, sizes.decoded_limit, protected=protected)
        if place in _DUE_SETS:
            payload["at"] = stored.due
        return Job(payload)

    def _jobs(self, worker: WorkerClass | None, place: Place) -> list[Job]:
        found = [job for shard in self.client.memory_shards.values() for job in shard.memory.jobs(place)]
        found.sort(key=lambda one: (one.due, one.number) if place in _DUE_SETS else (0.0, one.number))
        views = [self.view(place, stored) for stored in found]
        return [job for job in views if belongs_to(job, worker)]


class _Drain:
    """One call that runs jobs. Each has workers of its own: middlewares, flags and classes are read again."""

    def __init__(self, jobs: FakeJobs, worker: WorkerClass | None) -> None:
        self._jobs = jobs
        self._worker = worker
        tools = jobs.client.tools()
        self._workers = {name: MemoryWorker(shard, tools) for name, shard in jobs.client.memory_shards.items()}
        self._tried: set[Jid] = set()
        """Jobs that a policy has held or deferred, or whose move a client middleware refused: the next call tries them again."""
        self._steps: Counter[str] = Counter()
        for shard in jobs.client.memory_shards.values():
            shard.memory.release_held()

    def all(self, *, raise_errors: bool) -> int:
        runs = 0
        while (found := self._next()) is not None:
            shard, stored = found
            counted, error = self._workers[shard].run(stored)
            runs += counted
            if not counted:
                self._tried.add(str(stored.payload.get("jid")))
            if error is not None and (raise_errors or not isinstance(error, Exception)):
                raise error
        return runs

    def one(self) -> Job | None:
        found = self._next()
        if found is None:
            return None
        shard, stored = found
        job = self._jobs.view("queue", stored)
        _, error = self._workers[shard].run(stored)
        if error is not None:
            raise error
        return job

    def run_once(self, jid: Jid) -> None:
        def has_jid(job: StoredJob) -> bool:
            return job.payload.get("jid") == jid

        scheduled = self._first("schedule", has_jid)
        if scheduled is not None:
            self._workers[scheduled[0]].move_due("schedule", scheduled[1])
        queued = self._first("queue", has_jid)
        if queued is not None:
            _, error = self._workers[queued[0]].run(queued[1])
            if error is not None:
                raise error

    def _next(self) -> Found | None:
        """Return the next job that can run, after the moves that bring it into its queue."""
        clock = self._jobs.clock
        while True:
            waiting = self._next_due()
            if waiting is None or waiting[1][1].due > clock():
                queued = self._first("queue", self._wanted)
                if queued is not None:
                    self._count(queued[1])
                    return queued
                if waiting is None or clock.frozen:
                    return None
                clock.move_to(waiting[1][1].due)
            place, (shard, stored) = waiting
            self._count(stored)
            if not self._workers[shard].move_due(place, stored):
                self._tried.add(str(stored.payload.get("jid")))

    def _next_due(self) -> tuple[DueSet, Found] | None:
        """Return the scheduled job or retry with the earliest time, and its set."""
        found: list[tuple[DueSet, Found]] = [
            (place, one) for place in _DUE_SETS if (one := self._first(place, self._wanted)) is not None
        ]
        return min(found, key=lambda one: one[1][1].due, default=None)

    def _first(self, place: Place, wanted: Wanted) -> Found | None:
        shards = self._jobs.client.memory_shards.items()
        found = [(name, job) for name, shard in shards if (job := shard.memory.first(place, wanted)) is not None]
        return min(found, key=lambda one: (one[1].due if place != "queue" else 0.0, one[1].number), default=None)

    def _wanted(self, job: StoredJob) -> bool:
        return belongs_to(Job(job.payload), self._worker) and job.payload.get("jid") not in self._tried

    def _count(self, stored: StoredJob) -> None:
        self._steps[str(stored.payload.get("class"))] += 1
        if self._steps.total() > MAX_STEPS:
            name, number = self._steps.most_common(1)[0]
            raise EndlessJobsError(
                f"the jobs do not end after {MAX_STEPS:,} steps, {number:,} of them by {name}: each pushes another, or asks to run "
                "again. Use perform_one, or a frozen clock."
            )
