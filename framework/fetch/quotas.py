"""Decide how many jobs to fetch: as many as can start now or soon, and of each queue no more than its process limit allows."""

import threading
from collections import Counter
from collections.abc import Collection, Mapping

from framework.fetch.state import InFlight

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
        """Return the queues that have room for another job."""
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
