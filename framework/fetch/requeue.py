"""Giving jobs of ours back to the right end of their queues, so that they are the next to run."""

from typing import Any

import redis

from framework.fetch.unit_of_work import UnitOfWork
from framework.store.script import REQUEUE
from framework.wire import keys


def requeue(client: "redis.Redis", identity: str, jobs: list[tuple[UnitOfWork, bytes]]) -> int:
    """Give jobs (oldest first, each with the bytes to store) back; return how many were ours. Raises redis errors."""
    if not jobs:
        return 0
    youngest_first = list(reversed(jobs))
    held = [unit.resources_on_requeue() for unit, _ in youngest_first]
    returned: Any = REQUEUE(
        client,
        [keys.working(identity), keys.QUEUES, *(keys.queue(unit.queue) for unit, _ in youngest_first)],
        [
            len(jobs),
            *(unit.data for unit, _ in youngest_first),
            *(data for _, data in youngest_first),
            *(unit.queue for unit, _ in youngest_first),
            *(held if any(held) else ()),
        ],
    )
    return int(returned)
