"""Count the policies' actions by GitLab's metric names, per process, until a heartbeat adds them to the shard's counters."""

import os
import threading
from typing import Any, cast

import redis

from framework.wire import keys

# Jobs that a flag, a health check or an operator kept from running; policies and the purge share the counter.
SKIPPED_JOBS = "sidekiq_jobs_skipped_total"


class Counters:
    """The counters of a process. Safe to call from any thread; meant for events that are rarer than jobs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        os.register_at_fork(after_in_child=self._reset_in_child)

    def add(self, name: str, worker: str, amount: int = 1, **labels: str) -> None:
        """Add to the counter ``name`` of a worker class and further labels."""
        series = series_name(name, {"worker": worker, **labels})
        with self._lock:
            self._counts[series] = self._counts.get(series, 0) + amount

    def take(self) -> dict[str, int]:
        """Return the counts by series, and begin again: another process adds them to its own (``add_counts``)."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts

    def add_counts(self, counts: object) -> None:
        """Add the counts of another process; anything else is ignored."""
        if isinstance(counts, dict):
            for series, amount in cast("dict[Any, Any]", counts).items():
                if type(series) is str and type(amount) is int:
                    with self._lock:
                        self._counts[series] = self._counts.get(series, 0) + amount

    def flush(self, client: "redis.Redis") -> None:
        """Add the counts to the shard's counters. Raises redis errors; unwritten counts are kept for the next call."""
        counts = self.take()
        if not counts:
            return
        pipeline: Any = client.pipeline(transaction=False)
        for series, amount in counts.items():
            pipeline.hincrby(keys.COUNTERS, series, amount)
        try:
            pipeline.execute()
        except BaseException:
            self.add_counts(counts)
            raise

    def _reset_in_child(self) -> None:
        """Reset after a fork: the counts belong to the parent, and a thread of the parent may hold the lock."""
        self._lock = threading.Lock()
        self._counts = {}


def series_name(name: str, labels: dict[str, str]) -> str:
    """Return a counter's name with its labels in the text format of Prometheus, labels sorted."""
    shown = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(labels.items()))
    return f"{name}{{{shown}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


counters = Counters()
"""The counters of this process."""
