"""Pack the deferred jobs of the schedule set into blocks (``fetch/deferred_blocks.py``), and bring them back in time.

Of each class the jobs that are due next stay in the schedule set, and of those behind them, neighbours of one class become a block. A
block whose jobs are due soon is unpacked; while no job of its class may start, its time moves instead, and the jobs stay packed.

At a crash: each step is one script. A job is in the schedule set, or in a block, and due as before.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import redis
from redis.exceptions import ResponseError

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.features.packing.store import PACK_DEFERRED
from framework.fetch.deferred_blocks import (
    DeferredBlock,
    move_times,
    name_block,
    next_blocks,
    read_jobs,
    unpack_deferred,
)
from framework.store.block_store import IN_REDIS, BlockStore
from framework.store.connect import server_time
from framework.store.script import NO_KEY, is_wrong_type
from framework.store.steps import UNPACED, BoundedSteps
from framework.types import Payload
from framework.wire import blocks, keys
from framework.wire.blocks import MAX_BYTES, HeldMember
from framework.wire.job import DEFERRED, DEFERRED_BY
from framework.wire.json import loads_object

Postpones = Callable[[Declaration, Payload], float]
"""Returns for how many seconds a due job stays where it is; 0.0 if it may start."""

AHEAD_S = 20.0
"""How long before its first job is due a block is unpacked: longer than a process needs to see the jobs in the schedule set."""

STAYS_S = 60.0
"""Jobs that are due within this time are not packed."""

_RUN = 200
"""The jobs of a block: five hundred took Redis 9 ms on a busy machine."""

_SPREAD_S, _FEWEST = 300.0, 50
"""The most seconds from the first to the last job of a block, and the fewest jobs that are worth one."""

_PAGE = 50, 1_000
"""The fewest and the most jobs that one call reads."""

_PROBES = 50
"""The jobs that say whether many in the schedule set are deferred."""

_PASS_PERIOD_S = 30.0
"""The time between two looks through the schedule set."""

_SOON = 20
"""The blocks that one step looks at."""

_FILLED = {b"near": 20_000, b"short": 1_000}
"""So many jobs are in the queue, or due soon, while the memory is near its end, or short: those of ``room.lua``."""

_NEEDLE = b'"%s":' % DEFERRED.encode()


def cardinality(client: "redis.Redis", key: str) -> int:
    """Return the number of members of a sorted set; 0 for a key of another type. Raises other redis errors."""
    try:
        return client.zcard(key)
    except ResponseError as error:
        if is_wrong_type(error):
            return 0
        raise


class DeferredReturner:
    """Unpack the blocks of deferred jobs that are due soon, or postpone them. For one thread; other processes may do the same."""

    def __init__(self, client: "redis.Redis", postpones: Postpones) -> None:
        self._client = client
        self._postpones = postpones

    def step(self) -> bool:
        """Unpack one block, or postpone some; return whether any was due soon. Raises redis errors."""
        if not cardinality(self._client, keys.DEFERRED_PACKED):
            return False
        now_s = server_time(self._client)
        soon = [one for one in next_blocks(self._client, 0, _SOON) if one.due <= now_s + AHEAD_S]
        later = dict[bytes, float]()
        for block in soon:
            jobs = read_jobs(self._client, [block])[0]
            first = loads_object(jobs[0].data) if jobs else {}
            delay_s = self._delay_s(block, first)
            if delay_s > 0:
                later[block.name] = now_s + delay_s
            elif self._has_room(first.get("queue"), now_s):
                return unpack_deferred(self._client, block) or True
        move_times(self._client, later, sooner=False)
        return bool(later)

    def _delay_s(self, block: DeferredBlock, first: Payload) -> float:
        worker: Any = registry.find(block.worker)
        return self._postpones(worker.declaration(), first) if worker is not None and first else 0.0

    def _has_room(self, queue: object, now_s: float) -> bool:
        """Return whether jobs of this queue may leave their block: as it empties, near the end of the memory (``room.lua``)."""
        pipeline: Any = self._client.pipeline(transaction=False)
        pipeline.get(keys.MEMORY_PRESSURE)
        pipeline.llen(keys.queue(str(queue)))
        pipeline.zcount(keys.SCHEDULE, "-inf", now_s + AHEAD_S)
        # A key of another type says nothing.
        word, *counts = (None if isinstance(one, Exception) else one for one in pipeline.execute(raise_on_error=False))
        return word not in _FILLED or sum(count or 0 for count in counts) < _FILLED[word]


class _Kind(NamedTuple):
    """The class of deferred jobs, and why they were deferred."""

    worker: str
    by: str


class _Bucket:
    """The deferred jobs of one kind that a look through the schedule set has found."""

    def __init__(self) -> None:
        self.passed = 0
        """The jobs that stay in the schedule set."""
        self.run = list[HeldMember]()
        self.bytes = 0

    def is_full(self, run: int, score: float, size: int) -> bool:
        return bool(self.run) and (
            len(self.run) >= run or self.bytes + size > MAX_BYTES or score - self.run[0].score > _SPREAD_S
        )

    def take(self) -> list[HeldMember]:
        run, self.run, self.bytes = self.run, [], 0
        return run


class DeferredPacker:
    """Pack the deferred jobs of one shard. For one thread; other processes may do the same at any time."""

    def __init__(
        self,
        client: "redis.Redis",
        depth: int,
        run: int = _RUN,
        fewest: int = _FEWEST,
        *,
        stays_s: float = STAYS_S,
        period_s: float = _PASS_PERIOD_S,
        store: BlockStore = IN_REDIS,
    ) -> None:
        self._client = client
        self._store = store
        self._depth = depth
        self._run = run
        self._fewest = fewest
        self._stays_s = stays_s
        self._period_s = period_s
        self._next_pass_at = 0.0
        self._read_to: float | None = None
        """The due time up to which this pass has read; ``None`` between two passes."""
        self._buckets = dict[_Kind, _Bucket]()
        self._steps = BoundedSteps(*_PAGE, rate=UNPACED)
        self._full = list[tuple[_Kind, list[HeldMember]]]()
        """Runs of jobs that were read and become blocks next."""

    def step(self) -> bool:
        """Pack a run, or read the next page; return whether a pass goes on. Raises redis errors."""
        if self._full:
            self._pack(*self._full.pop())
            return True
        if self._read_to is None:
            if time.monotonic() < self._next_pass_at:
                return False
            self._next_pass_at = time.monotonic() + self._period_s
            if not self._has_many():
                return False
            self._read_to, self._buckets = server_time(self._client) + self._stays_s, {}
        self._read_page(self._read_to)
        return True

    def _has_many(self) -> bool:
        """Return whether the schedule set has more deferred jobs than the depth, by a few of its jobs."""
        size = cardinality(self._client, keys.SCHEDULE)
        if size < self._depth + self._run:
            return False
        pipeline: Any = self._client.pipeline(transaction=False)
        for rank in range(0, size, max(1, size // _PROBES)):
            pipeline.zrange(keys.SCHEDULE, rank, rank)
        found = [data for page in pipeline.execute() for data in page]
        deferred = sum(_NEEDLE in data for data in found)
        return bool(found) and size * deferred // len(found) >= self._depth + self._run

    def _read_page(self, read_to: float) -> None:
        size = self._steps.size
        with self._steps.step(size):
            reply: Any = self._client.zrangebyscore(keys.SCHEDULE, f"({read_to:.6f}", "+inf", 0, size, withscores=True)
        page = cast("list[tuple[bytes, float]]", reply)
        for data, score in page:
            if kind := _deferred_kind(data):
                self._add(kind, HeldMember(data, score))
        if len(page) == size:
            self._read_to = page[-1][1]
            return
        self._full += [(kind, one.take()) for kind, one in self._buckets.items()]
        self._read_to, self._buckets = None, {}

    def _add(self, kind: _Kind, job: HeldMember) -> None:
        bucket = self._buckets.setdefault(kind, _Bucket())
        if bucket.passed < self._depth:
            bucket.passed += 1
            return
        if bucket.is_full(self._run, job.score, len(job.data)):
            self._full.append((kind, bucket.take()))
        bucket.run.append(job)
        bucket.bytes += len(job.data)

    def _pack(self, kind: _Kind, run: Sequence[HeldMember]) -> None:
        if len(run) < max(2, self._fewest):
            return
        name = name_block(*kind, len(run))
        names: list[Any] = [keys.SCHEDULE, keys.DEFERRED_PACKED, keys.DEFERRED_BLOCKS, keys.PACKED_HELD, NO_KEY]
        pairs = [word for one in run for word in (repr(one.score), one.data)]
        block = self._store.keep(blocks.pack_members(run))
        if not PACK_DEFERRED(self._client, names, [name, name.partition(b" ")[0], block, *pairs]):
            # Some have left: the next pass reads them again.
            self._store.forget(block)


def _deferred_kind(data: bytes) -> _Kind | None:
    """Return the kind of a deferred job; ``None`` for another job, and for a class that this process does not know.

    Ruby reads the schedule set for jobs of its own classes.
    """
    if _NEEDLE not in data:
        return None
    payload = loads_object(data)
    worker, by = payload.get("class"), payload.get(DEFERRED_BY)
    if not isinstance(worker, str) or payload.get(DEFERRED) is not True or registry.find(worker) is None:
        return None
    return _Kind(worker, by if isinstance(by, str) and by and " " not in by else "-")
