"""Find the queues that wait while a blocking queue has jobs (as in sidekiq-limit_fetch)."""

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import redis

from framework.fetch.queues import QueueOrder
from framework.fetch.unit_of_work import UnitOfWork
from framework.text import decode_escaped
from framework.wire import keys


class BlockingQueues:
    """The blocking queues of a process. Without any, a check costs nothing.

    A blocking queue has jobs while one waits in it, or runs in a process of the shard. Then the process fetches no jobs of the
    queues behind it in the order of its capsule; without a strict order, of no other queue of the capsule that does not block.
    """

    def __init__(
        self,
        client: "redis.Redis",
        names: Collection[str],
        orders: Sequence[QueueOrder],
        running: Callable[[], Sequence[UnitOfWork]],
    ) -> None:
        self._client = client
        self._running = running
        self._behind = _queues_behind(names, orders)

    def blocked(self) -> set[str]:
        """Return the queues that wait now. Raises redis errors."""
        if not self._behind:
            return set()
        busy = {unit.queue for unit in self._running()} & self._behind.keys()
        busy |= self._with_waiting_jobs(self._behind.keys() - busy)
        if busy != self._behind.keys():
            busy |= self._running_elsewhere() & self._behind.keys()
        return {name for queue in busy for name in self._behind[queue]}

    def _with_waiting_jobs(self, names: Collection[str]) -> set[str]:
        pipeline: Any = self._client.pipeline(transaction=False)
        for name in names:
            pipeline.exists(keys.queue(name))
        return {name for name, found in zip(names, pipeline.execute(), strict=True) if found}

    def _running_elsewhere(self) -> set[str]:
        """Return the queues of the running jobs in the records of all processes."""
        listed = cast("set[bytes]", self._client.smembers(keys.PROCESSES))
        pipeline: Any = self._client.pipeline(transaction=False)
        for identity in listed:
            pipeline.hgetall(keys.work(decode_escaped(identity))[0])
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        # A key of another type has no jobs.
        records = [cast("dict[bytes, bytes]", one) for one in replies if isinstance(one, dict)]
        return {queue for record in records for entry in record.values() if (queue := _queue_of(entry))}


def _queues_behind(names: Collection[str], orders: Sequence[QueueOrder]) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for order in orders:
        for position, name in enumerate(order.names):
            if name in names:
                behind = order.names[position + 1 :] if order.mode == "strict" else order.names
                waiting = {one for one in behind if order.mode == "strict" or one not in names} - {name}
                found[name] = found.get(name, frozenset()) | waiting
    return {name: waiting for name, waiting in found.items() if waiting}


def _queue_of(entry: bytes) -> str:
    try:
        content: Any = json.loads(entry)
    except ValueError:
        return ""
    queue = cast("dict[str, Any]", content).get("queue") if isinstance(content, dict) else None
    return queue if isinstance(queue, str) else ""
