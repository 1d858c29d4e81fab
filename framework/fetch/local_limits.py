"""Queues of which a process runs only so many jobs at a time (sidekiq-limit_fetch's ``process_limits``).

A queue is asked for no more than there is room for, and not at all when there is none: what this process may not run now
stays in its queue, for others.
"""

import threading
from collections import Counter
from collections.abc import Collection, Mapping

from framework.fetch.custody import Custody


class LocalLimits:
    """The room that there is: the limit, less what is in hand, asked for, and waited for. Safe to call from any thread."""

    def __init__(self, limits: Mapping[str, int], custody: Custody) -> None:
        self._limits = dict(limits)
        self._custody = custody
        self._lock = threading.Lock()
        self._asked: dict[str, int] = {}
        self._parked: set[str] = set()

    def limits(self, queue: str) -> bool:
        """Whether there is a limit for this queue."""
        return queue in self._limits

    def grant(self, queues: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return the queues (name, quota) that may be asked; of a limited one the quota, below 0, is the most that may come.

        ``arrived`` must follow, when what came is in hand.
        """
        if not self._limits:
            return queues
        granted: list[tuple[str, int]] = []
        with self._lock:
            in_hand = self._in_hand()
            for name, quota in queues:
                if name not in self._limits:
                    granted.append((name, quota))
                elif (room := self._limits[name] - in_hand[name] - (name in self._parked)) > 0:
                    self._asked[name] = min(room, quota)
                    granted.append((name, -self._asked[name]))
        return granted

    def arrived(self) -> None:
        """What was asked for is in hand, or will not come."""
        self._asked.clear()

    def open(self, queues: list[str]) -> list[str]:
        """Return those of which another job may come."""
        if not self._limits:
            return queues
        in_hand = self._in_hand()
        return [name for name in queues if name not in self._limits or self._room(name, in_hand) > 0]

    def may_park(self, queue: str) -> bool:
        """Whether a call may be parked at the queue; it then counts as a job in hand until ``parked_at`` no longer names it."""
        if queue not in self._limits:
            return True
        with self._lock:
            room = self._room(queue, self._in_hand())
            if room > 0:
                self._parked.add(queue)
            return room > 0

    def parked_at(self, queues: Collection[str]) -> None:
        """There are calls at these queues only; what the others brought is in hand."""
        if self._parked:
            self._parked &= set(queues)

    def _room(self, queue: str, in_hand: Counter[str]) -> int:
        return self._limits[queue] - in_hand[queue] - self._asked.get(queue, 0)

    def _in_hand(self) -> Counter[str]:
        return Counter(unit.queue for unit in self._custody.unended() if unit.queue in self._limits)
