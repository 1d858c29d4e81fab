"""Pack the long queues and the many held and deferred jobs of a shard in a worker process that leads, in a thread of its own."""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from redis.client import Pipeline

from framework.admin.held_jobs import held_keys
from framework.admin.statistics import named_queues
from framework.declare import registry
from framework.errors import StoredBlocksError
from framework.features.packing.deferred_packer import DeferredPacker, DeferredReturner, cardinality
from framework.features.packing.held_packer import HeldPacker
from framework.features.packing.packer import QueuePacker
from framework.features.packing.settings import HELD_DEPTH, PackingPlace, PackingSettings
from framework.fetch.held_blocks import packed_held, unpack_next
from framework.process.record import read_processes
from framework.process.worker_parts import OwnTask, ProcessContext, WorkerPart
from framework.store.block_store import IN_REDIS
from framework.store.steps import SHARE
from framework.text import decode_escaped
from framework.wire import keys
from framework.wire.blocks import MAX_JOBS
from framework.wire.sub_queues import SEPARATOR, is_aside, parent_of

_PERIOD_S = 2.0
"""How often the queues are looked at while none is packed."""

_LONGEST_PAUSE_S = 0.1
"""A pause between two rounds: packing takes a fifth of Redis's time at most, and goes on in a busy process."""

_FOR_PACE = 16
"""The steps of a place of which the cheapest says how long Redis needs: a busy machine or process adds to the others."""

_SOON = 1_000
"""The held jobs that are unpacked ahead of those that leave next, where no leader does it."""

_HELD = (keys.LIMITS_WAITING, keys.PAUSED_CLASSES)
"""The keys of which one exists while jobs are held."""

_SCHEDULE_PERIOD_S = 300.0
"""How often a process that does not lead looks whether so many jobs are scheduled that a leader is needed, even if idle."""

_RETURN_S = 1.0
"""For how long the periodic work of a process unpacks deferred jobs that are due soon."""

_FORGET_AFTER_S = 120.0
"""For how long a queue with blocks has no list before it counts as deleted: longer than a dead process keeps a block."""


def worker_part(process: ProcessContext) -> WorkerPart:
    """Return the part of packing in a worker process.

    Every process unpacks what is next, whatever its setting: a fetch the blocks of queues, the periodic work those of held and of
    deferred jobs.
    """
    process.absent.watch(keys.PACKED_HELD)
    process.absent.watch(keys.DEFERRED_PACKED)
    unpacking = WorkerPart(periodic=(HeldUnpacker(process).step, DeferredUnpacker(process).step))
    settings = PackingSettings.of(process.settings)
    if settings.packing_depth == 0:
        return unpacking
    packer = ShardPacker(process, settings.packing_depth, settings.packing_place)
    return unpacking._replace(tasks=(OwnTask("packing", packer.step),))


class HeldUnpacker:
    """Unpack the blocks of held jobs that are next, where no process leads or packs. For one thread of each process."""

    def __init__(self, process: ProcessContext) -> None:
        self._client = process.upkeep
        self._absent = process.absent

    def step(self) -> None:
        """Unpack one block of each set that is soon without jobs. Raises redis errors. Sends nothing while no job is packed."""
        if not self._absent.may_exist(keys.PACKED_HELD):
            return
        packed = packed_held(self._client)
        self._absent.note(keys.PACKED_HELD, found=bool(packed))
        for key in sorted(packed):
            if key != keys.DEFERRED_PACKED.encode():
                # Jobs in a payload store that cannot be read stay held. A log line tells.
                with suppress(StoredBlocksError):
                    self._unpack(key)

    def _unpack(self, key: bytes) -> None:
        if not unpack_next(self._client, key, _SOON) and not self._client.exists(key):
            # Another program has deleted the set.
            self._client.hdel(keys.PACKED_HELD, key)


class DeferredUnpacker:
    """Bring back deferred jobs that are due soon, where no process leads or packs. For one thread of each process."""

    def __init__(self, process: ProcessContext) -> None:
        self._client = process.upkeep
        self._absent = process.absent
        self._returner = DeferredReturner(process.upkeep, process.postpones)

    def step(self) -> None:
        """Unpack or postpone what is due soon, for a second at most. Raises redis errors. Sends nothing while no job is packed."""
        if not self._absent.may_exist(keys.DEFERRED_PACKED):
            return
        end = time.monotonic() + _RETURN_S
        # Jobs in a payload store that cannot be read wait behind their time. A log line tells.
        with suppress(StoredBlocksError):
            while self._returner.step() and time.monotonic() < end:
                pass
        self._absent.note(keys.DEFERRED_PACKED, found=bool(self._client.exists(keys.DEFERRED_PACKED)))


class ShardPacker:
    """Pack the queues, the held and the deferred jobs of the shard of one process while it leads. For one thread.

    ``depth`` is the setting: without it no queue is packed.
    """

    def __init__(
        self,
        process: ProcessContext,
        depth: int | None,
        place: PackingPlace = "redis",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._process = process
        self._client = process.upkeep
        self._store = process.shard.block_store if place == "payload_store" else IN_REDIS
        self._queue_depth = depth
        self._held_depth = HELD_DEPTH if depth is None else depth
        self._clock = clock
        self._packers: dict[str, QueuePacker] = {}
        self._held_packers: dict[bytes, HeldPacker] = {}
        self._deferred_packer = DeferredPacker(self._client, self._held_depth, store=self._store)
        self._returner = DeferredReturner(self._client, process.postpones)
        self._places: list[Callable[[], bool]] = []
        """The steps of the places that had work in the last round."""
        self._look_at = 0.0
        self._waits_s: dict[Callable[[], bool], deque[float]] = {}
        self._absent_since: dict[str, float] = {}
        self._schedule_read_at = -math.inf
        self._has_held = False
        """Whether jobs were held, or many scheduled, once: before that no process has to lead for them."""

    def step(self) -> float:
        """Pack or unpack one run of each place that needs it; return the seconds until the next step. Raises redis errors."""
        # Whoever asks takes part in the lease from then on, which costs commands.
        if not self._needs_leader() or not self._process.leads():
            self._places = []
            return _PERIOD_S
        if not self._places or self._clock() >= self._look_at:
            # To find them costs as many commands as some runs.
            self._places, self._look_at = list(self._find_places()), self._clock() + _PERIOD_S
            self._waits_s = {step: self._waits_s.get(step) or deque(maxlen=_FOR_PACE) for step in self._places}
        self._places = [step for step in self._places if self._worked(step)]
        redis_s = sum(min(self._waits_s[step]) for step in self._places)
        return min(_LONGEST_PAUSE_S, redis_s * (1 / SHARE - 1)) if self._places else _PERIOD_S

    def _find_places(self) -> Iterator[Callable[[], bool]]:
        """Yield the step of each place that may need one."""
        for queue_packer, is_ours in self._packers_of_queues(self._queue_depth):
            yield queue_packer.step if is_ours else queue_packer.unpack
        for held_packer in self._packers_of_held():
            yield held_packer.step
        yield self._return_deferred
        yield self._pack_deferred

    def _worked(self, step: Callable[[], bool]) -> bool:
        """Return whether a step did anything. While the payload store is away, nothing is packed there; a log line tells."""
        began = time.perf_counter() - time.thread_time()
        try:
            worked = step()
        except StoredBlocksError:
            return False
        if worked:
            # What this thread did not compute, it waited for Redis.
            self._waits_s[step].append(time.perf_counter() - time.thread_time() - began)
        return worked

    def _return_deferred(self) -> bool:
        return self._process.absent.may_exist(keys.DEFERRED_PACKED) and self._returner.step()

    def _pack_deferred(self) -> bool:
        packed = self._deferred_packer.step()
        if packed:
            self._process.absent.note(keys.DEFERRED_PACKED, found=True)
        return packed

    def _packers_of_queues(self, depth: int | None) -> Iterator[tuple[QueuePacker, bool]]:
        if depth is None:
            return
        for name, own_depth, is_ours in self._long_queues(depth):
            packer = self._packers.get(name)
            if packer is None or packer.depth != own_depth:
                packer = self._packers[name] = QueuePacker(self._client, name, own_depth, store=self._store)
            yield packer, is_ours

    def _needs_leader(self) -> bool:
        if self._queue_depth is None and not self._has_held and self._may_hold():
            self._has_held = bool(self._client.exists(*_HELD))
        if self._queue_depth is None and not self._has_held:
            self._has_held = self._has_long_schedule()
        return self._queue_depth is not None or self._has_held

    def _has_long_schedule(self) -> bool:
        if self._clock() - self._schedule_read_at < _SCHEDULE_PERIOD_S:
            return False
        self._schedule_read_at = self._clock()
        return cardinality(self._client, keys.SCHEDULE) > self._held_depth

    def _may_hold(self) -> bool:
        return any(map(self._process.absent.may_exist, _HELD))

    def _packers_of_held(self) -> list[HeldPacker]:
        if not self._may_hold():
            return []
        found = [one.key for one in held_keys(self._client)]
        packers = {
            key: self._held_packers.get(key) or HeldPacker(self._client, key, self._held_depth, store=self._store)
            for key in found
        }
        # Those of sets that are empty are forgotten.
        self._held_packers = packers
        return list(packers.values())

    def _long_queues(self, depth: int) -> Iterator[tuple[str, int, bool]]:
        """Yield the queues with many jobs or with blocks, how many stay as they are, and whether only this framework serves them.

        The sub-queues of a queue share its depth.
        """
        counts: Any = self._client.hgetall(keys.PACKED_BLOCKS)
        packed = set(map(decode_escaped, counts))
        named = list(map(decode_escaped, named_queues(self._client)))
        divided = {parent_of(name) for name in named if SEPARATOR in name}
        ruby = {queue for one in read_processes(self._client) if one.is_ruby for queue in one.queues}
        own = self._own_queues() - ruby
        parts = {name for name in named if SEPARATOR in name and parent_of(name) in own and not is_aside(name)}
        ours = (own - divided) | parts
        siblings = Counter(map(parent_of, parts))
        candidates = sorted(packed.union(ours.intersection(named)))
        pipeline: Any = self._client.pipeline(transaction=False)
        for name in candidates:
            pipeline.llen(keys.queue(name))
        for name, length in zip(candidates, pipeline.execute(raise_on_error=False), strict=True):
            if not isinstance(length, int):
                continue
            if not length:
                self._forget_deleted(name)
                continue
            own_depth = max(1, depth // siblings[parent_of(name)]) if name in parts else depth
            if name in packed or length >= own_depth + MAX_JOBS:
                self._absent_since.pop(name, None)
                yield name, own_depth, name in ours

    def _own_queues(self) -> set[str]:
        """Return the queues that this process serves, and those to which its classes are routed."""
        process = self._process
        served = {name for plan in process.plans for name in plan.order.names}
        classes, router = (worker.declaration() for worker in registry.workers()), process.router
        return served.union(router.route(one).queue for one in classes if process.shard.name in router.shards_of(one))

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
