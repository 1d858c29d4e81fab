"""Writing the states of tracked jobs while they run. A state is no part of a job's fate: it may be missed, the job may not."""

from collections.abc import Callable
from typing import TypeAlias

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.errors import ShardUnavailableError
from framework.shard.shard import Shard
from framework.store.script import STATE
from framework.types import JobState, Payload
from framework.wire import keys
from framework.wire.status import Tracked, tracked

Missed: TypeAlias = Callable[[Tracked, JobState, BaseException], None]

_AWAY = (RedisConnectionError, RedisTimeoutError, ReadOnlyError, OSError)
"""Nothing that changes Redis comes through: no acknowledgement either."""


class States:
    """The states of the jobs of one shard. ``missed`` is told of one that was not written."""

    def __init__(self, shard: Shard, missed: Missed) -> None:
        self._shard = shard
        self.missed = missed

    def write(self, tracked: Tracked, state: JobState) -> None:
        """The state is written, or the failure told; raises nothing, and waits for Redis no longer than one command may take."""
        try:
            self._shard.mark(tracked.mark(state))
        except ShardUnavailableError as error:
            self.missed(tracked, state, error)

    def end(self, tracked: Tracked, state: JobState) -> None:
        """As ``write``, of a job that leaves Redis next: it cannot while Redis is away, so its last state need not be missed.

        Raises redis errors while Redis is away.
        """
        try:
            STATE(self._shard.client, [keys.status(tracked.jid)], [state, tracked.kept_s])
        except _AWAY:
            raise
        except RedisError as error:
            self.missed(tracked, state, error)

    def note(self, payload: Payload, state: JobState) -> None:
        """As ``end``, if the job is tracked."""
        found = tracked(payload)
        if found is not None:
            self.end(found, state)
