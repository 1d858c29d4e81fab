"""What ``self.cancelled`` of a running job says: whether Redis has a cancellation of it, Ruby's ``Client#cancel!`` for one.

The field ``cancelled`` of the hash ``it-JID`` is asked for by a job that asks ``self.cancelled``, and by no other: at once the first
time, where that holds up nothing but the job's own thread; from then on by one pipeline for all such jobs, every few seconds,
as Sidekiq does. A Redis that does not answer, or refuses, cancels nothing.
"""

import threading
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import redis
from redis.exceptions import RedisError

from framework.declare.misuse import running_loop
from framework.types import Jid
from framework.wire import keys

ITERATION_TTL_S = 30 * 86_400
"""How long Sidekiq keeps the hash."""

_CANCELLED, _CURSOR = "cancelled", "c"
_NO_CURSOR = "null"


class Cancellation:
    """Of one run. ``cancelled`` never becomes false again."""

    __slots__ = ("__weakref__", "cancelled", "jid")

    def __init__(self, jid: Jid) -> None:
        self.jid = jid
        self.cancelled = False


class Cancellations:
    """Those of one process's running jobs that have asked. ``client`` is for any thread."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client
        self._watched = WeakSet[Cancellation]()
        self._lock = threading.Lock()

    def watch(self, jid: Jid) -> Cancellation:
        """Return that of a job which asks for the first time; kept up to date while the job has it."""
        cancellation = Cancellation(jid)
        if not jid:
            return cancellation
        with self._lock:
            self._watched.add(cancellation)
        if running_loop() is None:  # an async job must not wait for Redis: it hears of it from ``look``
            with suppress(RedisError, OSError):
                self._query([cancellation])
        return cancellation

    def refresh(self) -> None:
        """Ask for all of them; to be called every few seconds. Raises redis errors."""
        with self._lock:
            asked = [one for one in self._watched if not one.cancelled]
        if asked:
            self._query(asked)

    def _query(self, watched: list[Cancellation]) -> None:
        pipeline: Any = self._client.pipeline(transaction=False)
        for one in watched:
            pipeline.hget(keys.iteration(one.jid), _CANCELLED)
        replies = pipeline.execute(raise_on_error=False)
        found = [one for one, reply in zip(watched, replies, strict=True) if isinstance(reply, bytes)]
        if found:
            self._add_cursors(found)
        for one in found:
            one.cancelled = True

    def _add_cursors(self, found: list[Cancellation]) -> None:
        """Where there is no cursor beside it, Sidekiq 8.1's pages that show the job answer 500, and its own jobs raise."""
        pipeline: Any = self._client.pipeline(transaction=False)
        for one in found:
            pipeline.hsetnx(keys.iteration(one.jid), _CURSOR, _NO_CURSOR)
            pipeline.expire(keys.iteration(one.jid), ITERATION_TTL_S)
        with suppress(RedisError, OSError):  # refused, or full: the cancellation holds all the same
            pipeline.execute(raise_on_error=False)
