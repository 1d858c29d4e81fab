"""Know the classes whose pushes a shard holds back, because they fill its memory."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from framework.command_line import command
from framework.errors import BacklogFullError, ShardUnavailableError
from framework.shard.memory_report import (
    RELEASED,
    HeldClass,
    MemoryReport,
    bytes_by_class,
    classes_above_fair_share,
    large_classes,
    read_report,
)
from framework.text import format_bytes, format_count
from framework.wire.keys import MEMORY

READ_PERIOD_S = 5.0
"""How often a process that pushes reads which classes are held back."""

_TENSE_PERIOD_S = 1.0
"""How often it does so while it holds a class back by what it has pushed itself."""

_UNSEEN_SHARE, _LEAST_UNSEEN = 0.01, 100_000
"""The share of the budget, and the bytes at least, that a process pushes of a class before it looks at the memory again."""

_USED = re.compile(rb"^used_memory:(\d+)", re.MULTILINE)
_MAXMEMORY = re.compile(rb"^maxmemory:(\d+)", re.MULTILINE)

RESERVE, LEAST_RESERVE = 0.02, 4_000_000
"""The share of ``maxmemory``, and the bytes at least, above it: for pushes of small classes, and for buffers of connections."""

_RESERVE_PART, _RESERVE_S = 0.05, 1.0
"""The share of the reserve that a process uses before it looks at the memory again, and for how long at most."""


class LimitTime:
    """When the next push has to be checked: at a time, in seconds of the monotonic clock (at once here), or after these bytes."""

    next_at = 0.0
    most_unseen = 1_000_000


class HeldBack(LimitTime):
    """The classes that a shard holds back, as this process knows them. Threads share it without a lock: two may read at once.

    The report of a worker process is some seconds old, in which a fast producer may fill a shard. So a process that has pushed a
    hundredth of the budget looks at the used memory itself. Above the budget it adds what it has pushed since to the report, and
    holds back the classes that are too large by that.
    """

    def __init__(self, shard: str, read: Callable[..., Any]) -> None:
        """``read`` runs a reading command on the shard. Raises ShardUnavailableError."""
        self._shard = shard
        self._run = read
        self._read_at = self.next_at = monotonic() + READ_PERIOD_S
        self._held: Mapping[str, HeldClass] = {}
        self._budget = 0
        self._largest, self._largest_at = "", 0.0
        self._report: bytes | None = None
        self._pushed = Counter[str]()
        """The bytes that this process has pushed of each class since the report."""
        self._unseen = 0
        """Those since the last look, of all classes."""
        self._holds_itself = False
        self._large: frozenset[str] | None = None
        """The classes for which no reserve is kept; ``None`` if they are not known."""
        self._small_at = self._reserve_until = 0.0
        self._reserve_left = 0.0
        """The bytes of the reserve that this process may use before it looks again."""

    def check(self, worker: str, unseen_bytes: int = 0) -> None:
        """Read the report of the shard where that is due: after a time, or after ``unseen_bytes`` that the process has pushed.

        Raises BacklogFullError for a class that is held back.
        """
        now = monotonic()
        if worker not in self._held:
            self._pushed[worker] += unseen_bytes
            self._unseen += unseen_bytes
        looks = self._unseen >= self.most_unseen
        if looks or now >= self._read_at:
            # First: other threads go on with what is known.
            self._read_at, self._unseen = now + READ_PERIOD_S, 0
            self._read(now, looks=looks or self._holds_itself)
        found = self._held.get(worker)
        if found is not None:
            limit = (
                f"it has more than a fair share of the memory, which is above the budget of {format_bytes(self._budget)} "
                f"(shards.{self._shard}.memory_budget)"
            )
            raise BacklogFullError(worker, self._shard, found.jobs, found.bytes, limit)

    def largest(self) -> str:
        """Return which class has most of the memory of the shard, for the error of a full Redis; '' if that is not known."""
        now = monotonic()
        if now >= self._largest_at:
            self._largest_at = now + READ_PERIOD_S
            self._largest = _largest_class(read_report(self._ask("GET", MEMORY)))
        return self._largest

    def has_reserve(self, worker: str, size: int) -> bool:
        """Return whether a Redis without memory takes so many bytes more of a class: a small one, within the reserve.

        Without a report, which a worker process of the shard writes, no class is known to be small.
        """
        now = monotonic()
        if worker in self._held or not self._is_small(worker, now):
            return False
        if now >= self._reserve_until or size > self._reserve_left:
            found = self._ask("INFO", "memory") or b""
            used, most = (int(one[1]) if (one := number.search(found)) else 0 for number in (_USED, _MAXMEMORY))
            reserve = max(LEAST_RESERVE, most * RESERVE)
            self._reserve_until = now + _RESERVE_S
            # A job that is larger than a part may have all that is left.
            self._reserve_left = min(most + reserve - used, max(size, reserve * _RESERVE_PART))
        if size > self._reserve_left:
            return False
        self._reserve_left -= size
        return True

    def _is_small(self, worker: str, now: float) -> bool:
        if now >= self._small_at:
            self._small_at = now + READ_PERIOD_S
            report = read_report(self._ask("GET", MEMORY))
            self._large = None if report is None else large_classes(report)
        return self._large is not None and worker not in self._large

    def _read(self, now: float, *, looks: bool) -> None:
        data = self._ask("GET", MEMORY)
        report = read_report(data) or MemoryReport(0, 0, {})
        if data != self._report:
            self._report = data
            # The new one counts what was pushed before it was made; so the pushes of this moment may count twice.
            self._pushed.clear()
        own = self._too_large(report) if looks and report.budget else {}
        self._holds_itself = bool(own)
        self._held, self._budget = {**own, **report.held}, report.budget
        self.most_unseen = max(_LEAST_UNSEEN, round(report.budget * _UNSEEN_SHARE) or LimitTime.most_unseen)
        if own:
            self._read_at = now + _TENSE_PERIOD_S
        # While a class is held back each push asks; else the next one after the period.
        self.next_at = 0.0 if self._held else self._read_at

    def _too_large(self, report: MemoryReport) -> dict[str, HeldClass]:
        found = _USED.search(self._ask("INFO", "memory") or b"")
        used = int(found[1]) if found else 0
        if used < report.budget * (RELEASED if self._holds_itself else 1.0):
            return {}
        classes = bytes_by_class(report.parts)
        for name, size in tuple(self._pushed.items()):
            jobs, before = classes.get(name, (0, 0))
            classes[name] = jobs, before + size
        return classes_above_fair_share(used, classes, report.budget)

    def _ask(self, *words: str) -> bytes | None:
        try:
            reply = self._run(*words)
        except ShardUnavailableError:
            # The push itself says so. Or its user may not ask: then the report alone decides.
            return None
        return reply if isinstance(reply, bytes) else None


def _largest_class(report: MemoryReport | None) -> str:
    classes = bytes_by_class(report.parts if report is not None else ())
    if not classes:
        return ""
    name, (jobs, size) = max(classes.items(), key=lambda one: one[1][1])
    return f"{name} fills most of it: {format_bytes(size)} in {format_count(jobs, 'job')}; {command('jobs memory')} shows more"
