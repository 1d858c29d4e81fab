"""Work out how fast jobs come into each queue of a shard, and end, from readings some seconds apart."""

import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from framework.admin.job_queue import Queue, queues
from framework.admin.process_list import WorkerProcess, processes
from framework.admin.statistics import Stats, server_times, stats
from framework.async_twin import async_twin

WINDOW_S = 15.0
"""The rates are those of so many seconds. Processes write their counts every five seconds."""


@dataclass(frozen=True, slots=True)
class ShardCounts:
    """One reading of a shard."""

    shard: str
    now: float
    """The time of its Redis, in epoch seconds."""
    read_at: float
    """The monotonic time of this process."""
    stats: Stats
    queues: Sequence[Queue] = ()
    processes: Sequence[WorkerProcess] = ()


def read_counts(shard: str) -> ShardCounts:
    """Read one shard, for a ``RateWindow``.

    Raises:
        ShardUnavailableError: the shard does not answer.
        UnknownShardError: the configuration has no such shard.
    """
    now = server_times(shard).by_shard[shard]
    return ShardCounts(shard, now, time.monotonic(), stats(shard), queues(shard), processes(shard))


aread_counts = async_twin(read_counts)


class QueueRates(NamedTuple):
    """Jobs per second; ``None`` while it is not known."""

    arriving: float | None = None
    """The ended runs plus the growth of the queue: a job that came back counts too."""
    ending: float | None = None
    """The ended runs of jobs of the queue, by the counts of its processes."""

    def empty_in_s(self, size: int) -> float | None:
        """Return the seconds until a queue of this size is empty at these rates; ``None`` if it is never, or not known."""
        if not size:
            return 0.0
        if self.arriving is None or self.ending is None or self.ending <= self.arriving:
            return None
        return size / (self.ending - self.arriving)


@dataclass(frozen=True, slots=True)
class ShardRates:
    """Rates of one shard, per second; ``None`` while they are not known."""

    processed: float | None = None
    failed: float | None = None
    queues: Mapping[str, QueueRates] = field(default_factory=dict[str, QueueRates])


class _Sample(NamedTuple):
    at: float
    processed: int
    failed: int
    sizes: Mapping[str, int]
    runs: Mapping[str, tuple[float, Mapping[str, int]]]
    """When each process wrote its counts, and its ended runs by queue."""
    uncounted: frozenset[str]
    """Queues with a process of Ruby, which does not count its runs by queue."""


class RateWindow:
    """The readings of one shard within the window; adding one returns the rates. Keep one for each shard."""

    def __init__(self) -> None:
        self._samples = deque[_Sample]()

    def add(self, facts: ShardCounts) -> ShardRates:
        """Return the rates with this reading as the last one."""
        last = _sample(facts)
        # The oldest sample may be older than the window: without it, the samples would span less than the window.
        while len(self._samples) > 1 and self._samples[1].at <= last.at - WINDOW_S:
            self._samples.popleft()
        self._samples.append(last)
        first, ending = self._samples[0], self._ending()
        if last.at <= first.at:
            return ShardRates()
        return ShardRates(
            _per_second(first.processed, last.processed, last.at - first.at),
            _per_second(first.failed, last.failed, last.at - first.at),
            {name: _queue_rates(name, first, last, ending.get(name, 0.0)) for name in last.sizes},
        )

    def _ending(self) -> Mapping[str, float]:
        """Return the ended runs a second by queue: of each process, between its first and its last count in the window."""
        ending = defaultdict[str, float](float)
        for identity in self._samples[-1].runs:
            written = [one.runs[identity] for one in self._samples if identity in one.runs]
            (first_at, first), (last_at, last) = written[0], written[-1]
            if last_at > first_at:
                for queue, count in last.items():
                    ending[queue] += _per_second(first.get(queue, 0), count, last_at - first_at)
        return ending


def _queue_rates(name: str, first: _Sample, last: _Sample, ending: float) -> QueueRates:
    if name in last.uncounted:
        return QueueRates()
    if name not in first.sizes:
        return QueueRates(None, ending)
    growth = (last.sizes[name] - first.sizes[name]) / (last.at - first.at)
    return QueueRates(max(0.0, ending + growth), ending)


def _sample(facts: ShardCounts) -> _Sample:
    sizes = {queue.name: queue.size for queue in facts.queues}
    runs = {one.identity: (one.beat or 0.0, one.runs) for one in facts.processes if one.runs is not None}
    uncounted = frozenset(queue for one in facts.processes if one.runs is None for queue in one.queues)
    return _Sample(facts.read_at, facts.stats.processed, facts.stats.failed, sizes, runs, uncounted)


def _per_second(before: int, after: int, seconds: float) -> float:
    # A counter that was reset begins at 0 again.
    return max(0, after - before) / seconds
