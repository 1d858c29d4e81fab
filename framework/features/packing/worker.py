"""Pack the long queues of a shard in a worker process that leads, in a thread of its own."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from redis.client import Pipeline

from framework.admin.statistics import named_queues
from framework.declare import registry
from framework.features.packing.packer import QueuePacker
from framework.features.packing.settings import PackingSettings
from framework.process.record import read_processes
from framework.process.worker_parts import OwnTask, ProcessContext, WorkerPart
from framework.text import decode_escaped
from framework.wire import keys
from framework.wire.blocks import MAX_JOBS
from framework.wire.sub_queues import SEPARATOR, parent_of

_PERIOD_S = 2.0
"""How often the queues are looked at while none is packed."""

_REDIS_SHARE = 0.2
_LONGEST_PAUSE_S = 0.1
"""A pause between two runs: packing takes a fifth of Redis's time at most, and goes on in a busy process."""

_FORGET_AFTER_S = 120.0
"""For how long a queue with blocks has no list before it counts as deleted: longer than a dead process keeps a block."""


def worker_part(process: ProcessContext) -> WorkerPart:
    """Return the part of packing in a worker process; none while ``packing_depth`` is 0. A fetch unpacks blocks in any case."""
    depth = PackingSettings.of(process.settings).packing_depth
    if not depth:
        return WorkerPart()
    packer = ShardPacker(process, depth)
    return WorkerPart(tasks=(OwnTask("packing", packer.step),))


class ShardPacker:
    """Pack the queues of the shard of one process while it leads. For one thread."""

    def __init__(self, process: ProcessContext, depth: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._process = process
        self._client = process.upkeep
        self._depth = depth
        self._clock = clock
        self._packers: dict[str, QueuePacker] = {}
        self._absent_since: dict[str, float] = {}

    def step(self) -> float:
        """Pack or unpack one run of each queue that needs it; return the seconds until the next step. Raises redis errors."""
        if not self._process.leads():
            return _PERIOD_S
        began, worked = time.perf_counter() - time.thread_time(), False
        for name, is_ours in self._long_queues():
            packer = self._packers.setdefault(name, QueuePacker(self._client, name, self._depth))
            worked |= packer.pack() if is_ours else packer.unpack()
        # What this thread did not compute, it waited for Redis.
        waited_s = time.perf_counter() - time.thread_time() - began
        return min(_LONGEST_PAUSE_S, waited_s * (1 / _REDIS_SHARE - 1)) if worked else _PERIOD_S

    def _long_queues(self) -> Iterator[tuple[str, bool]]:
        """Yield the queues with many jobs or with blocks, and whether only processes of this framework serve them."""
        counts: Any = self._client.hgetall(keys.PACKED_BLOCKS)
        packed = set(map(decode_escaped, counts))
        named = list(map(decode_escaped, named_queues(self._client)))
        divided = {parent_of(name) for name in named if SEPARATOR in name}
        ruby = {queue for one in read_processes(self._client) if one.is_ruby for queue in one.queues}
        ours = self._own_queues() - divided - ruby
        candidates = sorted(packed.union(ours.intersection(named)))
        pipeline: Any = self._client.pipeline(transaction=False)
        for name in candidates:
            pipeline.llen(keys.queue(name))
        for name, length in zip(candidates, pipeline.execute(raise_on_error=False), strict=True):
            if not isinstance(length, int):
                continue
            if not length:
                self._forget_deleted(name)
            elif name in packed or length >= self._depth + MAX_JOBS:
                self._absent_since.pop(name, None)
                yield name, name in ours

    def _own_queues(self) -> set[str]:
        """Return the queues that this process serves, and those to which its classes are routed."""
        process = self._process
        served = {name for plan in process.plans for name in plan.order.names}
        routes = (process.router.route(worker.declaration()) for worker in registry.workers())
        return served.union(route.queue for route in routes if route.shard == process.shard.name)

    def _forget_deleted(self, name: str) -> None:
        """Forget the blocks of a queue whose list another program has deleted."""
        if self._clock() - self._absent_since.setdefault(name, self._clock()) < _FORGET_AFTER_S:
            return
        aside = keys.working(keys.migration_identity(name))

        def forget(pipeline: Pipeline) -> None:
            exists = pipeline.exists(keys.queue(name), aside)
            pipeline.multi()
            if not exists:
                pipeline.hdel(keys.PACKED, name)
                pipeline.hdel(keys.PACKED_BLOCKS, name)

        self._client.transaction(forget, keys.queue(name), aside)
        del self._absent_since[name]
        self._packers.pop(name, None)
