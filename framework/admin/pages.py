"""Read a list or a sorted set of jobs in pages: each holds Redis for two milliseconds at most, and nothing is parsed."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import redis
from redis.exceptions import ResponseError

from framework.fetch.held_blocks import expand_members, has_only_blocks, packed_held
from framework.store.script import is_wrong_type
from framework.wire.blocks import is_block

T = TypeVar("T")

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
        yield [one for jobs in expand_members(client, key, page) for one in jobs]


# ZSCAN reads the same in four times the time: it jumps through Redis's memory.
def ranked_members(client: "redis.Redis", key: bytes | str, most: int = MOST) -> Iterator[list[tuple[bytes, float]]]:
    """Yield the members of a sorted set by rank, with their scores. Each page begins behind a member of the page before it.

    Each member that stays is yielded; one beside it may come twice while others leave. A key of another type has none. Raises redis
    errors.
    """

    def read(first: int, last: int) -> tuple[list[tuple[bytes, float]], list[bytes], float | None]:
        reply: Any = client.zrange(cast("str", key), first, last, withscores=True)
        page: list[tuple[bytes, float]] = reply
        return page, [member for member, _ in page], page[-1][1] if page else None

    return _by_rank(client, key, most, read)


# A score takes this process six times as long to read as the member.
def ranked_data(client: "redis.Redis", key: bytes | str, most: int = MOST) -> Iterator[list[bytes]]:
    """Yield the members as ``ranked_members`` does, without their scores and with those in blocks."""

    def read(first: int, last: int) -> tuple[list[bytes], list[bytes], float | None]:
        pipeline: Any = client.pipeline()
        pipeline.zrange(key, first, last)
        pipeline.zrange(key, last, last, withscores=True)
        page, edge = pipeline.execute()
        return page, page, edge[0][1] if edge else None

    for page in _by_rank(client, key, most, read):
        if has_only_blocks(key) or any(map(is_block, page)):
            named = [(member, 0.0) for member in page]
            yield [one.data for jobs in expand_members(client, key, named) for one in jobs]
        else:
            yield page


def _by_rank(
    client: "redis.Redis",
    key: bytes | str,
    most: int,
    read: Callable[[int, int], tuple[list[T], list[bytes], float | None]],
) -> Iterator[list[T]]:
    """Yield the pages that ``read`` returns of ranks; it also returns their members, and the score of the last rank if it exists."""
    if has_only_blocks(key) or (key if isinstance(key, bytes) else key.encode()) in packed_held(client):
        most = _BLOCKS
    start, size = 0, min(_FIRST, most)
    try:
        while True:
            page, members, edge = read(start, start + size - 1)
            if not page:
                return
            yield page
            start, size = _rank_behind(client, key, members, edge, start), page_size(members, most)
    except ResponseError as error:
        if not is_wrong_type(error):
            raise


def _rank_behind(
    client: "redis.Redis", key: bytes | str, members: Sequence[bytes], edge: float | None, start: int
) -> int:
    pipeline: Any = client.pipeline(transaction=False)
    for member in members[: -_ANCHORS - 1 : -1]:
        pipeline.zrank(key, member)
    # Where all of them have left, others before the page may have left, too: the next ones have the last score, or a higher one. A
    # page without that score was the last one.
    if edge is not None:
        pipeline.zcount(key, "-inf", f"({edge!r}")
    ranks: list[int | None] = pipeline.execute()
    lower = start if edge is None else ranks.pop()
    return next((rank + 1 for rank in ranks if rank is not None), lower or 0)
