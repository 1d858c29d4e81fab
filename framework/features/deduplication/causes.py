"""Find deduplication locks that no job holds any more, while equal pushes are dropped."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from framework.admin.diagnosis.cause import Cause, CauseCode, CauseReader
from framework.admin.diagnosis.facts import enqueued_at
from framework.command_line import remedy_command
from framework.features.deduplication.admin import HeldLock, read_locks
from framework.text import format_duration
from framework.types import Jid
from framework.wire import keys

_PAGE, _MOST_PAGES = 1_000, 20
_MOST_LOCKS = 20
_MOST_READ = 5_000
_YOUNG_S = 5.0


class LockCauses(CauseReader):
    """Find the locks whose job is nowhere, that have dropped pushes since.

    A lock is searched for among 20,000 keys, and its job among 5,000 jobs of each place; a queue that has only younger jobs needs
    no search.
    """

    alerts: ClassVar[Mapping[CauseCode, Sequence[str]]] = {"lock_left": ("ClassNotDequeued", "JobsSkippedTooLong")}

    def causes(self) -> Iterator[Cause]:
        asked = self.facts.scope.cls
        for lock in self._suspects(asked):
            if (asked is None or lock.worker == asked) and self._is_left(lock):
                yield self._left(lock)

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
        """Return whether the job of a lock is certainly at no place."""
        facts, jid = self.facts, lock.jid
        if any(run.jid == jid for run in facts.runs_now) or any(
            job.payload.get("jid") == jid for job in facts.in_flight
        ):
            return False
        for queue in facts.queues:
            oldest = next((at for job in queue.oldest.jobs if (at := enqueued_at(job)) is not None), None)
            # The next job of a queue is its oldest: one that came before it has left.
            if (oldest is None or oldest <= (lock.since or 0.0) + 1.0) and self._may_be_in_list(
                keys.queue(queue.name), jid
            ):
                return False
        held = [one.key for one in facts.held_keys if one.name == lock.worker]
        sets = (keys.SCHEDULE, keys.RETRY, *held)
        return not any(self._may_be_in_set(key, jid) for key in sets)

    def _may_be_in_list(self, key: str, jid: Jid) -> bool:
        length: Any = self.facts.client.llen(key)
        if length > _MOST_READ:
            return True
        page: Any = self.facts.client.lrange(key, 0, -1)
        return any(jid.encode() in data for data in page)

    def _may_be_in_set(self, key: Any, jid: Jid) -> bool:
        if self.facts.client.zcard(key) > _MOST_READ:
            return True
        page: Any = self.facts.client.zrange(key, 0, -1)
        return any(jid.encode() in data for data in page)

    def _left(self, lock: HeldLock) -> Cause:
        facts = self.facts
        left = "without an end" if lock.left_s is None else f"for another {format_duration(lock.left_s)}"
        since = "" if lock.since is None else f", since {facts.ago(lock.since)}"
        return Cause(
            code="lock_left",
            shard=facts.shard,
            cause=f"a lock of {lock.worker} is left: its job is gone, and equal pushes are dropped as duplicates",
            evidence=[
                f"{lock.key} belongs to the job {lock.jid}{since}, {left}",
                "this job is in no queue, set or process of the shard",
                f"{lock.duplicates:,} pushes dropped as its duplicates",
            ],
            remedy=remedy_command("jobs", "locks", "delete", lock.key),
            effect=f"the next equal push of {lock.worker} is accepted; the {lock.duplicates:,} dropped ones do not come back",
            certainty=9.0,
            jobs=lock.duplicates,
            classes=frozenset({lock.worker}),
        )
