"""Show a task while it runs: a bar on a terminal, a line every two seconds elsewhere."""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from demo.progress import LINE_EVERY_S
from framework.tasks import TaskProgress


class TaskView(ABC):
    """Shows one task."""

    @abstractmethod
    def show(self, progress: TaskProgress) -> None:
        """Show how far the task is."""

    @abstractmethod
    def say(self, line: str) -> None:
        """Print an event in a line of its own."""


@contextmanager
def task_view(*, plain: bool) -> Iterator[TaskView]:
    """Return the view that suits standard output."""
    if plain or not sys.stdout.isatty():
        yield TaskLines()
        return
    columns = (
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[counts]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(highlight=False), transient=True) as bars:
        yield TaskBar(bars)


class TaskLines(TaskView):
    """A line every two seconds, and one at the end: for logs and pipes."""

    def __init__(self) -> None:
        self._next = 0.0
        self._last = ""

    def show(self, progress: TaskProgress) -> None:
        line = f"  {counts_of(progress)}"
        now = time.monotonic()
        if line != self._last and (now >= self._next or progress.is_complete):
            self._next, self._last = now + LINE_EVERY_S, line
            print(line, flush=True)

    def say(self, line: str) -> None:
        print(f"  {line}", flush=True)


class TaskBar(TaskView):
    """A bar that is redrawn in place and removed at the end."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._bar: TaskID = bars.add_task("", total=None, counts="")

    def show(self, progress: TaskProgress) -> None:
        total = progress.total or None
        self._bars.update(self._bar, total=total, completed=progress.ended, counts=counts_of(progress))

    def say(self, line: str) -> None:
        self._bars.console.print(line, markup=False)


def counts_of(progress: TaskProgress) -> str:
    """Return the counts by status, the rate, and the seconds until the end."""
    by_status = ", ".join(f"{count:,} {status}" for status, count in progress.counts.items() if count)
    left = "" if progress.eta_s is None or progress.is_complete else f", {progress.eta_s:,.0f} s left"
    rate = f"; {progress.rate:,.1f} per second{left}" if progress.ended else ""
    return f"{progress.ended:,} of {progress.total:,} jobs: {by_status or 'none'}{rate}"
