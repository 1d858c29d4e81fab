"""Read the figures of tasks for Prometheus: what waits in Redis for their database."""

from collections.abc import Iterator
from typing import Any

from framework.admin.figures import Figure, FigureReader, age, number, rows


class TaskFigures(FigureReader):
    """Yield the changes of events that wait for the database of tasks, and the age of the first."""

    def read(self, shard: str, reply: Any, now: float) -> Iterator[Figure]:
        del shard
        for waiting, since in rows(reply, 2):
            yield Figure("application_worker_task_events_waiting", {}, number(waiting))
            yield Figure("application_worker_task_events_oldest_age_seconds", {}, age(now, since))
