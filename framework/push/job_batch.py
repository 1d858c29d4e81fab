"""The jobs of one write; the port through which a push records tracked jobs; and what happens to jobs that Redis does not take."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from framework.declare.declaration import Declaration
from framework.declare.options import TRACKED
from framework.declare.request import BulkRequest, DueTime
from framework.errors import BacklogFullError, ShardUnavailableError
from framework.feature import single_part
from framework.push.deduplication import Deduplication
from framework.route.job_places import JobPlaces
from framework.settings.base import SettingsBase
from framework.shard.held_back import LimitTime
from framework.shard.shard import Shard
from framework.types import Jid, Json
from framework.wire import keys
from framework.wire.accepted import AcceptedLimit, CountedJobs, counted_payloads
from framework.wire.job import set_fields, wire_timestamp
from framework.wire.resources import UniqueJobs, wal_positions_of
from framework.wire.status_key import StatusCommand, TrackedJob


class JobBatch(NamedTuple):
    """Hold jobs for one destination. In columns, because an object for each job of a bulk costs more than the job."""

    queue: str
    payloads: Sequence[bytes]
    jids: Sequence[Jid]
    dues: Sequence[DueTime] | None = None
    """The due times of jobs for the schedule set; ``None`` for jobs that enter their queue now."""
    statuses: Sequence[StatusCommand] = ()
    """The commands that record the tracked jobs as queued."""
    unique: UniqueJobs | None = None
    """The same jobs with the locks of a deduplicated class; the statuses are then part of the lock requests."""
    indexes: Sequence[int] | None = None
    """The places of the jobs in their chunk; ``None`` if they are the whole chunk."""
    lists: Sequence[str] | None = None
    """The sub-queue of each job, where they go to several ones of the queue; those of one are neighbours."""
    counted: CountedJobs | None = None
    """How the jobs of a class with a limit of accepted jobs are counted; ``None`` for any other class."""
    shard: str = ""
    """The shard of the jobs, of the several that their class has; empty for any other class."""

    @property
    def entries(self) -> list[tuple[float, bytes]]:
        """The jobs for the schedule set: due time and payload."""
        return [(due.at, payload) for due, payload in zip(self.dues or (), self.payloads, strict=True)]

    def by_list(self) -> "Sequence[JobBatch]":
        """Return the jobs in batches of one list each."""
        if self.lists is None:
            return (self,)
        places: dict[str, list[int]] = {}
        for place, name in enumerate(self.lists):
            places.setdefault(name, []).append(place)
        return [self.chosen(name, of_list)._replace(lists=None) for name, of_list in places.items()]

    def by_shard(self, chosen: JobPlaces) -> "Sequence[JobBatch]":
        """Return the jobs in batches of one shard each."""
        deciding = self.jids if self.unique is None else self.unique.lock_keys
        places: dict[str, list[int]] = {}
        for place, key in enumerate(deciding):
            places.setdefault(chosen.shard_of(key), []).append(place)
        if len(places) == 1:
            return (self._replace(shard=next(iter(places))),)
        return [self.of_shard(name, on_it) for name, on_it in places.items()]

    def of_shard(self, shard: str, places: Sequence[int]) -> "JobBatch":
        """Return the jobs at these places as jobs of a shard."""
        dues = None if self.dues is None else [self.dues[place] for place in places]
        lists = None if self.lists is None else [self.lists[place] for place in places]
        return self.chosen(self.queue, places)._replace(shard=shard, dues=dues, lists=lists)

    def split(self, count: int) -> "tuple[JobBatch, JobBatch]":
        """Return the first ``count`` jobs, and the others."""
        places = range(len(self.jids))
        parts = self.chosen(self.queue, places[:count]), self.chosen(self.queue, places[count:])
        dues = self.dues
        if dues is None:
            return parts
        return parts[0]._replace(dues=dues[:count]), parts[1]._replace(dues=dues[count:])

    def chosen(self, queue: str, places: Sequence[int]) -> "JobBatch":
        """Return those jobs of a batch for a queue that are at these places, in this order, as jobs of another."""

        def taken(column: Sequence[Any]) -> list[Any]:
            return [column[place] for place in places]

        unique = self.unique
        if unique is not None:
            unique = unique._replace(
                payloads=taken(unique.payloads),
                lock_keys=taken(unique.lock_keys),
                jids=taken(unique.jids),
                details=taken(unique.details) if unique.details else (),
                former=None,
            )
        jids = taken(self.jids)
        # Untracked jobs have no status.
        own = {keys.status(jid) for jid in jids} if self.statuses else ()
        statuses = [status for status in self.statuses if status[1] in own]
        indexes = list(places) if self.indexes is None else taken(self.indexes)
        lists = None if self.lists is None else taken(self.lists)
        return JobBatch(
            queue, taken(self.payloads), jids, None, statuses, unique, indexes, lists, self.counted, self.shard
        )

    def at_commit(self, now: float, extra: Mapping[str, Json]) -> "JobBatch":
        """Return the jobs as of the commit for which they waited: with the time ``now`` and the fields ``extra`` of the commit.

        A WAL position from before the commit would let the job read a replica that does not have the commit.
        """
        fields = {**extra} if self.dues is not None else {"enqueued_at": wire_timestamp(now), **extra}
        if not fields:
            return self
        payloads = [set_fields(payload, fields) for payload in self.payloads]
        if self.unique is None:
            return self._replace(payloads=payloads)
        return self._replace(payloads=payloads, unique=self.unique.at_commit(payloads, wal_positions_of(extra)))


class PushLimit(ABC):
    """How many jobs of a class a shard accepts before some of them end, and what becomes of a job beyond. Shared between threads."""

    time: LimitTime
    """When the next push of the class has to be checked."""
    unseen_bytes = 0
    """About so many bytes were pushed since the last check, as if all jobs of a batch were as large as its first."""

    drop_counter = ""
    """The series that counts the jobs of a class that drops them while its backlog is full; empty for any other class."""

    @abstractmethod
    def accepted(self) -> AcceptedLimit | None:
        """Return the limit of a push made here and now; ``None`` for a class without one.

        Raises:
            BacklogFullError: the class is held back.
        """

    def of_batch(self, batch: "JobBatch") -> AcceptedLimit | None:
        """Return the limit of jobs that a script of a feature writes with other things. Raises as ``accepted``."""
        self.unseen_bytes += len(batch.payloads) * len(batch.payloads[0])
        time = self.time
        if time.next_at > monotonic() and self.unseen_bytes < time.most_unseen:
            return None
        return self.accepted()

    @abstractmethod
    def full(self, error: BacklogFullError, batch: JobBatch, *, locks_when_due: bool) -> Sequence[Jid | None]:
        """Return the ids of jobs that the shard refuses, ``None`` for those that are dropped.

        Raises:
            BacklogFullError: they are neither kept nor dropped.
        """


def counted_batch(batch: JobBatch, limit: AcceptedLimit) -> JobBatch:
    """Return the jobs of a batch as they are counted."""
    payloads, each = counted_payloads(batch.payloads)
    unique = None if batch.unique is None else batch.unique._replace(payloads=payloads)
    return batch._replace(payloads=payloads, unique=unique, counted=CountedJobs(limit, each))


class PayloadBuilder(Protocol):
    """Check arguments and build payloads, for one class with the same options. Shared between threads."""

    def one(
        self, args: list[Any], due: DueTime | None, locks: Deduplication | None, extra: Mapping[str, Json]
    ) -> JobBatch | None:
        """Return a batch of one job with bound ``args``, or ``None`` if a client middleware drops it. Writes nothing.

        Raises:
            ArgumentsError, ExceedLimitError: the job is refused.
        """
        ...

    def check_bulk(self, request: BulkRequest, locks: Deduplication | None) -> deque[Any]:
        """Return the checked arguments of all jobs, an item per chunk. Raises as ``one``, and names the first wrong job."""
        ...

    def chunk(
        self,
        arguments: Any,
        start: int,
        request: BulkRequest,
        first_due_at: float | None,
        locks: Deduplication | None,
        extra: Mapping[str, Json],
    ) -> tuple[int, Sequence[JobBatch]]:
        """Return the number of jobs in one item of ``check_bulk`` and their batches, one per destination.

        ``start`` is the index of its first job, ``first_due_at`` the due time of the bulk's first job by Redis's clock.
        """
        ...


def queued_status(job: TrackedJob, due: DueTime | None) -> StatusCommand:
    """Return the command that records a tracked job as queued, now or for its due time."""
    if due is not None and due.delay_s is not None:
        return job.delayed_command(due.delay_s)
    return job.queued_command(None if due is None else due.at)


TASK_FIELDS: ContextVar[Mapping[str, Json]] = ContextVar("aw_task_fields", default=MappingProxyType({}))
"""The payload fields that name the task to which the jobs pushed here belong."""


class Destination(NamedTuple):
    """Where a push writes: the class and the shard."""

    declaration: Declaration
    shard: str


class PushRecorder:
    """Record jobs before they are written, so that no job exists without its event. This one records nothing."""

    def enqueued(self, destination: Destination, batch: JobBatch) -> None:
        """Record jobs that are about to be written. May be called again for the same jobs.

        Raises:
            TaskDatabaseError, TaskTablesError: they were not recorded, and must not be written.
        """

    def not_written(self, destination: Destination, batch: JobBatch, error: BaseException) -> None:
        """Record that the jobs were certainly not written. Raises nothing."""

    def written(self, destination: Destination, batch: JobBatch) -> None:
        """Record jobs that were written in one step with other things, so that not all of them may have been. Raises nothing.

        The start of a job makes its event if a kill comes first.
        """

    def duplicates(self, destination: Destination, pairs: Sequence[tuple[Jid, Jid]]) -> None:
        """Record dropped duplicates: (id, id of the job that stands for it). Raises nothing."""


def is_recorded(declaration: Declaration, options: Mapping[str, Any]) -> bool:
    """Return whether jobs of a class with these options are recorded."""
    return bool(options.get(TRACKED.name, TRACKED.declared(declaration)))


class PushFallback:
    """Raise for a push that Redis does not take: nothing keeps it. Safe to share between threads, and after a fork."""

    keeps: bool = False
    """Whether pushes return although a shard is down."""

    def keep(self, error: ShardUnavailableError, batch: JobBatch, token: str | None, *, locks_when_due: bool) -> None:
        """Keep a batch whose write failed with ``error``, until Redis takes it.

        ``token`` is that of the failed write. ``locks_when_due``: a delayed job takes its lock when it is due.

        Raises:
            ShardUnavailableError: it is not kept.
        """
        del batch, token, locks_when_due
        raise error

    def start(self) -> None:
        """Begin to push what ended processes have kept."""


NO_FALLBACK = PushFallback()


def open_fallback(settings: SettingsBase, shards: Mapping[str, Shard]) -> PushFallback:
    """Return the fallback of a process with these settings. Opens no file."""
    part = single_part("fallback")
    fallback: PushFallback = NO_FALLBACK if part is None else part.load()(settings, shards)
    return fallback
