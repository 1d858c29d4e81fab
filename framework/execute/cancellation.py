"""Know which jobs were cancelled: by ``framework.cancel``, or by Ruby's ``Client#cancel!`` for a job that asks.

``framework.cancel`` marks a job's id in one key of the shard. While that key is missing, nothing is sent: the check for rare keys
has it (``AbsentKeys``). Else each process reads the new marks every few seconds, for all its jobs at once. The id of a job that
starts is compared with the marks in the memory of its process.

Ruby's cancellation is the field ``cancelled`` of the HASH ``it-JID``. Only jobs that read ``self.cancelled`` are looked up there. The
first read of a sync job asks Redis at once, which delays only its own thread. Then one pipeline asks for all such jobs every few
seconds, as Sidekiq does. If Redis does not answer, or refuses, nothing is cancelled.
"""

import threading
from contextlib import suppress
from typing import Any, cast
from weakref import WeakSet

import redis
from redis.exceptions import RedisError, ResponseError

from framework.declare.pushed import running_loop
from framework.execute.event_loop import EventLoop
from framework.store.absent_keys import AbsentKeys
from framework.telemetry.logs import LogRateLimit
from framework.text import decode_escaped
from framework.types import Jid
from framework.wire import keys

_CANCELLED, _CURSOR = "cancelled", "c"
_NO_CURSOR = "null"
# Marks of one read. One that is passed over, because others are removed meanwhile, is read next time.
_PAGE = 10_000
_LOG_INTERVAL_S = 60.0
_ALL = "-inf"
# Marks that a process keeps, at most: 130 MB. The oldest count; a job whose mark is beyond them runs.
_MOST_MARKS = 1_000_000
# Marks of ended jobs that a process keeps, at most, beside as many as there are.
_MOST_ENDED = 1_000


class Cancellation:
    """The cancellation of one run. ``cancelled`` never becomes false again."""

    __slots__ = ("__weakref__", "bid", "is_set", "jid", "seen")

    def __init__(self, jid: Jid, bid: str = "") -> None:
        self.jid, self.bid = jid, bid
        self.is_set = False
        """Whether the job was cancelled."""
        self.seen = False
        """Whether the job has read that it was cancelled."""

    @property
    def cancelled(self) -> bool:
        self.seen = self.is_set
        return self.is_set


class Cancellations:
    """The cancelled jobs of one shard, as one process knows them. ``client`` is safe from any thread; ``loop`` has the async jobs."""

    def __init__(
        self,
        client: "redis.Redis",
        absent: AbsentKeys | None = None,
        loop: EventLoop | None = None,
    ) -> None:
        self._client = client
        self._absent = absent or AbsentKeys()
        self._loop = loop
        # One object for ever: every thread that starts jobs looks into it, without a lock. Only `refresh` changes it.
        self.marked = set[Jid]()
        """The ids of the cancelled jobs that have not ended."""
        self._read_from = _ALL
        # Weak: a job that has ended drops its cancellation, and no code has to unregister it.
        self._watched = WeakSet[Cancellation]()
        self._lock = threading.Lock()
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def watch(self, jid: Jid, bid: str = "", *, asks: bool = True) -> Cancellation:
        """Return the cancellation of a job that reads it for the first time; ``refresh`` updates it while the job keeps it.

        ``bid`` is the batch of the job, whose mark counts too. ``asks``: whether Redis is asked at once.
        """
        cancellation = Cancellation(jid, bid)
        if not jid:
            return cancellation
        with self._lock:
            self._watched.add(cancellation)
        # Behind the addition: a mark that is read now is seen here or by `refresh`.
        if jid in self.marked or bid in self.marked:
            cancellation.is_set = True
        # An async job must not wait for Redis: `refresh` updates it.
        elif asks and running_loop() is None:
            with suppress(RedisError, OSError):
                self._query([cancellation])
        return cancellation

    def set_cancelled(self, jid: Jid) -> None:
        """Let the running job see that it is cancelled, without a mark: other runs of it are not concerned."""
        with self._lock:
            watched = [one for one in self._watched if one.jid == jid]
        for one in watched:
            one.is_set = True

    def refresh(self) -> None:
        """Read the new marks, and look up the jobs that have asked; called every few seconds. Raises redis errors."""
        # Refused by an ACL, or a key of another type: nothing is cancelled.
        with suppress(ResponseError):
            self._read_marks()
        with self._lock:
            watched = [one for one in self._watched if not one.is_set]
        if self.marked:
            for one in watched:
                one.is_set = one.jid in self.marked or one.bid in self.marked
            if self._loop is not None:
                self._loop.cancel_named(self.marked)
            watched = [one for one in watched if not one.is_set]
        if watched:
            self._query(watched)

    def _read_marks(self) -> None:
        """Read the marks since the last read; all of them if some are missing, or if many belong to jobs that have ended."""
        if not self._absent.may_exist(keys.CANCELLED):
            self._forget()
            return
        count, found = self._read_from_score(self._read_from)
        self.marked.update(found)
        if count > len(self.marked) or len(self.marked) > 2 * count + _MOST_ENDED:
            # Redis's clock was set back, or many jobs have ended. Each change is one step: a job that starts meanwhile must not
            # find the set empty.
            count, found = self._read_from_score(_ALL)
            self.marked.update(found)
            self.marked.intersection_update(found)
        if not count:
            self._forget()
        self._absent.note(keys.CANCELLED, found=bool(count))

    def _read_from_score(self, first: str) -> tuple[int, set[Jid]]:
        """Return how many marks count, and those with a score from ``first`` on."""
        found, start = set[Jid](), 0
        most = max(0, _MOST_MARKS - (0 if first == _ALL else len(self.marked)))
        while True:
            pipeline: Any = self._client.pipeline(transaction=False)
            pipeline.zcard(keys.CANCELLED)
            pipeline.zrangebyscore(
                keys.CANCELLED, first, "+inf", start=start, num=min(_PAGE, most - start), withscores=True
            )
            count, page = cast("tuple[int, list[tuple[bytes, float]]]", pipeline.execute())
            found.update(decode_escaped(jid) for jid, _ in page)
            if page:
                # Inclusive: a later mark may have the same score.
                self._read_from = f"{page[-1][1]:.6f}"
            if count > _MOST_MARKS:
                self._log_limit.warning(
                    "marks",
                    f"{count:,} ids are marked as cancelled; a process knows the oldest {_MOST_MARKS:,}, and runs the jobs of the "
                    f"others. Look for the cause of so many members of {keys.CANCELLED}",
                    "cancellation.too_many",
                )
            if len(page) < _PAGE:
                return min(count, _MOST_MARKS), found
            start += _PAGE

    def _forget(self) -> None:
        self.marked.clear()
        self._read_from = _ALL

    def _query(self, watched: list[Cancellation]) -> None:
        pipeline: Any = self._client.pipeline(transaction=False)
        for one in watched:
            pipeline.hget(keys.iteration(one.jid), _CANCELLED)
        replies = pipeline.execute(raise_on_error=False)
        found = [one for one, reply in zip(watched, replies, strict=True) if isinstance(reply, bytes)]
        if found:
            self._add_cursors(found)
        for one in found:
            one.is_set = True

    def _add_cursors(self, found: list[Cancellation]) -> None:
        """Add the cursor field if it is missing: without it Sidekiq 8.1's pages answer 500, and its own jobs raise."""
        pipeline: Any = self._client.pipeline(transaction=False)
        for one in found:
            pipeline.hsetnx(keys.iteration(one.jid), _CURSOR, _NO_CURSOR)
            pipeline.expire(keys.iteration(one.jid), keys.ITERATION_TTL_S)
        # Refused, or maxmemory: the cancellation is valid without it.
        with suppress(RedisError, OSError):
            pipeline.execute(raise_on_error=False)
