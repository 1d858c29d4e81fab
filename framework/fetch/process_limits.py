"""Queues of which a process runs only so many jobs at a time (sidekiq-limit_fetch's ``process_limits``).

A queue is asked for no more than there is room for, and not at all when there is none: what this process may not run now
stays in its queue, for others.
"""

import threading
from collections import Counter
from collections.abc import Collection, Mapping

from framework.fetch.in_flight import InFlight


class ProcessLimits:
    """The room that there is: the limit, less what is in flight, asked for, and waited for. Safe to call from any thread."""

    def __init__(self, limits: Mapping[str, int], in_flight: InFlight) -> None:
        self._limits = dict(limits)
        self._in_flight = in_flight
        self._lock = threading.Lock()
        self._requested: dict[str, int] = {}
        self._blocking: set[str] = set()

    def applies_to(self, queue: str) -> bool:
        """Whether there is a limit for this queue."""
        return queue in self._limits

    def quotas(self, queues: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return the queues (name, quota) that may be asked; of a limited one the quota, below 0, is the most that may come.

        ``arrived`` must follow, when what came is in flight.
        """
        if not self._limits:
            return queues
        granted: list[tuple[str, int]] = []
        with self._lock:
            in_hand = self._count_in_flight()
            for name, quota in queues:
                if name not in self._limits:
                    granted.append((name, quota))
                elif (room := self._limits[name] - in_hand[name] - (name in self._blocking)) > 0:
                    self._requested[name] = min(room, quota)
                    granted.append((name, -self._requested[name]))
        return granted

    def fetch_ended(self) -> None:
        """What was asked for is in flight, or will not come."""
        self._requested.clear()

    def queues_with_room(self, queues: list[str]) -> list[str]:
        """Return those of which another job may come."""
        if not self._limits:
            return queues
        in_hand = self._count_in_flight()
        return [name for name in queues if name not in self._limits or self._room(name, in_hand) > 0]

    def reserve_for_blocking(self, queue: str) -> bool:
        """Whether a call may be parked at the queue; it then counts as a job in flight until ``parked_at`` no longer names it."""
        if queue not in self._limits:
            return True
        with self._lock:
            room = self._room(queue, self._count_in_flight())
            if room > 0:
                self._blocking.add(queue)
            return room > 0

    def keep_blocking_only(self, queues: Collection[str]) -> None:
        """There are calls at these queues only; what the others brought is in flight."""
        if self._blocking:
            self._blocking &= set(queues)

    def _room(self, queue: str, in_flight: Counter[str]) -> int:
        return self._limits[queue] - in_flight[queue] - self._requested.get(queue, 0)

    def _count_in_flight(self) -> Counter[str]:
        return Counter(unit.queue for unit in self._in_flight.unfinished() if unit.queue in self._limits)
