"""Our jobs on Sidekiq's Metrics page: the keys of 7.x and of 8.x, written by one pipeline a beat."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import redis

from framework.execute.class_metrics import ClassMetrics
from framework.wire import keys

PERIOD_S = 10.0
"""How often it is written (Sidekiq's beat)."""

MOST_CLASSES = 200
"""So many classes are written at a time; the others follow with the next beat."""


@dataclass(frozen=True, slots=True)
class _Increment:
    """What a class has done since it was last written."""

    name: str
    counts: tuple[tuple[str, int], ...]
    buckets: tuple[tuple[int, int], ...]


class SidekiqMetrics:
    """Of one process. ``measured`` returns the sums by class since its start; ``versions`` are those of Sidekiq that show them.

    What a beat has sent counts as written, whatever became of it: figures may be missing after trouble, and none is there twice.
    """

    def __init__(
        self,
        client: "redis.Redis",
        measured: Callable[[], dict[str, ClassMetrics]],
        versions: tuple[int, ...],
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._measured = measured
        self._versions = versions
        self._clock = clock
        self._monotonic = monotonic
        self._written: dict[str, ClassMetrics] = {}
        """What has been written of each class, the longest ago first."""
        self._due_at = 0.0

    def flush_if_due(self) -> None:
        """Write what is new, if it is time. Raises redis errors of the connection; refusals cost figures only."""
        now = self._monotonic()
        if now >= self._due_at:
            self._due_at = now + PERIOD_S
            self.flush()

    def flush(self) -> None:
        """Write what is new. Raises as ``beat``."""
        additions = list(islice(self._increments(), MOST_CLASSES)) if self._versions else []
        if not additions:
            return
        at = time.gmtime(self._clock())
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
        """Take what each class has done since it was last written."""
        measured = self._measured()
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
