"""Compute the numbers of a run for the report and the summary of the demo."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine, func, select

from framework.errors import BusinessError
from workers.code_index.tables import files, results, runs
from workers.database import reading

TABLE_ROWS: Final = 12
"""Rows in each "most" table."""

_SIZE_EDGES: Final = (1, 10, 30, 100, 300, 1_000, 3_000, 10_000)
_WIDTHS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
_MAX_BARS: Final = 60


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over a run."""

    files: int
    measured: int
    refused: int
    size: int
    lines: int
    functions: int
    classes: int
    cpu_s: float
    span_s: float
    """From the start of the first file's analysis to the end of the last one's."""

    @property
    def jobs_per_second(self) -> float:
        """Files per second over the whole span; 0 when it took no time."""
        return self.files / self.span_s if self.span_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class FileRow:
    """One measured file in a table."""

    shown: str
    size: int
    lines: int
    cpu_s: float
    longest_name: str | None
    longest_lines: int


@dataclass(frozen=True, slots=True)
class PackageRow:
    """The files of one top-level package."""

    name: str
    files: int
    lines: int
    refused: int


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """One file that does not parse, and why."""

    shown: str
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class HistogramBar:
    """A column of a distribution: its label, its text in full, its count."""

    label: str
    description: str
    count: int


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """All numbers that the page of one run shows."""

    run_id: str
    roots: tuple[str, ...]
    created_at: float
    totals: Totals
    slowest: list[FileRow]
    largest: list[FileRow]
    longest_functions: list[FileRow]
    packages: list[PackageRow]
    packages_total: int
    refused: list[RefusedRow]
    sizes: list[HistogramBar]
    completions: list[HistogramBar]
    bar_width_s: float


def read_run_statistics(engine: Engine, run_id: str) -> RunStatistics:
    """The figures of the run as its rows are now. Raises ``BusinessError`` when there is no such run."""
    with reading(engine) as connection:
        run = connection.execute(select(runs.c.roots, runs.c.created_at).where(runs.c.id == run_id)).one_or_none()
        if run is None:
            raise BusinessError(f"there is no run {run_id!r}; it was removed, or the database is another")
        ends = list(connection.scalars(select(results.c.indexed_at).where(results.c.run_id == run_id)))
        lines = connection.scalars(select(results.c.lines).where(results.c.run_id == run_id, results.c.kind.is_(None)))
        pace, width_s = _completion_histogram(ends)
        packages = _packages(connection, run_id)
        return RunStatistics(
            run_id=run_id,
            roots=tuple(map(str, run.roots)),
            created_at=run.created_at,
            totals=_totals(connection, run_id),
            slowest=_files(connection, run_id, results.c.cpu_s),
            largest=_files(connection, run_id, results.c.lines),
            longest_functions=_files(connection, run_id, results.c.longest_lines),
            packages=packages[:TABLE_ROWS],
            packages_total=len(packages),
            refused=_refused(connection, run_id),
            sizes=_size_histogram([count or 0 for count in lines]),
            completions=pace,
            bar_width_s=width_s,
        )


def _totals(connection: Connection, run_id: str) -> Totals:
    row = connection.execute(
        select(
            func.count(),
            func.count(results.c.kind),
            func.coalesce(func.sum(results.c.size), 0),
            func.coalesce(func.sum(results.c.lines), 0),
            func.coalesce(func.sum(results.c.functions), 0),
            func.coalesce(func.sum(results.c.classes), 0),
            func.coalesce(func.sum(results.c.cpu_s), 0.0),
            func.coalesce(func.max(results.c.indexed_at) - func.min(results.c.indexed_at - results.c.duration_s), 0.0),
        ).where(results.c.run_id == run_id)
    ).one()
    total, refused, size, lines, functions, classes, cpu_s, span_s = row
    return Totals(
        files=total,
        measured=total - refused,
        refused=refused,
        size=int(size),
        lines=int(lines),
        functions=int(functions),
        classes=int(classes),
        cpu_s=float(cpu_s),
        span_s=float(span_s),
    )


def _files(connection: Connection, run_id: str, most: Any) -> list[FileRow]:
    numbers = (results.c.size, results.c.lines, results.c.cpu_s, results.c.longest_name, results.c.longest_lines)
    query = (
        select(files.c.shown, *numbers)
        .join_from(results, files, _SAME_FILE)
        .where(results.c.run_id == run_id, results.c.kind.is_(None))
        .order_by(most.desc(), files.c.number)
        .limit(TABLE_ROWS)
    )
    return [FileRow(*row) for row in connection.execute(query)]


def _packages(connection: Connection, run_id: str) -> list[PackageRow]:
    lines = func.coalesce(func.sum(results.c.lines), 0)
    query = (
        select(files.c.package, func.count(), lines, func.count(results.c.kind))
        .join_from(results, files, _SAME_FILE)
        .where(results.c.run_id == run_id)
        .group_by(files.c.package)
        .order_by(lines.desc(), files.c.package)
    )
    return [PackageRow(name, files, int(total), refused) for name, files, total, refused in connection.execute(query)]


def _refused(connection: Connection, run_id: str) -> list[RefusedRow]:
    query = (
        select(files.c.shown, results.c.kind, results.c.reason)
        .join_from(results, files, _SAME_FILE)
        .where(results.c.run_id == run_id, results.c.kind.is_not(None))
        .order_by(results.c.kind, files.c.number)
    )
    return [RefusedRow(shown, kind or "", reason or "") for shown, kind, reason in connection.execute(query)]


_SAME_FILE: Final = (results.c.run_id == files.c.run_id) & (results.c.number == files.c.number)


def _size_histogram(lines: Sequence[int]) -> list[HistogramBar]:
    """Return the histogram of lines per file; the edges grow about threefold."""
    counts = [0] * (len(_SIZE_EDGES) + 1)
    for count in lines:
        counts[bisect_right(_SIZE_EDGES, count)] += 1
    slices = [HistogramBar("0", "empty", counts[0])]
    for index, edge in enumerate(_SIZE_EDGES[:-1], 1):
        upper = _SIZE_EDGES[index] - 1
        slices.append(HistogramBar(f"{_short(edge)}+", f"{edge:,} to {upper:,} lines", counts[index]))
    last = _SIZE_EDGES[-1]
    return [*slices, HistogramBar(f"{_short(last)}+", f"{last:,} lines and more", counts[-1])]


def _completion_histogram(ends: Sequence[float]) -> tuple[list[HistogramBar], float]:
    """Return the finished files per slice of time, in at most sixty slices of a round width."""
    if not ends:
        return [], _WIDTHS_S[0]
    first, span = min(ends), max(ends) - min(ends)
    width = next((width for width in _WIDTHS_S if span / width < _MAX_BARS), span / _MAX_BARS + 1)
    counts = [0] * (int(span / width) + 1)
    for end in ends:
        counts[min(int((end - first) / width), len(counts) - 1)] += 1
    labels = [f"{index * width:g}" for index in range(len(counts))]
    return [HistogramBar(label, f"from {label} s", count) for label, count in zip(labels, counts, strict=True)], width


def _short(number: int) -> str:
    return f"{number // 1000}k" if number >= 1000 else str(number)
