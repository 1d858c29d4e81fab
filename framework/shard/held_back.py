"""Know the classes whose pushes a shard holds back, because they fill its memory."""

from collections import Counter
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, NamedTuple

from framework.command_line import command
from framework.errors import BacklogFullError, ShardUnavailableError
from framework.text import format_bytes, format_count
from framework.typeguards import is_mapping
from framework.wire.json import loads_object

READ_PERIOD_S = 5.0
"""How often a process that pushes reads which classes are held back."""


class HeldClass(NamedTuple):
    """The jobs of a class that is held back, and their bytes."""

    jobs: int
    bytes: int


def held_classes(report: Mapping[str, Any]) -> dict[str, HeldClass]:
    """Return the classes that a report holds back; none where another program wrote it."""
    held: Any = report.get("held")
    try:
        return {str(name): HeldClass(*map(int, one)) for name, one in held.items()} if is_mapping(held) else {}
    except (TypeError, ValueError):
        return {}


def _largest_class(report: Mapping[str, Any]) -> str:
    jobs, sizes = Counter[str](), Counter[str]()
    try:
        for cls, _, number, size in report.get("parts", ()):
            if cls:
                jobs[str(cls)] += int(number)
                sizes[str(cls)] += int(size)
    except (TypeError, ValueError):
        # Another program wrote it.
        return ""
    if not sizes:
        return ""
    ((name, size),) = sizes.most_common(1)
    return f"{name} fills most of it: {format_bytes(size)} in {format_count(jobs[name], 'job')}; {command('jobs memory')} shows more"


class LimitTime:
    """When the next push has to be checked, in seconds of the monotonic clock: at once here."""

    next_at = 0.0


class HeldBack(LimitTime):
    """The classes that a shard holds back, as this process knows them. Threads share it without a lock: two may read at once."""

    def __init__(self, shard: str, read: Callable[[], Any]) -> None:
        """``read`` returns the report of the shard. Raises ShardUnavailableError."""
        self._shard = shard
        self._read = read
        self._read_at = self.next_at = monotonic() + READ_PERIOD_S
        self._held: Mapping[str, HeldClass] = {}
        self._budget: Any = 0
        self._largest, self._largest_at = "", 0.0

    def check(self, worker: str) -> None:
        """Read the report of the shard where that is due. Raises BacklogFullError for a class that is held back."""
        now = monotonic()
        if now >= self._read_at:
            self._read_at = now + READ_PERIOD_S
            report = self._report()
            self._held, self._budget = held_classes(report), report.get("budget")
            # While a class is held back each push asks; else the next one after the period.
            self.next_at = 0.0 if self._held else self._read_at
        found = self._held.get(worker)
        if found is not None:
            budget = format_bytes(self._budget) if isinstance(self._budget, int) else "the shard"
            limit = (
                f"it has more than a fair share of the memory, which is above the budget of {budget} "
                f"(shards.{self._shard}.memory_budget)"
            )
            raise BacklogFullError(worker, self._shard, found.jobs, found.bytes, limit)

    def largest(self) -> str:
        """Return which class has most of the memory of the shard, for the error of a full Redis; '' if that is not known."""
        now = monotonic()
        if now >= self._largest_at:
            self._largest_at = now + READ_PERIOD_S
            self._largest = _largest_class(self._report())
        return self._largest

    def _report(self) -> Mapping[str, Any]:
        try:
            report = self._read()
        except ShardUnavailableError:
            # The push itself says so.
            return {}
        return loads_object(report) if isinstance(report, bytes) else {}
