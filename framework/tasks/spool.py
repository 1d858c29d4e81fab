"""Keep changes of events in Redis while the database is down, and write them to it afterwards.

``aw:task_events`` on the shard of the jobs: a sorted set of changes as JSON, by time. A script that makes a recorded job writes its
push there, in the same step (``parts/batch.lua``). At a crash: a change is removed after the commit of the transaction that wrote
it. Two processes may write the same change; its second write changes nothing.
"""

from collections.abc import Sequence
from typing import Any, Protocol, cast

import redis

from framework.errors import PayloadError
from framework.shard.shards import Shards
from framework.tasks.apply import write_changes
from framework.tasks.change import EventChange, decode_change
from framework.tasks.database import TaskDatabase
from framework.telemetry import logs
from framework.types import Payload
from framework.wire import keys
from framework.wire.json import loads

_PAGE = 500
_PUSHED = b'{"pushed":'
"""The beginning of an entry that a script has written: a job, its queue, and the time."""


class ScriptPushes(Protocol):
    """Makes the events of jobs that scripts have made."""

    def pushed_by_script(self, payload: Payload, queue: str, at: float) -> EventChange | None:
        """Return the event of a job that a script has made, ``None`` if it is not recorded."""
        ...


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


def drain(client: "redis.Redis", database: TaskDatabase, pushes: ScriptPushes) -> int:
    """Write every change in the spool of a shard to the database; return their number. Raises SQLAlchemyError and redis errors."""
    written = 0
    while True:
        members = _page(client, 0)
        if not members:
            return written
        changes = [one for member in members if (one := _decode(member, pushes)) is not None]
        write_changes(database, changes, late=True)
        client.zrem(keys.TASK_EVENTS, *members)
        written += len(members)


def count_changes(client: "redis.Redis") -> int:
    """Return how many entries of the spool may change an event that the database has: not those of pushes. Raises redis errors."""
    found = start = 0
    while members := _page(client, start):
        found += sum(not member.startswith(_PUSHED) for member in members)
        start += len(members)
    return found


def _page(client: "redis.Redis", start: int) -> list[bytes]:
    found: Any = client.zrange(keys.TASK_EVENTS, start, start + _PAGE - 1)
    return cast("list[bytes]", found)


def _decode(member: bytes, pushes: ScriptPushes) -> EventChange | None:
    try:
        if member.startswith(_PUSHED):
            entry: Any = loads(member, None)
            payload: Payload = loads(entry["pushed"].encode(), None)
            return pushes.pushed_by_script(payload, entry["queue"], float(entry["at"]))
        return decode_change(member)
    except (PayloadError, AttributeError, TypeError, KeyError, ValueError) as error:
        logs.logger().error(
            "an entry of aw:task_events is no change of an event, and is removed. Find the program that wrote it",
            event_name="task_event.malformed",
            error=error,
        )
        return None
