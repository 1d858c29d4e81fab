"""Make the tables of the view from the facts: filtered and sorted rows of text."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from framework.admin import HeldPlace, JobEntry, Queue, RunningJob, WorkerProcess
from framework.cli.top.facts import SETS, ShardFacts
from framework.cli.top.rates import QueueRates, ShardRates
from framework.terminal.jobs import error_text, format_due
from framework.text import format_age, format_duration

TableName: TypeAlias = Literal["queues", "processes", "jobs", "held", "scheduled", "retry", "dead", "interrupted"]

OVERVIEW: Sequence[TableName] = ("queues", "processes", "jobs", "held")
"""The tables of the view ``overview``; each other view has one table, of its name."""

VIEWS: Sequence[str] = ("overview", *OVERVIEW, *SETS)

HEADINGS: Mapping[TableName, Sequence[str]] = {
    "queues": ("SHARD", "QUEUE", "JOBS", "LATENCY", "IN/S", "OUT/S", "STATE"),
    "processes": ("SHARD", "PROCESS", "TAG", "STATE", "BUSY", "LAST SEEN", "RUNS FOR", "MEMORY", "QUEUES"),
    "jobs": ("SHARD", "JID", "CLASS", "QUEUE", "RUNS FOR", "PROCESS"),
    "held": ("SHARD", "HELD BY", "JOBS", "OLDEST"),
    "scheduled": ("SHARD", "JID", "CLASS", "QUEUE", "DUE IN"),
    "retry": ("SHARD", "JID", "CLASS", "QUEUE", "RUNS IN", "ERROR"),
    "dead": ("SHARD", "JID", "CLASS", "QUEUE", "DEAD FOR", "ERROR"),
    "interrupted": ("SHARD", "JID", "CLASS", "QUEUE", "THERE FOR", "ERROR"),
}

Subject: TypeAlias = Queue | WorkerProcess | RunningJob | HeldPlace | JobEntry


class Cell(NamedTuple):
    """A text of a table, and the value by which a column is sorted: numbers, the greatest first; or texts."""

    text: str
    value: float | str


class TableRow(NamedTuple):
    """A row of a table, and the thing that it shows. ``key`` stays the same while the thing is shown."""

    table: TableName
    key: str
    subject: Subject
    cells: Sequence[Cell]


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a table after the filter, in order; ``total`` counts those without the filter."""

    name: TableName
    headings: Sequence[str]
    rows: Sequence[TableRow]
    total: int


@dataclass(frozen=True, slots=True)
class RowOrder:
    """The column by which a table is sorted, and whether in the opposite order; ``None``: the order of the reader."""

    column: int | None = None
    reverse: bool = False


_FIRST_ORDER: Mapping[TableName, RowOrder] = {"queues": RowOrder(2), "jobs": RowOrder(4), "held": RowOrder(3)}
"""The order of a table until the operator chooses another: first the queues with most jobs, and the longest runs and waits."""


def first_order(name: TableName) -> RowOrder:
    """Return the order of a table until the operator chooses another."""
    return _FIRST_ORDER.get(name, RowOrder())


def tables_of(view: str) -> Sequence[TableName]:
    """Return the tables of a view."""
    return OVERVIEW if view == "overview" else [name for name in HEADINGS if name == view]


def make_table(
    name: TableName, readings: Sequence[tuple[ShardFacts, ShardRates]], pattern: str, order: RowOrder
) -> Table:
    """Return the rows that contain ``pattern`` in any cell, without regard to case, in order."""
    found = [row for facts, rates in readings for row in _rows(name, facts, rates)]
    wanted = pattern.casefold()
    rows = [row for row in found if any(wanted in cell.text.casefold() for cell in row.cells)]
    column = order.column
    if column is not None:
        numeric = any(not isinstance(row.cells[column].value, str) for row in rows)
        rows.sort(key=lambda row: row.cells[column].value, reverse=numeric is not order.reverse)
    elif order.reverse:
        rows.reverse()
    return Table(name, HEADINGS[name], rows, len(found))


def _rows(name: TableName, facts: ShardFacts, rates: ShardRates) -> Iterator[TableRow]:
    match name:
        case "queues":
            served = {queue for process in facts.processes if not process.is_quiet for queue in process.queues}
            for queue in facts.queues:
                cells = _queue_cells(queue, rates.queues.get(queue.name), is_served=queue.name in served)
                yield _row(name, facts, queue.name, queue, cells)
        case "processes":
            for process in facts.processes:
                yield _row(name, facts, process.identity, process, _process_cells(process, facts.now))
        case "jobs":
            for job in facts.jobs:
                yield _row(name, facts, f"{job.process} {job.thread}", job, _job_cells(job, facts.now))
        case "held":
            for place in facts.held:
                yield _row(name, facts, f"{place.kind} {place.name}", place, _held_cells(place, facts.now))
        case _:
            # After a change of the view the facts have the jobs of the last one until the next reading.
            shown = [entry for entry in facts.entries if entry.kind == name]
            yield from (_row(name, facts, one.text, one, _entry_cells(one, facts.now)) for one in shown)


def _row(name: TableName, facts: ShardFacts, key: str, subject: Subject, cells: Sequence[Cell]) -> TableRow:
    return TableRow(name, f"{name} {facts.shard} {key}", subject, (_text(facts.shard), *cells))


def _queue_cells(queue: Queue, rates: QueueRates | None, *, is_served: bool) -> Sequence[Cell]:
    rates = rates or QueueRates()
    state = "paused" if queue.paused else "served" if is_served else "no process"
    return (
        _text(queue.name),
        Cell(f"{queue.size:,}", queue.size),
        Cell(format_duration(queue.latency) if queue.size else "-", queue.latency),
        _rate(rates.arriving),
        _rate(rates.ending),
        _text(state),
    )


def _process_cells(process: WorkerProcess, now: float) -> Sequence[Cell]:
    return (
        _text(process.identity),
        _text(process.tag or "-"),
        _text("quiet" if process.is_quiet else "running"),
        Cell(f"{process.busy}/{process.slots}", process.busy),
        _age(now, process.beat),
        _age(now, process.started_at),
        Cell(f"{process.rss_kb // 1024:,} MB" if process.rss_kb else "-", process.rss_kb),
        _text(", ".join(process.queues) or "-"),
    )


def _job_cells(job: RunningJob, now: float) -> Sequence[Cell]:
    name = job.worker or "(malformed)"
    return _text(job.jid or "-"), _text(name), _text(job.queue), _age(now, job.since), _text(job.process)


def _held_cells(place: HeldPlace, now: float) -> Sequence[Cell]:
    by = f"{'limit' if place.kind == 'waiting' else 'pause of'} {place.name}"
    return _text(by), Cell(f"{place.jobs:,}", place.jobs), _age(now, place.since)


def _entry_cells(entry: JobEntry, now: float) -> Sequence[Cell]:
    named = (_text(entry.jid or "-"), _text(entry.display_class or "(malformed)"), _text(entry.queue or "-"))
    if entry.kind == "scheduled":
        return *named, Cell(format_due(entry.score, now), entry.score - now)
    if entry.kind == "retry":
        return *named, Cell(format_due(entry.score, now), entry.score - now), _text(error_text(entry))
    return *named, _age(now, entry.score), _text(error_text(entry))


def _text(text: str) -> Cell:
    return Cell(text, text)


def _age(now: float, then: float | None) -> Cell:
    return Cell(format_age(now, then), 0.0 if then is None else now - then)


def _rate(rate: float | None) -> Cell:
    return Cell("-" if rate is None else f"{rate:,.1f}", -1.0 if rate is None else rate)
