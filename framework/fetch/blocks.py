"""Read or unpack a block of jobs where it waits, and count the jobs in blocks (``wire/blocks.py``).

A block may be in the payload store (``store/block_store.py``): then each function that reads its jobs raises StoredBlocksError if the
store cannot be read, and nothing was written.
"""

import time
from collections.abc import Mapping
from typing import Any, cast

import redis

from framework.errors import PayloadError
from framework.recover.suspects import quarantine_counter
from framework.store.block_store import block_store
from framework.store.script import NO_KEY, RETURN_BLOCK, SPLIT_BLOCK, UNPACK
from framework.text import decode_escaped
from framework.types import Payload
from framework.wire import blocks, keys
from framework.wire.blocks import is_block
from framework.wire.json import loads_object
from framework.wire.malformed import dead_set_entry
from framework.wire.sub_queues import SUB_QUEUE, parent_of


def unpack(client: "redis.Redis", queue: str, block: bytes, *, key: str = "", behind: int = 0) -> bool:
    """Put the jobs of a block in its place; return false if it is no longer there: another process has unpacked it.

    ``key`` is the list where the queue was set aside, ``behind`` the number of elements that leave before the block. A block that
    cannot be read moves to the dead set and is counted as malformed. Raises redis errors.
    """
    entry = series = b""
    try:
        jobs = blocks.unpack(block_store(client).read(block))
    except PayloadError as error:
        jobs, entry = [], dead_block(block, error, queue)
        series = quarantine_counter(blocks.PACKED, "malformed").encode()
    places = [key or keys.queue(queue), keys.PACKED, keys.PACKED_BLOCKS, keys.DEAD, keys.COUNTERS, NO_KEY]
    arguments = [queue, block, len(jobs) or blocks.count(block), behind, entry, series, *jobs]
    done = bool(UNPACK(client, places, arguments))
    # The object of a block in the dead set may be restored.
    if done and not entry:
        block_store(client).forget(block)
    return done


def dead_block(block: bytes, error: PayloadError, queue: str = "") -> bytes:
    """Return the entry of the dead set for a block that cannot be read."""
    if blocks.stored_id(block) is None:
        return dead_set_entry(block, error, time.time(), queue)
    return blocks.dead_reference(block, error, time.time(), queue)


def home_of(block: Payload, queue: str) -> str:
    """Return the sub-queue of ``queue`` that a block names, else ``queue``: any program may have written the block."""
    home = block.get(SUB_QUEUE) or block.get("queue")
    return home if isinstance(home, str) and parent_of(home) == queue else queue


def return_jobs(client: "redis.Redis", working: str, queue: str, data: bytes) -> bool | None:
    """Return the jobs of a block that this process has fetched as a job from ``queue`` to the head of their list.

    It was in a sub-queue; or a Ruby process had taken it, and it has not the form of blocks since; or it was in the dead set, and an
    operator has retried it. Return ``None`` for other data; false if this process no longer owns it.

    Raises redis errors, and PayloadError if it cannot be read.
    """
    payload = loads_object(data)
    if payload.get("class") != blocks.PACKED:
        return None
    queue = home_of(payload, queue)
    jobs = blocks.unpack_any(block_store(client).read(data))
    counted = 0 if payload.get(blocks.UNCOUNTED) else len(jobs)
    places = [working, keys.queue(queue), keys.QUEUES, keys.PACKED, keys.PACKED_BLOCKS]
    done = bool(RETURN_BLOCK(client, places, [data, queue, counted, *jobs]))
    if done:
        block_store(client).forget(data)
    return done


def split_block(client: "redis.Redis", queue: str, block: bytes, job: bytes) -> bool:
    """Take a job out of its block, to stand between its neighbours; return false if the block is no longer there.

    Raises redis errors, and ValueError if the block does not have the job.
    """
    jobs = expand(client, block)
    at = jobs.index(job)
    newer, older = (blocks.pack(queue, some) if some else b"" for some in (jobs[:at], jobs[at + 1 :]))
    places = [keys.queue(queue), keys.PACKED, keys.PACKED_BLOCKS, NO_KEY]
    done = bool(SPLIT_BLOCK(client, places, [queue, block, newer, job, older]))
    if done:
        block_store(client).forget(block)
    return done


def expand(client: "redis.Redis", data: bytes) -> list[bytes]:
    """Return the jobs of an element of a queue, the newest first: itself, unless it is a block that can be read."""
    if not is_block(data):
        return [data]
    try:
        return blocks.unpack(block_store(client).read(data))
    except PayloadError:
        return [data]


def true_size(length: int, queue: str, packed: Mapping[str, int]) -> int:
    """Return the number of jobs in a queue whose list has so many elements; ``packed`` is of ``packed_jobs``."""
    return length + packed.get(queue, 0) if length else 0


def packed_jobs(client: "redis.Redis") -> Mapping[str, int]:
    """Return how many jobs a queue has beyond the elements of its list, of each queue with blocks. Raises redis errors.

    A queue whose list is empty has none, whatever this says: another program may have deleted it.
    """
    pipeline: Any = client.pipeline(transaction=False)
    pipeline.hgetall(keys.PACKED)
    pipeline.hgetall(keys.PACKED_BLOCKS)
    # Keys of another type, which count nothing, answer with an error.
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    jobs, count = (cast("dict[bytes, bytes]", reply) if isinstance(reply, dict) else {} for reply in replies)
    return {
        decode_escaped(name): max(0, stored_count(value) - stored_count(count.get(name, b"0")))
        for name, value in jobs.items()
    }


def stored_count(value: bytes) -> int:
    """Return a count of ``aw:packed`` or ``aw:packed:blocks``; 0 for a text that is none."""
    return int(value) if value.isdigit() and len(value) < 16 else 0
