"""Write the keys of Sidekiq's Metrics page, of versions 7 and 8, the runs by urgency, and the waits by class.

All is one pipeline per period.


Crash story: a process that is killed between two writes loses the counts since the last one; nothing is counted twice.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import redis

from framework.execute.stats import ClassMetrics, RunningJobs
from framework.process_clock import process_clock
from framework.timings import STANDARD, Timings
from framework.types import Urgency
from framework.wire import keys
from framework.wire.urgency_counts import CLASS_COUNT_BITS, FAILED, PROCESSED, SLOW, UNTIMED, WAITED_MS, WAITS

MOST_CLASSES = 200
"""The number of classes per write; the others follow with the next one."""


@dataclass(frozen=True, slots=True)
class _Increment:
    """The counts of a class since its last write."""

    name: str
    counts: tuple[tuple[str, int], ...]
    buckets: tuple[tuple[int, int], ...]
    waits: tuple[tuple[int, int], ...]
    """Positions of ``ClassMetrics.class_counts``, and by how much each has grown."""


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
        self._written_urgencies: dict[tuple[Urgency, str], int] = {}
        self._written_waits: dict[str, tuple[int, ...]] = {}
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
        measured = self._runs.class_metrics() if self._versions else {}
        additions = list(islice(self._increments(measured), MOST_CLASSES))
        if not additions:
            return
        at = time.gmtime(process_clock.now())
        pipeline: Any = self._client.pipeline(transaction=False)
        self._add_urgencies(pipeline, at, _urgency_counts(measured))
        for version in self._versions:
            for key, ttl_s in keys.metrics(version, at):
                for one in additions:
                    for word, amount in one.counts:
                        pipeline.hincrby(key, f"{one.name}|{word}", amount)
                pipeline.expire(key, ttl_s)
            for one in additions:
                if one.buckets:
                    _add_histogram(pipeline, keys.histogram(version, one.name, at), one.buckets)
        for one in additions:
            _add_histogram(pipeline, keys.class_waits(one.name, at), one.waits, CLASS_COUNT_BITS)
        pipeline.execute(raise_on_error=False)

    def _add_urgencies(self, pipeline: Any, at: time.struct_time, counts: dict[tuple[Urgency, str], int]) -> None:
        """Add the counts of each urgency since its last write, and remember them as written."""
        written, self._written_urgencies = self._written_urgencies, counts
        changed = [(name, count - written.get(name, 0)) for name, count in counts.items()]
        for key, ttl_s in keys.urgencies(at):
            for (urgency, word), amount in changed:
                if amount > 0:
                    pipeline.hincrby(key, f"{urgency}|{word}", amount)
            pipeline.expire(key, ttl_s)

    def _increments(self, measured: Mapping[str, ClassMetrics]) -> Iterator[_Increment]:
        """Yield the counts of each class since its last write, and remember them as written."""
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
            buckets = _growth(total.buckets, before.buckets)
            yield _Increment(
                name, tuple((word, amount) for word, amount in counts if amount), buckets, self._waits(total, name)
            )

    def _waits(self, total: ClassMetrics, name: str) -> tuple[tuple[int, int], ...]:
        """Return by how much the waits of a class have grown, and remember them as written."""
        found = total.class_counts
        before = self._written_waits.get(name) or (0,) * len(found)
        # A thread counts a run and then its wait: a quick run of one write may be a long wait of the next one.
        self._written_waits[name] = tuple(map(max, found, before))
        return _growth(found, before)


def _growth(total: Sequence[int], before: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the positions of the numbers that have grown, and by how much."""
    pairs = enumerate(zip(total, before, strict=True))
    return tuple((index, now - then) for index, (now, then) in pairs if now > then)


def _urgency_counts(classes: Mapping[str, ClassMetrics]) -> dict[tuple[Urgency, str], int]:
    """Return the sums since the start of the process by urgency and word of ``wire/urgency_counts.py``."""
    counts: dict[tuple[Urgency, str], int] = defaultdict(int)
    waited_s: dict[Urgency, float] = defaultdict(float)
    for one in classes.values():
        counts[one.urgency, PROCESSED] += one.processed
        counts[one.urgency, FAILED] += one.failed
        counts[one.urgency, SLOW] += one.slow
        counts[one.urgency, UNTIMED] += one.untimed
        waited_s[one.urgency] += one.waited_s
        for word, count in zip(WAITS, one.waits, strict=True):
            counts[one.urgency, word] += count
    for urgency, seconds in waited_s.items():
        counts[urgency, WAITED_MS] = int(seconds * 1000)
    return counts


def _add_histogram(pipeline: Any, key: str, buckets: tuple[tuple[int, int], ...], bits: int = 16) -> None:
    command: list[Any] = ["BITFIELD", key, "OVERFLOW", "SAT"]
    for index, amount in buckets:
        command += ["INCRBY", f"u{bits}", f"#{index}", min(amount, 2**bits - 1)]
    pipeline.execute_command(*command)
    pipeline.expire(key, keys.METRICS_SHORT_S)
