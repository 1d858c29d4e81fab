"""Things that happen again and again, told once in a while with their count."""

import math
import os
import threading
from weakref import WeakSet

_MANY_THINGS = 1_000
"""Nobody has told how many things there are, and names may come from the wire."""

_MOST_NAMES = 50  # in one line
OTHERS = "others"


class Repeated:
    """Says when a line is due: at most one per thing in ``quiet_s`` seconds. Safe to call from any thread, and after a fork.

    Of more things than anybody reads of it forgets what it knew, and begins anew.
    """

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, int]] = {}
        _all.add(self)

    def due(self, thing: str, now: float) -> int:
        """Return how often ``thing`` happened since its last line, 0 when it is too early for another; ``now`` is in seconds."""
        with self._lock:
            last, count = self._seen.get(thing, (now - self._quiet_s, 0))
            due = now - last >= self._quiet_s
            if thing not in self._seen and len(self._seen) >= _MANY_THINGS:
                self._seen.clear()
            self._seen[thing] = (now, 0) if due else (last, count + 1)
            return count + 1 if due else 0

    def unlock(self) -> None:
        """The lock is free: after a fork it may be held by a thread that is the parent's."""
        self._lock = threading.Lock()


class Tallied:
    """Counts things by name, for one line about all of them in ``period_s`` seconds.

    Safe to call from any thread, and after a fork.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._told_at = -math.inf
        _all.add(self)

    def add(self, name: str) -> None:
        """Count one; beyond so many names all others are one."""
        with self._lock:
            if name not in self._counts and len(self._counts) >= _MOST_NAMES:
                name = OTHERS
            self._counts[name] = self._counts.get(name, 0) + 1

    def due(self, now: float, *, ends: bool = False) -> dict[str, int]:
        """Return the counts since the last line, empty when there are none or it is too early, unless the process ``ends``."""
        with self._lock:
            if not self._counts or (now - self._told_at < self._period_s and not ends):
                return {}
            counts, self._counts, self._told_at = self._counts, {}, now
            return counts

    def unlock(self) -> None:
        """See ``Repeated.unlock``."""
        self._lock = threading.Lock()


_all: WeakSet[Repeated | Tallied] = WeakSet()


def _unlock_all() -> None:
    for repeated in list(_all):
        repeated.unlock()


os.register_at_fork(after_in_child=_unlock_all)
