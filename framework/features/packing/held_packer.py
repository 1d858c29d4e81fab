"""Pack the held jobs of one limit or pause into blocks (``wire/blocks.py``).

The oldest jobs stay as they are, and the blocks stand behind them. Jobs that are held later have later scores, and are packed behind
the blocks.
"""

import math
from typing import Any, cast

import redis

from framework.features.packing.store import PACK_HELD
from framework.fetch.blocks import stored_count
from framework.fetch.held_blocks import expand_member, unpack_next
from framework.store.block_store import IN_REDIS, BlockStore
from framework.store.script import NO_KEY
from framework.wire import blocks, keys
from framework.wire.blocks import MAX_BYTES, HeldMember, is_block

_RUN = 500
"""The jobs of a block: a thousand take hardly less memory, and their step twice as long."""

_PROBES = 100
"""The members that are looked at to find the blocks of another process."""

_AHEAD = 2_000
"""The jobs that are unpacked ahead of those that leave next."""


class HeldPacker:
    """Pack one set of held jobs. For one thread; other processes may do the same at any time."""

    def __init__(
        self, client: "redis.Redis", key: bytes, depth: int, run: int = _RUN, store: BlockStore = IN_REDIS
    ) -> None:
        self._client = client
        self._store = store
        self._key = key
        self._depth = depth
        self._run = run
        self._packed_until: float | None = None
        """The score up to which jobs are packed or stay as they are."""

    def step(self) -> bool:
        """Unpack a block that is next soon, else pack a run of jobs; return whether it did. Raises redis errors."""
        size, beyond = self._sizes()
        ahead = min(_AHEAD, self._depth // 2)
        if beyond and ahead and unpack_next(self._client, self._key, ahead):
            return True
        if size + beyond <= self._depth + self._run:
            return False
        if self._packed_until is None or not beyond:
            self._packed_until = self._find_start(size, beyond)
        return self._pack()

    def _sizes(self) -> tuple[int, int]:
        pipeline: Any = self._client.pipeline(transaction=False)
        pipeline.zcard(self._key)
        pipeline.hget(keys.PACKED_HELD, self._key)
        size, beyond = pipeline.execute(raise_on_error=False)
        # A key of another type holds no jobs, or counts none.
        return (size if isinstance(size, int) else 0), stored_count(beyond) if isinstance(beyond, bytes) else 0

    def _find_start(self, size: int, beyond: int) -> float:
        """Return the score behind the blocks of another process, or of the last of the jobs that stay as they are."""
        at = self._depth
        step = max(1, (size - at) // _PROBES)
        found = (
            [rank for rank in range(at, size, step) if any(map(_is_block, self._ranks(rank, rank)))] if beyond else []
        )
        if found:
            # Jobs begin between the last block that was seen and the next probe.
            first, last = found[-1], min(size - 1, found[-1] + step)
            while first < last:
                middle = (first + last + 1) // 2
                if any(map(_is_block, self._ranks(middle, middle))):
                    first = middle
                else:
                    last = middle - 1
            at = first + 1
        before = self._ranks(at - 1, at - 1) if at else []
        return expand_member(self._client, *before[0])[-1].score if before else -math.inf

    def _pack(self) -> bool:
        """Pack the next run of jobs. The newest one stays: the next hold reads its score."""
        start = f"({self._packed_until!r}"
        if self._client.zcount(self._key, start, "+inf") <= self._run:
            return False
        reply: Any = self._client.zrangebyscore(self._key, start, "+inf", 0, self._run, withscores=True)
        run, size = list[HeldMember](), 0
        for data, score in reply:
            size += len(data)
            if is_block(data) or (run and size > MAX_BYTES):
                break
            run.append(HeldMember(data, score))
        if len(run) < 2:
            # A block of another process, or a job that is a megabyte.
            self._packed_until = expand_member(self._client, *reply[0])[-1].score if reply else None
            return bool(reply)
        pairs = [word for one in run for word in (repr(one.score), one.data)]
        places: list[Any] = [self._key, keys.PACKED_HELD, NO_KEY]
        block = self._store.keep(blocks.pack_members(run))
        done = PACK_HELD(self._client, places, [block, *pairs])
        if not done:
            self._store.forget(block)
        # If it was not done, some have left: the next step reads them again.
        self._packed_until = run[-1].score if done else None
        return bool(done)

    def _ranks(self, first: int, last: int) -> list[tuple[bytes, float]]:
        return cast("list[tuple[bytes, float]]", self._client.zrange(self._key, first, last, withscores=True))


def _is_block(member: tuple[bytes, float]) -> bool:
    return is_block(member[0])
