"""The queues of ``framework.admin``, and the jobs in them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TypeVar, Unpack

from framework.admin.access import Answers, Listing, ask, collect, iterate, raise_first
from framework.admin.audit import audited
from framework.admin.job_record import JobCriteria, JobFilter, JobQuota, JobRecord, job_filter
from framework.admin.port import current
from framework.admin.queue_actions import OnDropped, check_pause_time, clear_queue, drop_job, pause_queue, unpause_queue
from framework.admin.queue_reader import (
    QueueState,
    is_known,
    known_queues,
    next_jobs,
    read_queues,
    scan_places,
    sub_queues,
)
from framework.admin.search import search_queue
from framework.admin.statistics import OnProgress, ignore_progress
from framework.async_twin import async_items, async_twin
from framework.errors import UnknownNameError
from framework.settings.model import SizeLimitSettings
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.text import Sentence, did_you_mean
from framework.typeguards import is_text, short_repr
from framework.wire import keys

T = TypeVar("T")


class QueuedJob(JobRecord):
    """A job that waits in a queue. ``queue`` is the field of its payload; ``waits_in`` is where it is."""

    def __init__(
        self, shard: str, data: bytes, sizes: SizeLimitSettings, waits_in: str, *, from_left: bool = False
    ) -> None:
        super().__init__(shard, data, sizes)
        self.waits_in = waits_in
        """The name of the queue that it was found in."""
        self._from_left = from_left

    def delete(self) -> bool:
        """Drop the job, with its lock and slots; return false if it is no longer in the queue. It never runs.

        Its state, if it is tracked, becomes ``discarded``. Redis walks through the queue to the job: a millisecond for each
        100,000 jobs on the way.

        Raises:
            ReadOnlyError: the call is inside of a ``read_only`` block.
            ShardUnavailableError: the shard does not answer.
        """

        def step(one: Shard) -> bool:
            return drop_job(one.client, self.waits_in, self.data, from_left=self._from_left)

        what = {"queue": self.waits_in, "jid": self.jid, "class": self.display_class}
        answers = ask(self.shard, audited("QueuedJob.delete", step, what))
        return answers.by_shard[self.shard]

    adelete = async_twin(delete)


def matching_jobs(
    shard: Shard, queue: str, wanted: JobFilter, sizes: SizeLimitSettings, on_progress: OnProgress
) -> Iterator[QueuedJob]:
    """Yield the matching jobs of a queue and its sub-queues, the newest first. As ``scan_queue``."""
    now, needle = server_time(shard.client), wanted.needle
    found = (
        _all_jobs(shard, queue, on_progress)
        if needle is None
        else search_queue(shard.client, (queue, *sub_queues(shard.client, queue)), needle, on_progress)
    )
    for place, data in found:
        job = QueuedJob(shard.name, data, sizes, place, from_left=True)
        if wanted.matches(job, job.enqueued_at, now):
            yield job


def _all_jobs(shard: Shard, queue: str, on_progress: OnProgress) -> Iterator[tuple[str, bytes]]:
    for scanned, job in enumerate(scan_places(shard.client, queue), 1):
        on_progress(keys.queue(queue), scanned)
        yield job


def clear_matching(
    shard: Shard,
    queue: str,
    wanted: JobFilter,
    quota: JobQuota,
    sizes: SizeLimitSettings,
    on_dropped: OnDropped,
    rate: float | None = None,
) -> int:
    """Drop the matching jobs of a queue, as many as the quota has; return their number. ``rate`` and errors as ``clear_queue``."""
    if not wanted:
        return clear_queue(shard.client, queue, on_dropped, rate=rate)
    # A queue without such a job stays as it is: no job is set aside.
    if quota.is_used_up or next(matching_jobs(shard, queue, wanted, sizes, ignore_progress), None) is None:
        return 0
    now = server_time(shard.client)

    def selects(data: bytes) -> bool:
        job = JobRecord(shard.name, data, sizes)
        return wanted.matches(job, job.enqueued_at, now) and quota.take()

    return clear_queue(shard.client, queue, on_dropped, selects, rate)


class Queue:
    """A queue by its name, on one shard, or (without ``shard``) on every shard.

    ``size``, ``latency`` and ``paused`` read Redis at each use; those of a queue from ``queues()`` are as they were listed.
    Reading and acting cover each shard that answers; then the error of another is raised, so that no number is incomplete.

    Raises:
        ValueError: the name is no Unicode text.
        UnknownNameError: an action names a queue that no shard knows: no job, listing, pause or process has it.
        ShardUnavailableError: a shard does not answer; an action was carried out on the others.
        UnknownShardError: the configuration has no such shard.
        ReadOnlyError: an action is inside of a ``read_only`` block.
    """

    def __init__(self, name: str, shard: str | None = None) -> None:
        if not is_text(name):
            raise ValueError(f"Queue({short_repr(name)}): the name of a queue is Unicode text")
        self.name = name
        self.shard = shard
        """The name of its shard; ``None`` for every shard."""
        self._listed: QueueState | None = None

    @classmethod
    def of_state(cls, state: QueueState) -> "Queue":
        """Return the queue of a listing, with the values of that moment."""
        queue = cls(state.name, state.shard)
        queue._listed = state
        return queue

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, shard={self.shard!r})"

    def __iter__(self) -> Iterator[QueuedJob]:
        """Yield its jobs, the newest first, in pages, while it changes.

        A job that stays in it meanwhile is yielded, once if fewer than a hundred jobs are pushed between two pages.
        """
        sizes = current().settings.size_limit
        return iterate(
            self.shard,
            lambda one: (
                QueuedJob(one.name, data, sizes, place, from_left=True)
                for place, data in scan_places(one.client, self.name)
            ),
        )

    def __aiter__(self) -> AsyncIterator[QueuedJob]:
        """Yield as a loop without ``async``, without blocking the event loop."""
        return async_items(self)

    @property
    def size(self) -> int:
        """The number of its jobs."""
        return sum(state.size for state in self.states())

    async def asize(self) -> int:
        """Return ``size`` without blocking the event loop, with its errors."""
        return await asyncio.to_thread(lambda: self.size)

    @property
    def latency(self) -> float:
        """For how long the next job to run has waited, in seconds; 0 for an empty queue, the longest time of several shards."""
        return max(state.latency for state in self.states())

    async def alatency(self) -> float:
        """Return ``latency`` without blocking the event loop, with its errors."""
        return await asyncio.to_thread(lambda: self.latency)

    @property
    def paused(self) -> bool:
        """Whether it is paused, on a shard at least."""
        return any(state.paused for state in self.states())

    async def apaused(self) -> bool:
        """Return ``paused`` without blocking the event loop, with its errors."""
        return await asyncio.to_thread(lambda: self.paused)

    def states(self) -> list[QueueState]:
        """Return size, latency and pause on each of its shards."""
        if self._listed is not None:
            return [self._listed]
        found = _on_all(self.shard, lambda one: read_queues(one, [self.name]))
        return [state for states in found.by_shard.values() for state in states]

    def peek(self, count: int = 25) -> list[QueuedJob]:
        """Return the next jobs to run, at most ``count`` of each shard, the next first."""
        sizes = current().settings.size_limit
        found = _on_all(self.shard, lambda one: next_jobs(one.client, self.name, count))
        return [QueuedJob(name, data, sizes, place) for name, jobs in found.by_shard.items() for place, data in jobs]

    def find(self, jid: str) -> QueuedJob | None:
        """Return its job with this id, or ``None``. Redis searches the whole queue, in steps of a few milliseconds."""
        if not is_text(jid):
            return None
        sizes = current().settings.size_limit
        wanted = JobFilter(jids=frozenset((jid,)))
        found = _on_all(
            self.shard, lambda one: next(matching_jobs(one, self.name, wanted, sizes, ignore_progress), None)
        )
        return next((job for job in found.by_shard.values() if job is not None), None)

    def pause(self, for_s: float | None = None, reason: str = "") -> None:
        """Let no process of this framework fetch from it, until ``unpause``; pushes go on. Ruby's open Sidekiq ignores it.

        After ``for_s`` seconds the pause ends by itself, as soon as a worker process of the shard runs. ``jobs paused`` and
        ``jobs explain`` show the operator, which is the user of this process, and the reason.

        Raises:
            ValueError: ``for_s`` is not above 0, or longer than a year.
        """
        check_pause_time(for_s)
        what = {"seconds": for_s, "reason": reason.strip()}
        self._act("pause", lambda one: pause_queue(one.client, self.name, for_s, reason.strip()), what)

    def unpause(self, reason: str = "") -> None:
        """End the pause. ``jobs paused --history`` shows the operator and the reason."""
        self._act(
            "unpause", lambda one: unpause_queue(one.client, self.name, reason.strip()), {"reason": reason.strip()}
        )

    def clear(self, on_progress: OnDropped | None = None, **criteria: Unpack[JobCriteria]) -> int:
        """Drop the jobs that are in it now, or those of them that match every criterion; return their number. They never run.

        All leave the queue at once. Then they are dropped in steps of a hundred, each with its lock and slots; the state of a
        tracked job becomes ``discarded``. Jobs that do not match go back in their order, the oldest first. ``on_progress`` receives
        the number of dropped jobs after each step. If this process dies in between, a worker process of the shard puts the rest back
        into the queue, and a second call goes on. ``JobCriteria`` explains the criteria.

        Raises:
            TypeError, ValueError: a criterion is unknown, empty, or of a wrong type.
            QueueReplacedError: its key has become one of another type meanwhile.
        """
        wanted, sizes = job_filter(**criteria), current().settings.size_limit
        quota = JobQuota(wanted)
        return sum(
            self._act(
                "clear",
                lambda one: clear_matching(one, self.name, wanted, quota, sizes, on_progress or _ignore),
                {"jobs": wanted or "all"},
            )
        )

    def count(self, **criteria: Unpack[JobCriteria]) -> int:
        """Return the number of its jobs that match every criterion, by reading it. Raises TypeError and ValueError as ``clear``."""
        wanted, sizes = job_filter(**criteria), current().settings.size_limit
        quota = JobQuota(wanted)
        found = _on_all(
            self.shard,
            lambda one: sum(1 for _ in quota.of(matching_jobs(one, self.name, wanted, sizes, ignore_progress))),
        )
        return sum(found.by_shard.values())

    astates = async_twin(states)
    apeek = async_twin(peek)
    afind = async_twin(find)
    apause = async_twin(pause)
    aunpause = async_twin(unpause)
    aclear = async_twin(clear)
    acount = async_twin(count)

    def _act(self, action: str, step: Callable[[Shard], T], what: Mapping[str, object]) -> list[T]:
        """Run the step on each of its shards that knows the queue."""
        act = audited(f"Queue.{action}", step, {"queue": self.name, **what})
        done = _on_all(self.shard, lambda one: [act(one)] if is_known(one, self.name) else [])
        if not any(done.by_shard.values()):
            listed = ask(self.shard, known_queues)
            raise UnknownNameError(
                unknown_queue_message(self.name, {name for found in listed.by_shard.values() for name in found})
            )
        return [result for results in done.by_shard.values() for result in results]


def queues(shard: str | None = None) -> Listing[Queue]:
    """Return the queues of the shard, or of all shards, with size, latency and pause; a queue is listed once for each shard.

    They are the names in ``queues``, Sidekiq's set, and the paused ones.

    Raises:
        ShardUnavailableError: no shard answers.
        UnknownShardError: the configuration has no such shard.
    """
    return collect(shard, lambda one: map(Queue.of_state, read_queues(one)))


aqueues = async_twin(queues)


def unknown_queue_message(name: str, known: set[str]) -> str:
    """Return the message for a queue that no shard knows, with the nearest name."""
    hint = did_you_mean(name, sorted(known))
    return Sentence("no queue is named {name!r}{hint}: no job, pause or process has it", name=name, hint=hint)


def _on_all(shard: str | None, step: Callable[[Shard], T]) -> Answers[T]:
    """Run the step on each shard that answers. Raises the error of the first that did not."""
    answers = ask(shard, step)
    raise_first(answers.unanswered)
    return answers


def _ignore(_dropped: int) -> None:
    """Report no progress."""
