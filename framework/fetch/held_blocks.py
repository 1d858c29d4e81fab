"""Read or unpack blocks of held jobs in their sets, and count the jobs in them (``wire/blocks.py``).

As in ``fetch/blocks.py`` a block may be in the payload store.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import redis

from framework.errors import PayloadError
from framework.fetch.blocks import dead_block, stored_count
from framework.fetch.deferred_blocks import read_jobs
from framework.recover.suspects import quarantine_counter
from framework.store.block_store import block_store
from framework.store.script import NO_KEY, UNPACK_HELD
from framework.wire import blocks, keys
from framework.wire.blocks import HeldMember, is_block

_PAGE = 100
"""The members that one call reads: each may be a block."""


def unpack_held(client: "redis.Redis", key: bytes | str, block: bytes) -> bool:
    """Put the jobs of a block in its place; return false if it is no longer there: another process has unpacked it.

    A block that cannot be read moves to the dead set and is counted as malformed. Raises redis errors.
    """
    entry = series = b""
    members: list[HeldMember] = []
    try:
        members = blocks.unpack_members(block_store(client).read(block))
    except PayloadError as error:
        entry = dead_block(block, error)
        series = quarantine_counter(blocks.PACKED, "malformed").encode()
    places: list[Any] = [key, keys.PACKED_HELD, keys.DEAD, keys.COUNTERS, NO_KEY]
    pairs = [word for one in members for word in (repr(one.score), one.data)]
    done = bool(UNPACK_HELD(client, places, [block, len(members) or blocks.count(block), entry, series, *pairs]))
    if done and not entry:
        block_store(client).forget(block)
    return done


def unpack_next(client: "redis.Redis", key: bytes | str, ahead: int = 1, skip: int = 0) -> bool:
    """Unpack the oldest block of a set if fewer than ``ahead`` jobs are before it; return whether it did. Raises redis errors.

    ``skip`` is the number of members that are passed over at the start.
    """
    block = _next_block(client, key, skip, skip + ahead - 1)
    return block is not None and unpack_held(client, key, block)


def _next_block(client: "redis.Redis", key: bytes | str, first: int, last: int) -> bytes | None:
    found = _members(client, key, last, last)
    if first == last:
        return next(filter(is_block, found), None)
    if not found or not is_block(found[0]):
        # Where the newest jobs begin in this range, blocks may still be before them. In a long set that is not so.
        whole = found and client.zcard(key) > 2 * (last + 1)
        last = first if whole else last
        for start in range(first, last + 1, _PAGE):
            page = _members(client, key, start, min(last, start + _PAGE - 1))
            if block := next(filter(is_block, page), None):
                return block
        return None
    at = first_block(client, key, last, first)
    return next(filter(is_block, _members(client, key, at, at)), None)


def first_block(client: "redis.Redis", key: bytes | str, last: int, first: int = 0) -> int:
    """Return the rank of the first block up to ``last``; ``last`` if there is none. Raises redis errors.

    Blocks are neighbours, and it is found by a binary search: where jobs are between them, it may be a later one.
    """
    while first < last:
        middle = (first + last) // 2
        if any(map(is_block, _members(client, key, middle, middle))):
            last = middle
        else:
            first = middle + 1
    return first


def _members(client: "redis.Redis", key: bytes | str, first: int, last: int) -> list[bytes]:
    return cast("list[bytes]", client.zrange(key, first, last))


def expand_members(
    client: "redis.Redis", key: bytes | str, page: Sequence[tuple[bytes, float]]
) -> list[list[HeldMember]]:
    """Return the jobs of each of these members of a set: of held jobs, or of blocks of deferred ones. Raises redis errors."""
    if has_only_blocks(key):
        return read_jobs(client, page)
    return [expand_member(client, member, score) for member, score in page]


def expand_member(client: "redis.Redis", data: bytes, score: float) -> list[HeldMember]:
    """Return the jobs of a member of a set, the oldest first: itself, unless it is a block that can be read."""
    if is_block(data):
        try:
            return blocks.unpack_members(block_store(client).read(data))
        except PayloadError:
            pass
    return [HeldMember(data, score)]


def has_only_blocks(key: bytes | str) -> bool:
    """Return whether each member of a set is the name of a block."""
    return key in (keys.DEFERRED_PACKED, keys.DEFERRED_PACKED.encode())


def packed_held(client: "redis.Redis") -> Mapping[bytes, int]:
    """Return how many jobs a set of held or deferred jobs has beyond its members, of each set with blocks. Raises redis errors."""
    pipeline: Any = client.pipeline(transaction=False)
    pipeline.hgetall(keys.PACKED_HELD)
    # A key of another type, which counts nothing, answers with an error.
    (reply,) = pipeline.execute(raise_on_error=False)
    found = cast("dict[bytes, bytes]", reply) if isinstance(reply, dict) else {}
    return {key: stored_count(value) for key, value in found.items()}
