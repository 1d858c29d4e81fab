"""Choose the queues of each fetch, their order and quotas: Sidekiq's three modes, over any number of queues."""

import random
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from framework.fetch.state import InFlight

QueueMode: TypeAlias = Literal["strict", "weighted", "random"]

HOT_QUEUES = 32
"""Up to so many queues, each fetch reads all. Of more, it reads the hot ones: those that had jobs lately."""

MAX_QUEUES_PER_FETCH = 1_000
"""Most queues of one fetch, about a quarter of a millisecond in Redis; of more, each fetch reads the next ones."""

COLD_SWEEP_S = 0.1
"""Period of the fetches from cold queues while hot ones have jobs."""


@dataclass(frozen=True)
class QueueOrder:
    """The queues of a process with their weights; weight 0 means that none is set.

    No weights: strict order. All weights 1: random order. Otherwise a queue comes first with probability weight / sum.
    """

    weights: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, weights: Sequence[tuple[str, int]]) -> "QueueOrder":
        """Return the order of ``weights``; a repeated name counts once, with the sum of its weights."""
        merged: dict[str, int] = {}
        for name, weight in weights:
            merged[name] = merged.get(name, 0) + weight
        return cls(tuple(merged.items()))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.weights]

    @property
    def mode(self) -> QueueMode:
        """Sidekiq's mode that the weights mean."""
        if all(weight == 0 for _, weight in self.weights):
            return "strict"
        return "random" if all(weight == 1 for _, weight in self.weights) else "weighted"

    def draw(self, among: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Draw the order of these queues for one fetch; return each with its weight."""
        # Efraimidis and Spirakis: sorting by u**(1/w) draws without replacement in proportion to the weights.
        keyed = [(random.random() ** (1 / max(weight, 1)), name, weight) for name, weight in among]
        return [(name, weight) for _, name, weight in sorted(keyed, reverse=True)]


class QueueRotation:
    """Choose the queues of the next fetch by the queues in which the last fetches found jobs. For one thread at a time."""

    def __init__(self, order: QueueOrder) -> None:
        self._order = order
        self._strict = order.mode == "strict"
        self._paused: frozenset[str] = frozenset()
        self._served = order.weights
        self._weights = dict(order.weights)
        self._hot: dict[str, int] = {}
        self._sweep_at = 0.0
        self._hot_only = False
        self._remaining: list[tuple[str, int]] = []
        self._none_found = True
        self.all_checked = True
        """Whether the last fetch, or the last round of fetches, covered every queue and found no job."""

    @property
    def served(self) -> tuple[tuple[str, int], ...]:
        return self._served

    def pause(self, names: Collection[str]) -> bool:
        """Skip exactly these queues from now on; return whether that is a change."""
        paused = frozenset(names)
        if paused == self._paused:
            return False
        self._paused = paused
        self._served = tuple(entry for entry in self._order.weights if entry[0] not in paused)
        self._weights = dict(self._served)
        self._remaining.clear()
        self._hot.clear()
        self._sweep_at = 0.0
        return True

    def next(self, wanted: int, now: float) -> list[tuple[str, int]]:
        """Return the queues for a fetch of ``wanted`` jobs at ``now``, each with its quota."""
        among = self._candidates(now)
        if len(among) == 1:
            return [(among[0][0], wanted)]
        if self._strict:
            return [(name, wanted) for name, _ in among]
        total = sum(max(weight, 1) for _, weight in among)
        # Rounded up: the quota of a queue with a small weight is one job, not none.
        return [(name, -(-wanted * max(weight, 1) // total)) for name, weight in self._order.draw(among)]

    def record_found(self, source_queues: Collection[str], *, enough: bool) -> None:
        """Record the queues that had jobs; ``enough``: the fetch found as many jobs as were wanted."""
        if len(self._served) <= HOT_QUEUES:
            return
        weights = self._hot if self._hot_only else self._weights
        self._hot = {name: weights[name] for name in source_queues if name in weights}
        if self._hot_only:
            if not enough:
                # The hot queues had too few jobs: read the cold ones next.
                self._sweep_at = 0.0
            return
        self._none_found = self._none_found and not source_queues
        if source_queues and self._strict:
            # Strict order: the next round starts with the most important queue again.
            self._remaining.clear()
        self.all_checked = self._none_found and not self._remaining

    def _candidates(self, now: float) -> Sequence[tuple[str, int]]:
        if len(self._served) <= HOT_QUEUES:
            return self._served
        self._hot_only = bool(self._hot) and now < self._sweep_at
        if self._hot_only:
            self.all_checked = False
            return list(self._hot.items())
        return self._next_cold_queues(now)

    def _next_cold_queues(self, now: float) -> Sequence[tuple[str, int]]:
        """Return the queues of a cold fetch: all, or the next part of very many."""
        if not self._remaining:
            self._none_found = True
            # `next` draws the order of weighted queues.
            in_order = self._strict or len(self._served) <= MAX_QUEUES_PER_FETCH
            self._remaining = list(self._served) if in_order else self._order.draw(self._served)
        part, self._remaining = self._remaining[:MAX_QUEUES_PER_FETCH], self._remaining[MAX_QUEUES_PER_FETCH:]
        self.all_checked = not self._remaining
        self._sweep_at = now + COLD_SWEEP_S
        return part


AHEAD_S = 0.005
"""Jobs are fetched ahead for this long, at the rate at which jobs end: slow jobs are never fetched ahead."""

AHEAD_JOBS = 96
AHEAD_BYTES = 1_000_000
"""Most jobs and bytes ahead: a bound on what a death returns, and on what waits behind a slow job."""

QUICK_PER_S = 10_000.0
"""Above so many jobs a second, one thread is faster than several that compete for the interpreter's lock."""

# The rate is measured over at least this long, since jobs are acknowledged in batches.
_WINDOW_S = 0.002
# The size of a payload that is assumed until the first one arrives.
_FIRST_BYTES = 1_000.0


class Prefetch:
    """Moving averages of job rate and payload size, which say how many jobs to fetch. For the holder of the pipeline's lock."""

    def __init__(self) -> None:
        self.quick = False
        """Whether jobs end so fast that another thread would slow them down. A field: each job reads it."""
        self._per_second = 0.0
        self._bytes = _FIRST_BYTES
        self._since = 0.0
        self._ended = 0
        self._waited_s = 0.0

    @property
    def ahead(self) -> int:
        """How many jobs end within ``AHEAD_S``."""
        return int(self._per_second * AHEAD_S)

    def ended(self, jobs: int, now: float) -> None:
        """Count ``jobs`` more that have ended by ``now``, in seconds of a steady clock."""
        self._ended += jobs
        span = now - self._since - self._waited_s
        if span < _WINDOW_S:
            return
        self._per_second += 0.5 * (self._ended / span - self._per_second)
        self.quick = self._per_second > QUICK_PER_S
        self._ended, self._since, self._waited_s = 0, now, 0.0

    def waited(self, seconds: float) -> None:
        """Leave out this time from the rate: no job could start while others were admitted. From any thread, as an estimate."""
        self._waited_s += seconds

    def arrived(self, sizes: list[int]) -> None:
        """Record the sizes in bytes of fetched payloads; a large one counts at once, small ones lower the average slowly."""
        for size in sizes:
            self._bytes = float(size) if size > self._bytes else self._bytes + 0.02 * (size - self._bytes)

    def wanted(self, free: int, buffered: int) -> int:
        """Return how many jobs to fetch, with a capacity of ``free`` jobs and ``buffered`` jobs already fetched."""
        ahead = min(AHEAD_JOBS, self.ahead, int(AHEAD_BYTES / self._bytes))
        return max(0, free + ahead - buffered)


class ProcessLimits:
    """The room per queue: the limit, less the jobs in flight, requested, and awaited by a blocking call. Safe from any thread.

    A fetch requests no more jobs of a limited queue than there is room for (``process_limits``, as in sidekiq-limit_fetch). The
    other jobs stay in the queue for other processes.
    """

    def __init__(self, limits: Mapping[str, int], in_flight: InFlight) -> None:
        self._limits = dict(limits)
        self.queues = frozenset(limits)
        """The queues that have a limit; almost always none."""
        self._in_flight = in_flight
        self._lock = threading.Lock()
        self._requested: dict[str, int] = {}
        self._blocking: set[str] = set()

    def quotas(self, queues: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return the queues (name, quota) that have room; a limited queue has a negative quota, which fetch.lua never exceeds.

        ``fetch_ended`` must follow, after the jobs of the reply are in flight.
        """
        if not self._limits:
            return queues
        granted: list[tuple[str, int]] = []
        with self._lock:
            counts = self._count_in_flight()
            for name, quota in queues:
                if name not in self._limits:
                    granted.append((name, quota))
                elif (room := self._limits[name] - counts[name] - (name in self._blocking)) > 0:
                    self._requested[name] = min(room, quota)
                    granted.append((name, -self._requested[name]))
        return granted

    def fetch_ended(self) -> None:
        """Forget the requested jobs: they are in flight, or will not come."""
        self._requested.clear()

    def queues_with_room(self, queues: list[str]) -> list[str]:
        if not self._limits:
            return queues
        counts = self._count_in_flight()
        return [name for name in queues if name not in self._limits or self._room(name, counts) > 0]

    def reserve_for_blocking(self, queue: str) -> bool:
        """Reserve room for a blocking call, until ``keep_blocking_only`` omits the queue; return whether there is room."""
        if queue not in self._limits:
            return True
        with self._lock:
            room = self._room(queue, self._count_in_flight())
            if room > 0:
                self._blocking.add(queue)
            return room > 0

    def keep_blocking_only(self, queues: Collection[str]) -> None:
        """Keep the reservations of these queues only: the jobs of the others are in flight."""
        if self._blocking:
            # Without the lock: only the leader adds and removes, and the operator is one step for the interpreter.
            self._blocking &= set(queues)

    def _room(self, queue: str, in_flight: Counter[str]) -> int:
        return self._limits[queue] - in_flight[queue] - self._requested.get(queue, 0)

    def _count_in_flight(self) -> Counter[str]:
        return Counter(unit.queue for unit in self._in_flight.unfinished() if unit.queue in self._limits)
