"""Read the stream of events for ``aw:counters``: count per process, until a heartbeat adds the counts to the shard's counters."""

import os
import threading
from typing import Any

import redis

from framework.telemetry.job_events import JobObserver, StreamEvent, job_events
from framework.wire import keys


class Counters(JobObserver):
    """Count the events that have a series. Safe to call from any thread; such events are rarer than jobs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        os.register_at_fork(after_in_child=self._reset_in_child)

    def happened(self, event: StreamEvent) -> None:
        name = event.series
        if name:
            self._add({series_name(name, {"worker": event.worker, **event.labels}): event.count})

    def flush(self, client: "redis.Redis") -> None:
        """Add the counts to the shard's counters. Raises redis errors; unwritten counts are kept for the next call."""
        with self._lock:
            counts, self._counts = self._counts, {}
        if not counts:
            return
        pipeline: Any = client.pipeline(transaction=False)
        for series, amount in counts.items():
            pipeline.hincrby(keys.COUNTERS, series, amount)
        try:
            pipeline.execute()
        except BaseException:
            self._add(counts)
            raise

    def _add(self, counts: dict[str, int]) -> None:
        with self._lock:
            for series, amount in counts.items():
                self._counts[series] = self._counts.get(series, 0) + amount

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

job_events.add_first(counters)
