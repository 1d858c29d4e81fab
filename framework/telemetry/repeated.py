"""Things that happen again and again, told once in a while with their count."""

import os
import threading
from weakref import WeakSet

_MANY_THINGS = 1_000
"""Nobody has told how many things there are, and names may come from the wire."""


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


_all: WeakSet[Repeated] = WeakSet()


def _unlock_all() -> None:
    for repeated in list(_all):
        repeated.unlock()


os.register_at_fork(after_in_child=_unlock_all)
