"""Write the states of tracked jobs. A state may be lost, a job never: no failure here changes how the job ends."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

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
"""Errors under which Redis takes no write at all, so no acknowledgement either."""


# The status of a job never decides about the job. Without its key it is unknown; at GitLab a missing key reads as completed.
class StatusWriter:
    """Write the states of one shard's jobs; ``on_write_failed`` is called for a state that was not written."""

    def __init__(self, shard: Shard, on_write_failed: OnWriteFailed) -> None:
        self._shard = shard
        self.on_write_failed = on_write_failed

    def write(self, tracked: TrackedJob, state: JobState) -> None:
        """Write a state, or report the failure. Raises nothing; waits for Redis no longer than one command may take."""
        try:
            self._shard.write_status(tracked.command(state))
        except ShardUnavailableError as error:
            self.on_write_failed(tracked, state, error)

    def write_last(self, tracked: TrackedJob, state: JobState | None) -> None:
        """Write the last state of a job, just before its acknowledgement. ``None`` writes nothing.

        Raises redis errors while Redis is away: the acknowledgement could not be written either, so both are tried again.
        """
        if state is None:
            return
        try:
            SET_STATUS(self._shard.client, [keys.status(tracked.jid)], [state, tracked.ttl_s])
        except _UNAVAILABLE:
            raise
        except RedisError as error:
            self.on_write_failed(tracked, state, error)

    def write_last_if_tracked(self, payload: Payload, state: JobState) -> None:
        """Write the last state of a job if it is tracked."""
        found = tracked_job(payload)
        if found is not None:
            self.write_last(found, state)


class StatusWrite(NamedTuple):
    """The state that a script writes with its move."""

    tracked: TrackedJob
    state: JobState
    lifetime_s: int


def status_write(tracked: TrackedJob | None, state: JobState | None, delay_s: float = 0.0) -> StatusWrite | None:
    """Return the status that a script writes for a job that then waits ``delay_s``; ``None`` for an untracked one, or no state."""
    return None if tracked is None or state is None else StatusWrite(tracked, state, tracked.lifetime_s(delay_s))
