"""Read, unpack and postpone blocks of deferred jobs.

A block is no member of the schedule set, which Ruby reads: it has a set of its own. The name of a block there has its id, the number
of its jobs, why they were deferred, and their class; its score is the time at which the first of them is due. The others are due as
long after it as they were when they were packed, so one ``ZADD`` moves the times of all. The bytes of the blocks, or references to
blocks in the payload store, are in a HASH.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import redis

from framework.errors import PayloadError
from framework.fetch.blocks import dead_block
from framework.recover.suspects import quarantine_counter
from framework.store.block_store import BlockStore, block_store
from framework.store.script import NO_KEY, UNPACK_DEFERRED
from framework.text import decode_escaped
from framework.wire import blocks, keys
from framework.wire.blocks import HeldMember
from framework.wire.job import generate_jid

_PAGE = 1_000


class DeferredBlock(NamedTuple):
    """The name of a block of deferred jobs, and when its first job is due, in epoch seconds."""

    name: bytes
    due: float

    @property
    def id(self) -> bytes:
        return self.name.partition(b" ")[0]

    @property
    def jobs(self) -> int:
        """The number of its jobs; 0 in a name that another program wrote."""
        count = self.name.split(b" ", 2)[1:2]
        return int(count[0]) if count and count[0].isdigit() and len(count[0]) < 6 else 0

    @property
    def worker(self) -> str:
        return decode_escaped(b"".join(self.name.split(b" ", 3)[3:]))

    @property
    def by(self) -> str:
        """Why its jobs were deferred."""
        return decode_escaped(b"".join(self.name.split(b" ", 3)[2:3]))


def name_block(worker: str, by: str, jobs: int) -> bytes:
    """Return the name of a new block. No two are equal."""
    return f"{generate_jid()} {jobs} {by} {worker}".encode()


def blocks_of(client: "redis.Redis", worker: str, by: str | None = None) -> list[DeferredBlock]:
    """Return the blocks of a class, of one reason or of all, the first due first. Raises redis errors."""
    return [one for one in all_blocks(client) if one.worker == worker and by in (None, one.by)]


def all_blocks(client: "redis.Redis") -> list[DeferredBlock]:
    """Return all blocks, the first due first: some thousand for a million jobs. Raises redis errors."""
    return [one for page in _pages(client) for one in page]


def count_packed(client: "redis.Redis", worker: str, by: str | None = None) -> int:
    """Return the number of jobs in blocks of a class, of one reason or of all. Raises redis errors."""
    return sum(one.jobs for one in blocks_of(client, worker, by))


def _pages(client: "redis.Redis") -> Iterator[list[DeferredBlock]]:
    start = 0
    while page := next_blocks(client, start, _PAGE):
        yield page
        start += len(page)


def next_blocks(client: "redis.Redis", start: int, most: int) -> list[DeferredBlock]:
    """Return so many blocks from a rank on, the first due first. Raises redis errors."""
    reply: Any = client.zrange(keys.DEFERRED_PACKED, start, start + most - 1, withscores=True)
    return [DeferredBlock(*one) for one in reply]


def read_jobs(client: "redis.Redis", names: Iterable[tuple[bytes, float]]) -> list[list[HeldMember]]:
    """Return the jobs of each of these blocks with the times at which they are due; none of one that cannot be read.

    Raises redis errors.
    """
    found = [DeferredBlock(*one) for one in names]
    stored: Any = client.hmget(keys.DEFERRED_BLOCKS, [one.id for one in found]) if found else []
    store, pairs = block_store(client), zip(found, cast("list[bytes | None]", stored), strict=True)
    return [_jobs_or_none(one, data, store) for one, data in pairs]


def packed_in_order(client: "redis.Redis") -> Iterator[HeldMember]:
    """Yield the jobs in blocks, the first due first. Raises redis errors."""
    waiting = list[tuple[float, bytes]]()
    for page in _pages(client):
        for block in page:
            # No job of this block or of a later one is due before this.
            while waiting and waiting[0][0] <= block.due:
                score, data = heapq.heappop(waiting)
                yield HeldMember(data, score)
            for one in read_jobs(client, [block])[0]:
                heapq.heappush(waiting, (one.score, one.data))
    while waiting:
        score, data = heapq.heappop(waiting)
        yield HeldMember(data, score)


def _jobs_or_none(block: DeferredBlock, data: bytes | None, store: BlockStore) -> list[HeldMember]:
    try:
        return _jobs(block, data, store)
    except PayloadError:
        return []


def _jobs(block: DeferredBlock, data: bytes | None, store: BlockStore) -> list[HeldMember]:
    if data is None:
        raise PayloadError("it is the name of a block of jobs, and its bytes are missing")
    jobs = blocks.unpack_members(store.read(data))
    later_s = block.due - jobs[0].score
    return [one._replace(score=one.score + later_s) for one in jobs]


def unpack_deferred(client: "redis.Redis", block: DeferredBlock) -> bool:
    """Put the jobs of a block into the schedule set; return false if it has gone or its time has changed, and nothing was written.

    A block that cannot be read moves to the dead set and is counted as malformed. Raises redis errors.
    """
    entry = series = b""
    jobs: Sequence[HeldMember] = ()
    data = cast("bytes | None", client.hget(keys.DEFERRED_BLOCKS, cast("str", block.id)))
    try:
        jobs = _jobs(block, data, block_store(client))
    except PayloadError as error:
        entry = dead_block(data or block.name, error)
        series = quarantine_counter(blocks.PACKED, "malformed").encode()
    names: list[Any] = [keys.SCHEDULE, keys.DEFERRED_PACKED, keys.DEFERRED_BLOCKS, keys.PACKED_HELD]
    names += [keys.DEAD, keys.COUNTERS, NO_KEY]
    pairs = [word for one in jobs for word in (f"{one.score:.6f}", one.data)]
    done = bool(
        UNPACK_DEFERRED(client, names, [block.name, block.id, repr(block.due), block.jobs, entry, series, *pairs])
    )
    if done and data is not None and not entry:
        block_store(client).forget(data)
    return done


def move_times(client: "redis.Redis", times: Mapping[bytes, float], *, sooner: bool) -> int:
    """Let these blocks be due at these times, if that is sooner, or later, than now; return how many are. Raises redis errors."""
    if not times:
        return 0
    # XX: a block that was unpacked meanwhile is not added again.
    moved: Any = client.zadd(keys.DEFERRED_PACKED, cast("Any", times), xx=True, lt=sooner, gt=not sooner, ch=True)
    return int(moved)
