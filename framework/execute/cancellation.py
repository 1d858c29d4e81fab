"""Read cancellations of running jobs from Redis, for ``self.cancelled`` (Ruby's ``Client#cancel!`` writes them).

Only jobs that read ``self.cancelled`` are looked up: the field ``cancelled`` of the HASH ``it-JID``. The first read of a sync job
asks Redis at once, which delays only its own thread. Then one pipeline asks for all such jobs every few seconds, as Sidekiq
does. If Redis does not answer, or refuses, nothing is cancelled.
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
"""How long Sidekiq keeps the HASH."""

_CANCELLED, _CURSOR = "cancelled", "c"
_NO_CURSOR = "null"


class Cancellation:
    """The cancellation of one run. ``cancelled`` never becomes false again."""

    __slots__ = ("__weakref__", "cancelled", "jid")

    def __init__(self, jid: Jid) -> None:
        self.jid = jid
        self.cancelled = False


class Cancellations:
    """The cancellations that running jobs of this process have read. ``client`` is safe from any thread."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client
        # Weak: a job that has ended drops its cancellation, and no code has to unregister it.
        self._watched = WeakSet[Cancellation]()
        self._lock = threading.Lock()

    def watch(self, jid: Jid) -> Cancellation:
        """Return the cancellation of a job that reads it for the first time; ``refresh`` updates it while the job keeps it."""
        cancellation = Cancellation(jid)
        if not jid:
            return cancellation
        with self._lock:
            self._watched.add(cancellation)
        # An async job must not wait for Redis: `refresh` updates it.
        if running_loop() is None:
            with suppress(RedisError, OSError):
                self._query([cancellation])
        return cancellation

    def refresh(self) -> None:
        """Look up all of them; called every few seconds. Raises redis errors."""
        with self._lock:
            watched = [one for one in self._watched if not one.cancelled]
        if watched:
            self._query(watched)

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
        """Add the cursor field if it is missing: without it Sidekiq 8.1's pages answer 500, and its own jobs raise."""
        pipeline: Any = self._client.pipeline(transaction=False)
        for one in found:
            pipeline.hsetnx(keys.iteration(one.jid), _CURSOR, _NO_CURSOR)
            pipeline.expire(keys.iteration(one.jid), ITERATION_TTL_S)
        # Refused, or maxmemory: the cancellation is valid without it.
        with suppress(RedisError, OSError):
            pipeline.execute(raise_on_error=False)
