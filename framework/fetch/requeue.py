"""Return jobs to the head of their queues, so that they are the next to run."""

from typing import Any

import redis

from framework.fetch.unit_of_work import UnitOfWork
from framework.store.script import REQUEUE
from framework.wire import keys


def requeue(client: "redis.Redis", identity: str, jobs: list[tuple[UnitOfWork, bytes]]) -> int:
    """Return jobs to their queues, oldest first, each with the bytes to store; return how many this process owned.

    Raises redis errors.
    """
    if not jobs:
        return 0
    youngest_first = list(reversed(jobs))
    resources = [unit.resources_on_requeue() for unit, _ in youngest_first]
    returned: Any = REQUEUE(
        client,
        [keys.working(identity), keys.QUEUES, *(keys.queue(unit.queue) for unit, _ in youngest_first)],
        [
            len(jobs),
            *(unit.data for unit, _ in youngest_first),
            *(data for _, data in youngest_first),
            *(unit.queue for unit, _ in youngest_first),
            *(resources if any(resources) else ()),
        ],
    )
    return int(returned)
