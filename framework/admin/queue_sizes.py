"""Read how many jobs the queues of a shard have, and since when the next one waits: one call for 500 queues."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import redis

from framework.admin.figures import number, rows
from framework.store.script import READ_QUEUES
from framework.text import decode_escaped
from framework.wire import keys
from framework.wire.job import timestamp

_QUEUES_AT_ONCE = 500
"""Redis needs a millisecond for them, and serves other clients in between."""


class ListedQueue(NamedTuple):
    """A queue's own list, or a sub-queue."""

    jobs: int
    since: float | None
    """When the next job to run entered it, in epoch seconds; ``None`` without a job, or if it was not asked for."""


class QueueSizes(NamedTuple):
    """The queues and sub-queues of a shard."""

    now: float
    """The time of Redis."""
    paused: frozenset[str]
    queues: dict[str, ListedQueue]
    """By name: those that are listed, and those that are paused."""


def read_queue_sizes(client: "redis.Redis", names: Sequence[str] = (), *, with_times: bool = True) -> QueueSizes:
    """Return all queues, or those of these names with their sub-queues. Raises redis errors."""
    declared = [keys.QUEUES, keys.PAUSED, keys.PACKED, keys.PACKED_BLOCKS]
    cursor: Any = 0
    found, paused, now = dict[str, ListedQueue](), frozenset[str](), 0.0
    while not now or cursor != b"0":
        at, cursor, listed, queues = READ_QUEUES(client, declared, [cursor, _QUEUES_AT_ONCE, int(with_times), *names])
        now, paused = number(at), paused | frozenset(map(decode_escaped, listed))
        # A scan may return a member twice.
        found |= {decode_escaped(name): ListedQueue(jobs, entered_at(since)) for name, jobs, since in rows(queues, 3)}
    return QueueSizes(now, paused, found)


def entered_at(text: bytes) -> float | None:
    """Return a time of ``parts/entered_at.lua`` as epoch seconds; ``None`` if there is none."""
    found = number(text) if text else 0.0
    # Sidekiq 8 writes whole milliseconds.
    return timestamp(int(found) if found.is_integer() else found) if found else None
