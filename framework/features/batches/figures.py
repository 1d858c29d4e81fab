"""Read the figures of batches for Prometheus."""

from collections.abc import Iterator
from typing import Any

from framework.admin.figures import Figure, FigureReader, age, number, rows


class BatchFigures(FigureReader):
    """Yield the number of unfinished batches, and the age of the oldest. Beyond a thousand batches the number is estimated."""

    def read(self, shard: str, reply: Any, now: float) -> Iterator[Figure]:
        del shard
        for size, looked, unfinished, since in rows(reply, 4):
            estimate = round(number(size) * number(unfinished) / number(looked)) if looked else 0
            yield Figure("application_worker_batches_open", {}, estimate)
            yield Figure("application_worker_batches_oldest_age_seconds", {}, age(now, since))
