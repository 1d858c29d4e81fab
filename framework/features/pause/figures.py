"""Read the figures of pauses for Prometheus."""

from collections.abc import Iterator
from typing import Any

from framework.admin.figures import Figure, FigureReader, age, number, rows
from framework.text import decode_escaped


class PauseFigures(FigureReader):
    """Yield the held jobs of each paused class, and the age of the oldest."""

    def read(self, shard: str, reply: Any, now: float) -> Iterator[Figure]:
        del shard
        for name, jobs, since in rows(reply, 3):
            place = {"place": "paused", "worker": decode_escaped(name)}
            yield Figure("application_worker_held_size", place, number(jobs))
            yield Figure("application_worker_held_oldest_age_seconds", place, age(now, since))
