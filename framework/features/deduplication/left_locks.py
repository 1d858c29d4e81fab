"""Delete the locks with ``while_waiting`` that no job has any more, and renew those whose jobs wait for weeks.

Such a lock does not end after a ``ttl``, so it would be left for weeks after its job has gone without its end: another program
deleted the job, a Ruby process ran it, or Redis lost it. A lock is deleted only if all of this holds:

1. it waits for a start, and was taken before the pass that looks for its job;
2. a pass before this one, in the opposite direction, did not find the job either;
3. between both nothing has changed the lock. Each step that moves a job to another place renews its lock, except a fetch, whose
   working list is searched behind the queue, and an operator's move to another queue.

At a crash: the next leader begins anew, and a lock stays for two passes more. A lock that is deleted wrongly, because an operator
moved its job during both passes, lets one equal job be pushed: the class is idempotent, and no job is lost.
"""

import time
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import redis
from redis.client import Pipeline
from redis.exceptions import RedisError, ResponseError

from framework.admin.search import jobs_with_field
from framework.declare.policy_options import WAITING_TTL
from framework.process.worker_parts import ProcessContext
from framework.process_clock import process_clock
from framework.store.connect import server_time
from framework.store.steps import SHARE
from framework.supervised_threads import SupervisedThread
from framework.telemetry import logs
from framework.telemetry.logs import LogRateLimit
from framework.text import decode_escaped, format_count
from framework.wire import keys
from framework.wire.job import timestamp
from framework.wire.json import loads_object
from framework.wire.resources import IDEMPOTENCY_KEY, WAITING_PAYLOAD, lock_of

PERIOD_S = 600.0
"""The time from the end of a pass to the next one."""

_REST = 50.0
"""A pass takes this part of the time at most: it reads every job that has a lock."""

_PAGE = 1_000
_LONGEST_PAUSE_S = 0.1
_LOG_PERIOD_S = 600.0

_LASTING_S = 86_400.0
"""A lock that ends within this time is not looked for: no class with ``while_waiting`` has it."""

_CHANGED_MS = 5_000

_RENEW_S = WAITING_TTL.total_seconds() / 2

_FIELDS = ("jid", "since", "begun", WAITING_PAYLOAD)


class WaitingLock(NamedTuple):
    """A lock whose job waits for its start, and when it ends by the clock of Redis."""

    key: bytes
    jid: str
    since: float
    ends: int
    """In epoch milliseconds."""


class LeftLocks:
    """Look for left locks of one shard. For one thread."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client
        self._suspects = dict[bytes, WaitingLock]()
        """The locks whose jobs the last pass has not found."""
        self._backwards = False
        self._stepped_at = 0.0, 0.0

    def check(self) -> int:
        """Make one pass; return the number of locks that were deleted. Raises redis errors."""
        began = server_time(self._client)
        self._stepped_at = time.monotonic(), time.thread_time()
        present = self._jobs_with_locks()
        self._backwards = not self._backwards
        deleted, suspects = 0, dict[bytes, WaitingLock]()
        for lock in self._waiting_locks():
            if lock.since >= began:
                continue
            if _contains(present, _digest(lock.key, lock.jid)):
                if lock.ends / 1_000 - began < _RENEW_S:
                    self._change(lock, renew=True)
            elif _is_unchanged(lock, self._suspects.get(lock.key)):
                deleted += self._change(lock, renew=False)
            else:
                suspects[lock.key] = lock
        self._suspects = suspects
        return deleted

    def forget(self) -> None:
        """Forget what the last pass has not found: another process leads now."""
        self._suspects = {}

    def _jobs_with_locks(self) -> "array[int]":
        """Return the digests of all jobs with locks, in order: eight bytes each."""
        found = array("Q")
        for data in jobs_with_field(self._client, IDEMPOTENCY_KEY, self._rest, backwards=self._backwards):
            if lock := lock_of(loads_object(data)):
                found.append(_digest(lock.key.encode(), lock.owner))
        return array("Q", sorted(found))

    def _waiting_locks(self) -> Iterator[WaitingLock]:
        cursor = 0
        while True:
            reply: Any = self._client.scan(cursor, match=f"{keys.LOCKS}*", count=_PAGE, _type="hash")
            cursor, page = reply
            yield from self._read(page)
            self._rest()
            if not cursor:
                return

    def _read(self, page: list[bytes]) -> Iterator[WaitingLock]:
        pipeline: Any = self._client.pipeline(transaction=False)
        pipeline.time()
        for key in page:
            pipeline.hmget(key, _FIELDS)
            pipeline.pttl(key)
        (now_s, now_us), *replies = pipeline.execute(raise_on_error=False)
        for key, fields, left_ms in zip(page, replies[::2], replies[1::2], strict=True):
            # A key that another program wrote, or that ends soon in any case.
            if isinstance(fields, ResponseError) or left_ms <= _LASTING_S * 1_000:
                continue
            if lock := _waiting(key, fields, now_s * 1_000 + now_us // 1_000 + left_ms):
                yield lock

    def _change(self, lock: WaitingLock, *, renew: bool) -> bool:
        """Renew or delete a lock that is as it was read; return whether it was."""

        def change(pipeline: Pipeline) -> None:
            fields: Any = pipeline.hmget(cast("str", lock.key), _FIELDS)
            left_ms, now = pipeline.pttl(lock.key), server_time(cast("Any", pipeline))
            found = _waiting(lock.key, fields, round(now * 1_000) + left_ms)
            pipeline.multi()
            if not _is_unchanged(lock, found):
                return
            if renew:
                pipeline.pexpire(lock.key, WAITING_TTL)
            else:
                pipeline.delete(lock.key)

        return self._client.transaction(change, cast("Any", lock.key)) == [1]

    def _rest(self, _key: str = "", _jobs: int = 0) -> None:
        """Leave Redis to others: a pass takes a fifth of its time at most."""
        at, own = self._stepped_at
        waited_s = time.monotonic() - at - (time.thread_time() - own)
        time.sleep(max(0.0, min(_LONGEST_PAUSE_S, waited_s * (1 / SHARE - 1))))
        self._stepped_at = time.monotonic(), time.thread_time()


def _waiting(key: bytes, fields: list[bytes | None], ends: int) -> WaitingLock | None:
    jid, since, begun, member = fields
    at = timestamp(since.decode(errors="replace")) if since is not None else None
    if jid is None or at is None or begun is not None or member is not None:
        return None
    return WaitingLock(key, decode_escaped(jid), at, ends)


def _is_unchanged(lock: WaitingLock, other: WaitingLock | None) -> bool:
    # The time of the call differs from that of each reply; a step that moves the job adds minutes at least.
    return other is not None and other[:3] == lock[:3] and abs(other.ends - lock.ends) < _CHANGED_MS


def _digest(key: bytes, jid: str) -> int:
    # Two equal digests keep a lock for longer.
    return hash((key, jid)) & 0xFFFF_FFFF_FFFF_FFFF


def _contains(digests: "array[int]", digest: int) -> bool:
    at = bisect_left(digests, digest)
    return at < len(digests) and digests[at] == digest


class LeftLockUpkeep:
    """Look for left locks in a thread, from time to time, while this process leads."""

    def __init__(self, process: ProcessContext) -> None:
        self._process = process
        self._locks = LeftLocks(process.upkeep)
        self._next = process_clock.monotonic() + PERIOD_S / 10
        self._thread: SupervisedThread | None = None
        self._rate = LogRateLimit(_LOG_PERIOD_S)

    def step(self) -> None:
        """Begin a pass if it is due and this process leads."""
        if process_clock.monotonic() < self._next or (self._thread is not None and self._thread.is_alive()):
            return
        if not self._process.leads():
            self._locks.forget()
            return
        self._next = process_clock.monotonic() + PERIOD_S
        self._thread = SupervisedThread("left-locks", self._work)
        self._thread.start()

    def _work(self) -> None:
        began = process_clock.monotonic()
        try:
            self._tell(self._locks.check())
        except (RedisError, OSError) as error:
            self._rate.error(
                "check",
                "left locks of deduplicated jobs were not looked for; the next pass tries again. Look at the error",
                "deduplication.check_failed",
                error=error,
            )
        ended = process_clock.monotonic()
        self._next = ended + max(PERIOD_S, _REST * (ended - began))

    def _tell(self, deleted: int) -> None:
        if deleted:
            logs.logger(shard=self._process.shard.name, count=deleted).warning(
                f"{format_count(deleted, 'lock')} of deduplicated jobs had no job any more, and are deleted: equal jobs may be "
                "pushed. Another program deleted the jobs, or Redis lost them; use the commands of this framework to delete jobs",
                event_name="deduplication.locks_left",
            )
