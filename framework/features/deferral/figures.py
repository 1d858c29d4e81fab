"""Read the figures of deferrals for Prometheus."""

from collections.abc import Iterator
from typing import Any

from framework.admin.figures import Figure, FigureReader, number, rows


class DeferralFigures(FigureReader):
    """Yield the number of deferred jobs. With more than a hundred jobs in the schedule set it is estimated from a hundred."""

    def read(self, shard: str, reply: Any, now: float) -> Iterator[Figure]:
        del shard, now
        for size, looked, deferred, packed in rows(reply, 4):
            estimate = round(number(size) * number(deferred) / number(looked)) if looked else 0
            estimate += round(number(packed))
            yield Figure("application_worker_deferred_size", {}, estimate)
