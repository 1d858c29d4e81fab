"""Read the figures of exclusive leases for Prometheus."""

from collections.abc import Iterator
from typing import Any

from framework.admin.figures import Figure, FigureReader, number


class LeaseFigures(FigureReader):
    """Yield the number of held leases."""

    def read(self, shard: str, reply: Any, now: float) -> Iterator[Figure]:
        del shard, now
        yield Figure("application_worker_exclusive_leases", {}, number(reply))
