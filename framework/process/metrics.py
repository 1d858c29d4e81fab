"""Write the keys of Sidekiq's Metrics page, of versions 7 and 8, in one pipeline per period."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import redis

from framework.execute.stats import ClassMetrics, RunningJobs
from framework.process_clock import process_clock
from framework.timings import STANDARD, Timings
from framework.wire import keys

MOST_CLASSES = 200
"""The number of classes per write; the others follow with the next one."""


@dataclass(frozen=True, slots=True)
class _Increment:
    """The counts of a class since its last write."""

    name: str
    counts: tuple[tuple[str, int], ...]
    buckets: tuple[tuple[int, int], ...]


class SidekiqMetrics:
    """Write the metrics of one process, for the given ``versions`` of Sidekiq.

    ``runs`` has the sums by class since the start of the process. Counts that were sent are never sent again, even after
    an error: counts may be missing, but none is counted twice.
    """

    def __init__(
        self,
        client: "redis.Redis",
        runs: RunningJobs,
        versions: tuple[int, ...],
        *,
        timings: Timings = STANDARD,
    ) -> None:
        self._client = client
        self._runs = runs
        self._versions = versions
        self._period_s = timings.metrics_period_s
        self._written: dict[str, ClassMetrics] = {}
        """The sums of each class at its last write, the oldest write first."""
        self._due_at = 0.0

    def flush_if_due(self) -> None:
        """Write the new counts once per period. Raises redis errors of the connection; refused commands only lose counts."""
        now = process_clock.monotonic()
        if now >= self._due_at:
            self._due_at = now + self._period_s
            self.flush()

    def flush(self) -> None:
        """Write the new counts. Raises as ``flush_if_due``."""
        additions = list(islice(self._increments(), MOST_CLASSES)) if self._versions else []
        if not additions:
            return
        at = time.gmtime(process_clock.now())
        pipeline: Any = self._client.pipeline(transaction=False)
        for version in self._versions:
            for key, ttl_s in keys.metrics(version, at):
                for one in additions:
                    for word, amount in one.counts:
                        pipeline.hincrby(key, f"{one.name}|{word}", amount)
                pipeline.expire(key, ttl_s)
            for one in additions:
                if one.buckets:
                    _add_histogram(pipeline, keys.histogram(version, one.name, at), one.buckets)
        pipeline.execute(raise_on_error=False)

    def _increments(self) -> Iterator[_Increment]:
        """Yield the counts of each class since its last write, and remember them as written."""
        measured = self._runs.class_metrics()
        new = [name for name in measured if name not in self._written]
        for name in [*new, *(name for name in self._written if name in measured)]:
            total, before = measured[name], self._written.get(name) or ClassMetrics()
            if total.processed == before.processed:
                continue
            self._written.pop(name, None)
            self._written[name] = total
            counts = (
                ("p", total.processed - before.processed),
                ("f", total.failed - before.failed),
                ("ms", int(total.seconds * 1000) - int(before.seconds * 1000)),
            )
            pairs = enumerate(zip(total.buckets, before.buckets, strict=True))
            buckets = tuple((index, now - then) for index, (now, then) in pairs if now > then)
            yield _Increment(name, tuple((word, amount) for word, amount in counts if amount), buckets)


def _add_histogram(pipeline: Any, key: str, buckets: tuple[tuple[int, int], ...]) -> None:
    command: list[Any] = ["BITFIELD", key, "OVERFLOW", "SAT"]
    for index, amount in buckets:
        command += ["INCRBY", "u16", f"#{index}", min(amount, 65_535)]
    pipeline.execute_command(*command)
    pipeline.expire(key, keys.METRICS_SHORT_S)
