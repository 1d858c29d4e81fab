"""Limit how often one thing is logged: at most one line within a period, with a count of what happened meanwhile."""

import math
import os
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from framework.process_clock import process_clock
from framework.telemetry.logs import logger

# Topics may hold names from the wire, so their number has a bound.
_MAX_TOPICS = 1_000
# Names in one line of a summary.
_MAX_NAMES = 50
OTHERS = "others"


class LogRateLimit:
    """Log at most one line per topic in ``period_s`` seconds. Safe to call from any thread, and after a fork.

    Beyond 1,000 topics it forgets all of them and counts again from zero.
    """

    def __init__(self, period_s: float, clock: Callable[[], float] | None = None) -> None:
        self._period_s = period_s
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, int]] = {}
        _all.add(self)

    def warning(self, topic: str, text: str, event_name: str, **fields: Any) -> None:
        """Log a warning with a ``count``, unless ``topic`` had a line within the period."""
        if count := self.hit(topic):
            logger().warning(text, event_name=event_name, count=count, **fields)

    def error(self, topic: str, text: str, event_name: str, **fields: Any) -> None:
        """Log an error with a ``count``, unless ``topic`` had a line within the period."""
        if count := self.hit(topic):
            logger().error(text, event_name=event_name, count=count, **fields)

    def hit(self, topic: str) -> int:
        """Count one event; return the events since the last line about ``topic``, or 0 if no line is due."""
        now = process_clock.monotonic() if self._clock is None else self._clock()
        with self._lock:
            last, count = self._seen.get(topic, (now - self._period_s, 0))
            due = now - last >= self._period_s
            if topic not in self._seen and len(self._seen) >= _MAX_TOPICS:
                self._seen.clear()
            self._seen[topic] = (now, 0) if due else (last, count + 1)
            return count + 1 if due else 0

    def reset_lock(self) -> None:
        """Replace the lock after a fork: a thread that exists only in the parent may hold the old one."""
        self._lock = threading.Lock()


class LogSummary:
    """Count events by name, for one line about all of them in ``period_s`` seconds.

    Safe to call from any thread, and after a fork.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._logged_at = -math.inf
        _all.add(self)

    def add(self, name: str) -> None:
        """Count one event. Names beyond the first 50 are counted together as ``others``."""
        with self._lock:
            if name not in self._counts and len(self._counts) >= _MAX_NAMES:
                name = OTHERS
            self._counts[name] = self._counts.get(name, 0) + 1

    def take(self, now: float, *, process_ends: bool = False) -> dict[str, int]:
        """Return the counts since the last line; empty if no line is due. ``process_ends`` makes a line due at once."""
        with self._lock:
            if not self._counts or (now - self._logged_at < self._period_s and not process_ends):
                return {}
            counts, self._counts, self._logged_at = self._counts, {}, now
            return counts

    def reset_lock(self) -> None:
        self._lock = threading.Lock()


_all: WeakSet[LogRateLimit | LogSummary] = WeakSet()


def _reset_locks() -> None:
    for limit in list(_all):
        limit.reset_lock()


os.register_at_fork(after_in_child=_reset_locks)
