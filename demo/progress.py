"""Show the progress: a bar on a terminal, a line every few seconds elsewhere."""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from workers.code_index.index import RunProgress

LINE_EVERY_S = 2.0


class Display(ABC):
    """Displays the progress of a run."""

    @abstractmethod
    def show(self, state: RunProgress | None) -> None:
        """Show the run; ``None`` while the scan has not started."""

    @abstractmethod
    def say(self, line: str) -> None:
        """Print an event in a line of its own."""


@contextmanager
def display(*, plain: bool) -> Iterator[Display]:
    """Return the display that suits standard output."""
    if plain or not sys.stdout.isatty():
        yield Lines()
        return
    console = Console(highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=36),
        TextColumn("{task.fields[counts]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bar(progress)


class Lines(Display):
    """A line every two seconds, and one at the end: for logs and pipes."""

    def __init__(self) -> None:
        self._pace = Pace()
        self._next = 0.0
        self._last = ""

    def show(self, state: RunProgress | None) -> None:
        line = f"  {_counts(state, self._pace.of(state))}"
        now = time.monotonic()
        if line != self._last and (now >= self._next or (state is not None and state.finished)):
            self._next, self._last = now + LINE_EVERY_S, line
            print(line, flush=True)

    def say(self, line: str) -> None:
        print(f"  {line}", flush=True)


class Bar(Display):
    """A bar that is redrawn in place and removed at the end."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._pace = Pace()
        self._task: TaskID = progress.add_task("Scanning", total=None, counts="")

    def show(self, state: RunProgress | None) -> None:
        known = state is not None and state.files_total is not None
        self._progress.update(
            self._task,
            description="Indexing" if known else "Scanning",
            total=state.files_total if state else None,
            completed=state.done if state else 0,
            counts=_counts(state, self._pace.of(state)),
        )

    def say(self, line: str) -> None:
        self._progress.console.print(line, markup=False)


class Pace:
    """Files per second since the first one was done."""

    def __init__(self) -> None:
        self._start: tuple[float, int] | None = None

    def of(self, state: RunProgress | None) -> float:
        """Return the pace now; 0 while it is unknown."""
        if state is None or state.done == 0:
            return 0.0
        now = time.monotonic()
        if self._start is None:
            self._start = (now, state.done)
        since, done = self._start
        return (state.done - done) / (now - since) if now > since else 0.0


def _counts(state: RunProgress | None, pace: float) -> str:
    if state is None or state.files_total is None:
        return "listing the files"
    speed = f", {pace:,.0f} per second" if pace >= 1 else ""
    refused = f", {state.refused:,} do not parse" if state.refused else ""
    return f"{state.done:,} of {state.files_total:,} files{speed}{refused}"
