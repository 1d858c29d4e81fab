"""Pack the waiting jobs of long queues into blocks, and unpack the blocks of queues that other programs serve.

A block stands in the queue's own list, at the place of its jobs. The blocks of a queue mostly stand side by side: newer jobs at their
left, and at their right the oldest ones, which stay unpacked. So the packer needs to find only the ends of that row.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import redis

from framework.features.packing.store import PACK
from framework.fetch.blocks import expand, stored_count, unpack
from framework.store.block_store import IN_REDIS, BlockStore
from framework.store.script import NO_KEY
from framework.wire import blocks, keys
from framework.wire.blocks import MAX_BYTES, MAX_JOBS, is_block

_PUSHED_MEANWHILE = 20_000
"""How many jobs may be pushed between the read of a run and its packing."""

_PROBES = 200
"""The elements that one round trip looks at."""

_MAX_MOVED = 500
"""The most elements that leave the queue and return in one step that packs."""

_UNPACKED_BEHIND = 2_000
"""The most elements behind a block that is unpacked: they leave the queue and return."""

_AHEAD = 1_000
"""The jobs that are unpacked ahead of those that are fetched next, so that no process waits for it."""

_MAX_BLOCKS_PASSED = 4_000
"""The most elements before the run that is packed."""

_STEP = 500
"""The most jobs of a step: with a thousand a call held Redis for up to 16 ms."""

_LEAST_STEP = 50
"""The fewest jobs of a step behind many blocks: each step compresses its block anew."""

_AIM_US, _JOB_US, _WALK_US = 2_000.0, 4.0, 0.02
"""The time that a step aims at; what a job of it takes, and each element before it, to which Redis walks for each job."""


class _Grown(NamedTuple):
    """A block with the jobs that it had, or none."""

    block: bytes = b""
    jobs: Sequence[bytes] = ()


class QueuePacker:
    """Pack one queue, or unpack it. For one thread; other processes may do the same at any time."""

    def __init__(
        self,
        client: "redis.Redis",
        queue: str,
        depth: int,
        run: int = MAX_JOBS,
        step: int = _STEP,
        store: BlockStore = IN_REDIS,
    ) -> None:
        self._client = client
        self._store = store
        self._run = run
        self._queue = queue
        self._key = keys.queue(queue)
        self.depth = depth
        self._step = min(step, run)
        self._newest: bytes | None = None
        """The block that this packer has made last at the left end of the row."""

    def step(self) -> bool:
        """Unpack a block that a process takes soon, else pack a run; return whether it did. Raises redis errors."""
        return self._unpack_ahead() or self.pack()

    def _unpack_ahead(self) -> bool:
        # Packing leaves twice as many jobs before the blocks: it does not undo this.
        ahead = min(_AHEAD, self.depth // 2)
        return bool(ahead) and any(map(is_block, self._elements([-ahead]))) and self.unpack()

    def pack(self) -> bool:
        """Pack one run of jobs, if the queue is long enough; return whether it did. Raises redis errors.

        The run joins the block beside it, if that has room, so that a block of a thousand jobs is made in several calls.
        """
        length, count, jobs = self._sizes()
        if length - count + jobs < self.depth + self._run:
            return False
        newer = self._newer(length, count)
        step = self._step
        if newer is None:
            # No block, or none that was found: the new one begins a row.
            return length >= self.depth + self._run and self._pack_run(0, step, is_newest=True)
        if newer > max(_MAX_MOVED, step):
            # Many were pushed at once: a new row begins, and grows towards the other one.
            return self._pack_run(0, step, is_newest=True)
        if newer >= step:
            return self._pack_run(newer - step, newer, is_newest=True, beside=newer)
        end = self._end_of_row(newer, newer + count)
        if length - end < self.depth + self._run or end > _MAX_BLOCKS_PASSED:
            return False
        cheap = round(_AIM_US / (_JOB_US + _WALK_US * end))
        step = min(step, max(_LEAST_STEP, cheap))
        # Another row may follow.
        return self._pack_run(end, self._first(end, end + step, block=True), is_newest=False, beside=end - 1)

    def unpack(self) -> bool:
        """Unpack the block that is next at the right end, if it is near it; return whether it did. Raises redis errors."""
        length, count, _ = self._sizes()
        if not count:
            return False
        for start in range(1, min(length, _UNPACKED_BEHIND) + 1, _PROBES):
            elements = self._elements(range(-start, -start - _PROBES, -1))
            for behind, element in enumerate(elements, start - 1):
                if is_block(element):
                    return unpack(self._client, self._queue, element, behind=behind)
        return False

    def _sizes(self) -> tuple[int, int, int]:
        """Return the elements of the list, the blocks among them, and the jobs in those."""
        pipeline: Any = self._client.pipeline(transaction=False)
        pipeline.llen(self._key)
        pipeline.hget(keys.PACKED_BLOCKS, self._queue)
        pipeline.hget(keys.PACKED, self._queue)
        length, count, jobs = pipeline.execute(raise_on_error=False)
        # A key of another type holds no jobs, or counts none.
        count, jobs = (stored_count(one) if isinstance(one, bytes) else 0 for one in (count, jobs))
        return (length if isinstance(length, int) else 0), count, jobs

    def _newer(self, length: int, count: int) -> int | None:
        """Return the number of jobs before the first block; ``None`` if none was found."""
        if not count:
            return None
        if self._newest is not None:
            found: Any = cast("Any", self._client).lpos(self._key, self._newest, maxlen=_PUSHED_MEANWHILE)
            if found is not None:
                return int(found)
        # One of so many neighbours is among the elements at this distance.
        for start in range(0, min(length, 3 * self._run), count * _PROBES):
            indexes = range(start, min(length, start + count * _PROBES), count)
            for index, element in zip(indexes, self._elements(indexes), strict=False):
                if is_block(element):
                    return self._first(max(0, index - count + 1), index, block=True)
        return None

    def _end_of_row(self, start: int, limit: int) -> int:
        """Return the index behind a row of blocks that begins at ``start``, and ends at ``limit`` at the latest."""
        # In steps that double: another row may begin before ``limit``.
        last, step = start, 1
        while last + step < limit and any(map(is_block, self._elements([last + step]))):
            last, step = last + step, 2 * step
        return self._first(last, min(limit, last + step), block=False)

    def _first(self, start: int, stop: int, *, block: bool) -> int:
        """Return the first index from ``start`` on where a block, or a job, stands; ``stop`` if none does before it.

        From there on all up to ``stop`` are assumed to be of that kind. A wrong answer makes a shorter run, or none.
        """
        while start < stop:
            middle = (start + stop - 1) // 2
            if any(is_block(element) == block for element in self._elements([middle])):
                stop = middle
            else:
                start = middle + 1
        return stop

    def _elements(self, indexes: Sequence[int]) -> list[bytes]:
        """Return the elements at these indexes, without those that do not exist."""
        pipeline: Any = self._client.pipeline(transaction=False)
        for index in indexes:
            pipeline.lindex(self._key, index)
        return [element for element in pipeline.execute() if element is not None]

    def _pack_run(self, start: int, stop: int, *, is_newest: bool, beside: int | None = None) -> bool:
        """Pack the jobs from ``start`` to ``stop``, or as many as a block may have, into the block ``beside`` or a new one."""
        sample = self._elements(range(start, stop, max(1, (stop - start) // 10)))
        if not sample:
            return False
        largest = max(map(len, sample))
        most = max(1, MAX_BYTES // largest)
        if stop - start > most:
            start, stop = (stop - most, stop) if is_newest else (start, start + most)
        jobs = cast("list[bytes]", self._client.lrange(self._key, start, stop - 1))
        if not jobs or any(map(is_block, jobs)):
            return False
        grown = self._with_room(beside, jobs)
        inside = [*jobs, *grown.jobs] if is_newest else [*grown.jobs, *jobs]
        block = blocks.pack(self._queue, inside)
        # While a block grows, each step needs its jobs: it leaves Redis when as many more would be too many.
        if not self._has_room(inside, jobs):
            block = self._store.keep(block)
        # Only jobs are before the newest run, which may leave and return; behind it are blocks, which are large.
        most_moved = min(_MAX_MOVED, 2 * MAX_BYTES // largest) if is_newest else -1
        done = PACK(
            self._client,
            [self._key, keys.PACKED, keys.PACKED_BLOCKS, NO_KEY],
            [self._queue, stop + _PUSHED_MEANWHILE, most_moved, block, grown.block, *jobs],
        )
        if not done:
            self._store.forget(block)
        elif is_newest:
            self._newest = block
        return bool(done)

    def _has_room(self, inside: Sequence[bytes], jobs: Sequence[bytes]) -> bool:
        return len(inside) + len(jobs) <= self._run and sum(map(len, inside)) + sum(map(len, jobs)) <= MAX_BYTES

    def _with_room(self, index: int | None, jobs: Sequence[bytes]) -> _Grown:
        """Return the block at this index, if it may have these jobs too."""
        found = self._elements([] if index is None else [index])
        if not found or not is_block(found[0]) or blocks.stored_id(found[0]) is not None:
            return _Grown()
        if blocks.count(found[0]) + len(jobs) > self._run:
            return _Grown()
        inside = expand(self._client, found[0])
        # One that cannot be read is its own job.
        return _Grown(found[0], inside) if inside[0] is not found[0] and self._has_room(inside, jobs) else _Grown()
