"""Writing the states of tracked jobs while they run. A state is no part of a job's fate: it may be missed, the job may not."""

from collections.abc import Callable
from typing import TypeAlias

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.errors import ShardUnavailableError
from framework.shard.shard import Shard
from framework.store.script import SET_STATUS
from framework.types import JobState, Payload
from framework.wire import keys
from framework.wire.status_key import TrackedJob, tracked_job

OnWriteFailed: TypeAlias = Callable[[TrackedJob, JobState, BaseException], None]

_UNAVAILABLE = (RedisConnectionError, RedisTimeoutError, ReadOnlyError, OSError)
"""Nothing that changes Redis comes through: no acknowledgement either."""


# Decision 55: the status of a job never decides about the job.
class StatusWriter:
    """The states of the jobs of one shard. ``on_write_failed`` is told of one that was not written."""

    def __init__(self, shard: Shard, on_write_failed: OnWriteFailed) -> None:
        self._shard = shard
        self.on_write_failed = on_write_failed

    def write(self, tracked: TrackedJob, state: JobState) -> None:
        """The state is written, or the failure told; raises nothing, and waits for Redis no longer than one command may take."""
        try:
            self._shard.write_status(tracked.command(state))
        except ShardUnavailableError as error:
            self.on_write_failed(tracked, state, error)

    def write_last(self, tracked: TrackedJob, state: JobState) -> None:
        """As ``write``, of a job that leaves Redis next: it cannot while Redis is away, so its last state need not be missed.

        Raises redis errors while Redis is away.
        """
        try:
            SET_STATUS(self._shard.client, [keys.status(tracked.jid)], [state, tracked.ttl_s])
        except _UNAVAILABLE:
            raise
        except RedisError as error:
            self.on_write_failed(tracked, state, error)

    def write_last_if_tracked(self, payload: Payload, state: JobState) -> None:
        """As ``end``, if the job is tracked."""
        found = tracked_job(payload)
        if found is not None:
            self.write_last(found, state)
