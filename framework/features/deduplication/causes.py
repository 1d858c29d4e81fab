"""Find deduplication locks that no job holds any more, and waiting jobs that have outlived their locks."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from framework.admin.diagnosis.cause import Cause, CauseCode, CauseReader
from framework.admin.diagnosis.facts import QueueFacts, enqueued_at
from framework.admin.search import search
from framework.command_line import remedy_command
from framework.features.deduplication.admin import HeldLock, read_locks
from framework.text import Sentence, format_duration
from framework.wire import keys
from framework.wire.job import BUFFERED_AT, INTERRUPTED_COUNT
from framework.wire.resources import DUPLICATE_OF, lock_of

_PAGE, _MOST_PAGES = 1_000, 20
_MOST_LOCKS = 10
_MOST_JOBS = 100_000
_YOUNG_S = 5.0
_WAITS_S = 60.0
"""A job that waits for less has hardly outlived its lock: its lock was taken over or released."""

_FEWEST = 3
"""The sampled jobs of a class that have outlived their locks, and are the most of it."""

_NOT_OUTLIVED = (BUFFERED_AT, DUPLICATE_OF, INTERRUPTED_COUNT, "retry_count")
"""Fields of jobs that may wait without a lock: another policy held them, they are duplicates, or have begun before."""


class _TooManyJobsError(Exception):
    """The search for a job has read as many jobs as it may."""


def _give_up(_key: str, scanned: int) -> None:
    if scanned > _MOST_JOBS:
        raise _TooManyJobsError


class LockCauses(CauseReader):
    """Find the locks whose job is nowhere, that have dropped pushes since, and the classes whose jobs have outlived their locks.

    Locks are looked for among 20,000 keys, and the job of one among 100,000 jobs: with more of them a lock counts as held, because
    its remedy lets a second job run.
    """

    alerts: ClassVar[Mapping[CauseCode, Sequence[str]]] = {
        "lock_left": ("OrphanLocks", "ClassNotDequeued", "JobsSkippedTooLong"),
        "lock_outlived": ("OldestJobTooOld", "QueueingApdexBurn"),
    }

    def causes(self) -> Iterator[Cause]:
        asked = self.facts.scope.cls
        for lock in self._suspects(asked):
            if (asked is None or lock.worker == asked) and self._is_left(lock):
                yield self._left(lock)
        for queue in self.facts.queues:
            yield from self._outlived_in(queue)

    def _outlived_in(self, queue: QueueFacts) -> Iterator[Cause]:
        """Yield the classes of a queue whose next jobs have no lock any more, or whose locks belong to later jobs."""
        waiting = [
            (job, lock)
            for job in queue.oldest.jobs
            if (lock := lock_of(job.payload)) is not None and not any(name in job.payload for name in _NOT_OUTLIVED)
        ]
        pipeline: Any = self.facts.client.pipeline(transaction=False)
        for _, lock in waiting:
            pipeline.hget(lock.key, "jid")
        owners = pipeline.execute(raise_on_error=False)
        sampled, outlived, taken = Counter[str](), Counter[str](), Counter[str]()
        for (job, lock), owner in zip(waiting, owners, strict=True):
            sampled[job.cls] += 1
            since = enqueued_at(job)
            if since is not None and self.facts.now - since >= _WAITS_S and owner != lock.owner.encode():
                outlived[job.cls] += 1
                taken[job.cls] += owner is not None
        for cls, count in outlived.items():
            if count >= _FEWEST and 2 * count > sampled[cls]:
                yield self._outlived(cls, queue, count, sampled[cls], taken[cls])

    def _outlived(self, cls: str, queue: QueueFacts, count: int, sampled: int, taken: int) -> Cause:
        facts = self.facts
        return Cause(
            code="lock_outlived",
            shard=facts.shard,
            cause=Sentence(
                "jobs of {cls} wait for longer than the ttl of their deduplication locks: equal jobs are pushed meanwhile",
                cls=cls,
            ),
            evidence=[
                Sentence(
                    "{count:,} of the next {sampled:,} jobs of {cls} in the queue {queue} have no lock any more",
                    count=count,
                    sampled=sampled,
                    cls=cls,
                    queue=queue.name,
                ),
                Sentence("of {taken:,} of these a later equal job has the lock, and waits too", taken=taken),
                Sentence("the next job has waited for {time}", time=format_duration(queue.waits_s)),
            ],
            remedy=facts.worker_for(queue.name),
            effect=Sentence(
                "the queue drains faster; with while_waiting = True in its Deduplicate a lock lasts for as long as its job "
                "waits"
            ),
            certainty=5.0,
            jobs=queue.oldest.about(count),
            classes=frozenset({cls}),
            queues=frozenset({queue.name}),
        )

    def _suspects(self, asked: str | None) -> list[HeldLock]:
        """Return the locks that have dropped most pushes, and those of the class that is asked for."""
        cursor, found = 0, list[HeldLock]()
        for _ in range(_MOST_PAGES):
            reply: Any = self.facts.client.scan(cursor, match=f"{keys.LOCKS}*", count=_PAGE, _type="hash")
            cursor, page = reply
            locks = (one for one in read_locks(self.facts.client, page) if self._is_old(one))
            found += [one for one in locks if one.duplicates or one.worker == asked]
            if not cursor:
                break
        return sorted(found, key=lambda one: -one.duplicates)[:_MOST_LOCKS]

    def _is_old(self, lock: HeldLock) -> bool:
        return lock.since is not None and self.facts.now - lock.since > _YOUNG_S

    def _is_left(self, lock: HeldLock) -> bool:
        """Return whether the job of a lock is certainly at no place from which it will run."""
        facts, jid = self.facts, lock.jid
        # The period of `until_expired` goes on after its job.
        if any(run.jid == jid for run in facts.runs_now) or facts.client.hget(lock.key, "begun") == b"period":
            return False
        try:
            found = search(facts.client, jid, _give_up)
        except _TooManyJobsError:
            return False
        return all(one.store.kind in ("dead", "interrupted") for one in found)

    def _left(self, lock: HeldLock) -> Cause:
        facts = self.facts
        left = (
            Sentence("without an end")
            if lock.left_s is None
            else Sentence("for another {time}", time=format_duration(lock.left_s))
        )
        since = "" if lock.since is None else Sentence(", since {since}", since=facts.ago(lock.since))
        return Cause(
            code="lock_left",
            shard=facts.shard,
            cause=Sentence(
                "a lock of {worker} is left: its job is gone, and equal pushes are dropped as duplicates",
                worker=lock.worker,
            ),
            evidence=[
                Sentence(
                    "{key} belongs to the job {jid}{since}, {left}", key=lock.key, jid=lock.jid, since=since, left=left
                ),
                Sentence("this job is in no queue, set or process of the shard from which it would run"),
                Sentence("{duplicates:,} pushes dropped as its duplicates", duplicates=lock.duplicates),
            ],
            remedy=remedy_command("jobs", "locks", "delete", lock.key),
            effect=Sentence(
                "the next equal push of {worker} is accepted; the {duplicates:,} dropped ones do not come back",
                worker=lock.worker,
                duplicates=lock.duplicates,
            ),
            certainty=9.0,
            jobs=lock.duplicates,
            classes=frozenset({lock.worker}),
        )
