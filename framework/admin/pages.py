"""Read a list or a sorted set of jobs in pages: each holds Redis for two milliseconds at most, and nothing is parsed."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import redis
from redis.exceptions import ResponseError

from framework.fetch.held_blocks import packed_held
from framework.store.script import is_wrong_type
from framework.wire.blocks import expand_member

MOST = 2_000
"""The most elements of a page. Redis walks for up to 2 ms to the middle of a list of a million jobs; 2,000 of them take 0.2 ms."""

PAGE_BYTES = 1_000_000
"""The bytes that a page aims at: large jobs make the next one shorter."""

_FIRST = 100
"""The elements of the first page, whose size is not known."""

_BLOCKS = 20
"""The most members of a page of a set with blocks, which are large."""

_ANCHORS = 20
"""The members of a page by whose ranks the next one is found."""


def page_size(page: Sequence[bytes], most: int) -> int:
    """Return how many elements of the size of these to read at once."""
    return max(1, min(most, PAGE_BYTES * len(page) // (sum(map(len, page)) or 1)))


def list_pages(client: "redis.Redis", key: bytes | str, most: int = MOST) -> Iterator[list[bytes]]:
    """Yield a list from its left end on: pushes meanwhile move elements into the next page, so none is missed.

    A key of another type has none. Raises redis errors.
    """
    start, size = 0, min(_FIRST, most)
    try:
        while page := cast("list[bytes]", client.lrange(cast("str", key), start, start + size - 1)):
            yield page
            start, size = start + len(page), page_size(page, most)
    except ResponseError as error:
        if not is_wrong_type(error):
            raise


def ranked_pages(client: "redis.Redis", key: bytes | str, most: int = MOST) -> Iterator[list[tuple[bytes, float]]]:
    """Yield the jobs of a sorted set, with their scores, in the pages of ``ranked_members``: those in blocks, too."""
    for page in ranked_members(client, key, most):
        yield [one for member, score in page for one in expand_member(member, score)]


# ZSCAN reads the same in four times the time: it jumps through Redis's memory.
def ranked_members(client: "redis.Redis", key: bytes | str, most: int = MOST) -> Iterator[list[tuple[bytes, float]]]:
    """Yield the members of a sorted set by rank, with their scores. Each page begins behind a member of the page before it.

    Each member that stays is yielded; one beside it may come twice while others leave. A key of another type has none. Raises redis
    errors.
    """
    if (key if isinstance(key, bytes) else key.encode()) in packed_held(client):
        most = _BLOCKS
    start, size = 0, min(_FIRST, most)
    try:
        while page := _ranked(client, key, start, start + size - 1):
            yield page
            start, size = _rank_behind(client, key, page), page_size([member for member, _ in page], most)
    except ResponseError as error:
        if not is_wrong_type(error):
            raise


def _ranked(client: "redis.Redis", key: bytes | str, first: int, last: int) -> list[tuple[bytes, float]]:
    reply: Any = client.zrange(cast("str", key), first, last, withscores=True)
    return reply


def _rank_behind(client: "redis.Redis", key: bytes | str, page: Sequence[tuple[bytes, float]]) -> int:
    pipeline: Any = client.pipeline(transaction=False)
    for member, _ in page[: -_ANCHORS - 1 : -1]:
        pipeline.zrank(key, member)
    # Where all of them have left, others before the page may have left, too: the next ones have this score, or a higher one.
    pipeline.zcount(key, "-inf", f"({page[-1][1]!r}")
    *ranks, lower = pipeline.execute()
    return next((rank + 1 for rank in ranks if rank is not None), lower)
