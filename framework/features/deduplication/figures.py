"""Read the figures of the locks of deduplicated jobs for Prometheus."""

from collections.abc import Iterator
from typing import Any

from framework.admin.figures import Figure, FigureReader, number, rows

_LOOKED = 1_000
"""The keys that ``scripts/parts/figures.lua`` looks at."""


class LockFigures(FigureReader):
    """Yield the number of locks. With more than a thousand keys in the database it is estimated from a thousand."""

    def read(self, shard: str, reply: Any, now: float) -> Iterator[Figure]:
        del shard, now
        for size, whole, found in rows(reply, 3):
            estimate = number(found) if whole else round(number(size) * number(found) / _LOOKED)
            yield Figure("application_worker_locks", {}, estimate)
