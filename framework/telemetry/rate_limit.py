"""Things that happen again and again, told once in a while with their count."""

import math
import os
import threading
from weakref import WeakSet

_MAX_THINGS = 1_000
"""Nobody has told how many things there are, and names may come from the wire."""

_MAX_NAMES = 50  # in one line
OTHERS = "others"


class LogRateLimit:
    """Says when a line is due: at most one per thing in ``period_s`` seconds. Safe to call from any thread, and after a fork.

    Of more things than anybody reads of it forgets what it knew, and begins anew.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, int]] = {}
        _all.add(self)

    def hit(self, thing: str, now: float) -> int:
        """Return how often ``thing`` happened since its last line, 0 when it is too early for another; ``now`` is in seconds."""
        with self._lock:
            last, count = self._seen.get(thing, (now - self._period_s, 0))
            due = now - last >= self._period_s
            if thing not in self._seen and len(self._seen) >= _MAX_THINGS:
                self._seen.clear()
            self._seen[thing] = (now, 0) if due else (last, count + 1)
            return count + 1 if due else 0

    def reset_lock(self) -> None:
        """The lock is free: after a fork it may be held by a thread that is the parent's."""
        self._lock = threading.Lock()


class LogSummary:
    """Counts things by name, for one line about all of them in ``period_s`` seconds.

    Safe to call from any thread, and after a fork.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._logged_at = -math.inf
        _all.add(self)

    def add(self, name: str) -> None:
        """Count one; beyond so many names all others are one."""
        with self._lock:
            if name not in self._counts and len(self._counts) >= _MAX_NAMES:
                name = OTHERS
            self._counts[name] = self._counts.get(name, 0) + 1

    def take(self, now: float, *, process_ends: bool = False) -> dict[str, int]:
        """Return the counts since the last line, empty when there are none or it is too early, unless the process ``ends``."""
        with self._lock:
            if not self._counts or (now - self._logged_at < self._period_s and not process_ends):
                return {}
            counts, self._counts, self._logged_at = self._counts, {}, now
            return counts

    def reset_lock(self) -> None:
        """See ``LogRateLimit.reset_lock``."""
        self._lock = threading.Lock()


_all: WeakSet[LogRateLimit | LogSummary] = WeakSet()


def _reset_locks() -> None:
    for repeated in list(_all):
        repeated.reset_lock()


os.register_at_fork(after_in_child=_reset_locks)
