"""Read the figures of rate limiters for Prometheus."""

from collections.abc import Iterator
from typing import Any

from framework.admin.figures import Figure, FigureReader, number


class LimiterFigures(FigureReader):
    """Yield the number of rate limiters in use."""

    def read(self, shard: str, reply: Any, now: float) -> Iterator[Figure]:
        del shard, now
        yield Figure("application_worker_rate_limiters", {}, number(reply))
