"""Read the entries of a sorted set of jobs in their order, page by page, while the set changes."""

from collections.abc import Iterator
from typing import Any

import redis

PAGE, OVERLAP = 50, 50
"""Entries that each step reads, and entries of the step before that it reads again: as many may leave between two steps
without hiding another entry."""


def ordered_entries(client: "redis.Redis", key: str, *, newest_first: bool) -> Iterator[tuple[bytes, float]]:
    """Yield each entry that stays in the set during the read, once, with its score: the lowest score first, or the highest.

    A page begins at the score of the last entry, not at a number of entries: entries that come or go meanwhile, before
    it or after it, hide none. Raises redis errors.
    """
    edge: str | float = "+inf" if newest_first else "-inf"
    limit = "-inf" if newest_first else "+inf"
    # The entries that have the score of the edge, and were yielded.
    seen: set[bytes] = set()
    offset = 0
    while True:
        reply: Any = client.zrange(
            key,
            # redis-py sends the bounds as they are: the higher one comes first in the descending order.
            edge,  # pyright: ignore[reportArgumentType]
            limit,  # pyright: ignore[reportArgumentType]
            desc=newest_first,
            withscores=True,
            byscore=True,
            offset=offset,
            num=PAGE + OVERLAP,
        )
        page: list[tuple[bytes, float]] = reply
        if offset and (not page or page[0][0] not in seen):
            # More entries of this score have left than the overlap has: read all of them again.
            offset = 0
            continue
        fresh = [(member, score) for member, score in page if member not in seen]
        if not fresh:
            return
        for member, score in fresh:
            if score != edge:
                edge, seen = score, set()
            seen.add(member)
            yield member, score
        offset = max(0, len(seen) - OVERLAP)
