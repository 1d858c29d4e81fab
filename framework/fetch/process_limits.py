"""Bound the jobs of a queue that one process has in flight (``process_limits``, as in sidekiq-limit_fetch).

A fetch requests no more jobs of a limited queue than there is room for. The other jobs stay in the queue for other processes.
"""

import threading
from collections import Counter
from collections.abc import Collection, Mapping

from framework.fetch.state import InFlight


class ProcessLimits:
    """The room per queue: the limit, less the jobs in flight, requested, and awaited by a blocking call. Safe from any thread."""

    def __init__(self, limits: Mapping[str, int], in_flight: InFlight) -> None:
        self._limits = dict(limits)
        self._in_flight = in_flight
        self._lock = threading.Lock()
        self._requested: dict[str, int] = {}
        self._blocking: set[str] = set()

    def applies_to(self, queue: str) -> bool:
        """Return whether this queue has a limit."""
        return queue in self._limits

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
