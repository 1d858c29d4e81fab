"""Keep changes of events in Redis while the database is down, and write them to it afterwards.

``aw:task_events`` on the shard of the jobs: a sorted set of changes as JSON, by time. Crash story: a change is removed after the
commit of the transaction that wrote it. Two processes may write the same change; its second write changes nothing.
"""

from collections.abc import Sequence
from typing import Any, cast

import redis

from framework.errors import PayloadError
from framework.shard.shards import Shards
from framework.tasks.apply import write_changes
from framework.tasks.change import EventChange, decode_change
from framework.tasks.database import TaskDatabase
from framework.telemetry import logs
from framework.wire import keys

_PAGE = 500


class ShardSpool:
    """The spool of every shard."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def keep(self, changes: Sequence[EventChange]) -> None:
        """Write the changes to the Redis of their shards. Raises redis errors, and UnknownShardError."""
        by_shard: dict[str, dict[bytes, float]] = {}
        for one in changes:
            by_shard.setdefault(one.shard or "main", {})[one.encode()] = one.at
        for name, members in by_shard.items():
            client: Any = self._shards[name].client
            client.zadd(keys.TASK_EVENTS, members)


def drain(client: "redis.Redis", database: TaskDatabase) -> int:
    """Write every change in the spool of a shard to the database; return their number. Raises SQLAlchemyError and redis errors."""
    written = 0
    while True:
        found: Any = client.zrange(keys.TASK_EVENTS, 0, _PAGE - 1)
        members = cast("list[bytes]", found)
        if not members:
            return written
        changes = [one for member in members if (one := _decode(member)) is not None]
        write_changes(database, changes, late=True)
        client.zrem(keys.TASK_EVENTS, *members)
        written += len(members)


def _decode(member: bytes) -> EventChange | None:
    try:
        return decode_change(member)
    except (PayloadError, TypeError, KeyError) as error:
        logs.logger().error(
            "an entry of aw:task_events is no change of an event, and is removed. Find the program that wrote it",
            event_name="task_event.malformed",
            error=error,
        )
        return None
