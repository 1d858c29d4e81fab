"""Watch the memory of the children, so that a growing one is replaced before the system kills an arbitrary process.

The rules and log fields are GitLab's: a process may exceed the soft limit for a grace period, and the hard limit not at all.
The resident memory of a child counts whole, including shared pages.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from framework.cluster.child import Child
from framework.process.record import resident_bytes
from framework.timings import STANDARD, Timings

GRACE_S = 900.0

MIN_AGE_S = 60.0
"""A younger process is not checked: with a limit below its memory at start it would restart forever."""


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Limits in bytes of resident memory per process; ``None`` is no limit."""

    soft_bytes: int | None = None
    hard_bytes: int | None = None
    grace_s: float = GRACE_S


@dataclass(frozen=True, slots=True)
class MemoryExceeded:
    """A child that has exceeded a limit for too long."""

    child: Child
    hard: bool
    fields: dict[str, Any]


class MemoryWatch:
    """Count for each process how often in a row it exceeded the soft limit."""

    def __init__(self, limits: MemoryLimits, timings: Timings = STANDARD) -> None:
        self._limits = limits
        self._period_s = timings.memory_check_period_s
        self._most_strikes = round(limits.grace_s / self._period_s)
        self._strikes: dict[int, int] = {}
        self._checked_at = 0.0

    def check(self, children: Sequence[Child]) -> Iterator[MemoryExceeded]:
        """Yield the children to replace, once per period."""
        now = time.monotonic()
        limits = self._limits
        if (limits.soft_bytes is None and limits.hard_bytes is None) or now - self._checked_at < self._period_s:
            return
        self._checked_at = now
        before, self._strikes = self._strikes, {}
        for child in children:
            if not child.pid or now - child.started_at < MIN_AGE_S:
                continue
            found = resident_bytes(child.pid)
            if limits.hard_bytes is not None and found > limits.hard_bytes:
                yield self._exceeded(child, found, limits.hard_bytes, hard=True)
            elif limits.soft_bytes is not None and found > limits.soft_bytes:
                self._strikes[child.pid] = before.get(child.pid, 0) + 1
                if self._strikes[child.pid] > self._most_strikes:
                    yield self._exceeded(child, found, limits.soft_bytes, hard=False)

    def _exceeded(self, child: Child, found: int, limit: int, *, hard: bool) -> MemoryExceeded:
        fields = {
            "memwd_rss_bytes": found,
            "memwd_max_rss_bytes": limit,
            "memwd_cur_strikes": self._strikes.get(child.pid, 0),
            "memwd_max_strikes": 0 if hard else self._most_strikes,
            "memwd_sleep_time_s": self._period_s,
        }
        return MemoryExceeded(child, hard, fields)
