"""Print the demo's summary."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from demo.activity import Activity
from workers.code_index.run_statistics import FileRow, RunStatistics

LISTED = 5


def print_summary(figures: RunStatistics, activity: Activity, *, places: Sequence[tuple[str, str]]) -> None:
    """Print the results, the speed, and where to find more."""
    totals = figures.totals
    kinds = Counter(row.kind.replace("_", " ") for row in figures.refused)
    refused = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    pace = f"{totals.jobs_per_second:,.0f} jobs per second"
    files = "1 file" if totals.files == 1 else f"{totals.files:,} files"
    heading(f"Done: {files} in {totals.span_s:.1f} s, {pace}.")
    _table(
        [
            ("files", f"{totals.files:,}", f"{totals.size / 1e6:,.1f} MB"),
            ("lines", f"{totals.lines:,}", ""),
            ("functions", f"{totals.functions:,}", ""),
            ("classes", f"{totals.classes:,}", ""),
            ("do not parse", f"{totals.refused:,}", refused),
            ("retries", f"{activity.retries:,}", "runs after a run that failed"),
            ("extra runs", f"{activity.extra_runs:,}", "jobs that ran again, for instance after a process was killed"),
            ("restarts", f"{activity.restarts:,}", "worker processes that died and were replaced"),
        ]
    )
    heading("Slowest files")
    _files(figures.slowest, lambda row: f"{row.cpu_s * 1000:,.1f} ms")
    heading("Largest files")
    _files(figures.largest, lambda row: f"{row.lines:,} lines")
    if figures.refused:
        heading("Files that do not parse")
        for row in figures.refused[:LISTED]:
            print(f"  {row.shown}: {row.reason}")
        if len(figures.refused) > LISTED:
            print(f"  ... and {len(figures.refused) - LISTED:,} more in the report")
    print()
    for name, place in places:
        print(f"{name:<10} {place}")


def shown_path(path: Path) -> str:
    """Return the path as typed from here."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)


def heading(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}")


def _table(rows: Sequence[tuple[str, str, str]]) -> None:
    for name, number, note in rows:
        print(f"  {name:<13}{number:>12}   {note}".rstrip())


def _files(rows: Sequence[FileRow], value: Callable[[FileRow], str]) -> None:
    for row in rows[:LISTED]:
        print(f"  {value(row):>14}   {row.shown}")
