"""The memory of the children, read from outside: a process that grows is replaced before the system kills one of its choice.

GitLab's rules and log fields: a soft limit may be exceeded for a time of grace, a hard one not at all. A child's memory counts
whole, what it shares included.
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework.cluster.child import Child

CHECK_S = 3.0
GRACE_S = 900.0

MIN_AGE_S = 60.0
"""A process younger than this is let be: with a limit below what it needs to start there would be nothing but restarts."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """In bytes of resident memory per process; ``None`` is no limit."""

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
    """Counts for each process how often in a row it was found above the soft limit."""

    def __init__(self, limits: MemoryLimits) -> None:
        self._limits = limits
        self._most_strikes = round(limits.grace_s / CHECK_S)
        self._strikes: dict[int, int] = {}
        self._checked_at = 0.0

    def check(self, children: Sequence[Child]) -> Iterator[MemoryExceeded]:
        """Find those that are to be replaced, if it is time for a look."""
        now = time.monotonic()
        limits = self._limits
        if (limits.soft_bytes is None and limits.hard_bytes is None) or now - self._checked_at < CHECK_S:
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
            "memwd_sleep_time_s": CHECK_S,
        }
        return MemoryExceeded(child, hard, fields)


def resident_bytes(pid: int) -> int:
    """Return a process's resident memory; 0 where the system does not tell, or when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0
