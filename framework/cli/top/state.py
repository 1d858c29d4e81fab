"""The tables of the view, its state, and the effect of each key on it: no input and no output."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

from framework.admin import HeldPlace, JobEntry, JobRecord, Queue, RunningJob, WorkerProcess
from framework.admin.rates import QueueRates, ShardRates
from framework.cli.top.facts import CLASSES, SETS, ClassFigures, ShardFacts
from framework.terminal.jobs import error_text, format_due
from framework.text import format_age, format_duration

TableName: TypeAlias = Literal[
    "queues", "processes", "jobs", "held", "scheduled", "retry", "dead", "interrupted", "classes"
]

OVERVIEW: Sequence[TableName] = ("queues", "processes", "jobs", "held")
"""The tables of the view ``overview``; each other view has one table, of its name."""

VIEWS: Sequence[str] = ("overview", *OVERVIEW, *SETS, CLASSES)
VIEW_KEYS = "1234567890"

HEADINGS: Mapping[TableName, Sequence[str]] = {
    "queues": ("SHARD", "QUEUE", "JOBS", "LATENCY", "IN/S", "OUT/S", "STATE"),
    "processes": ("SHARD", "PROCESS", "TAG", "STATE", "BUSY", "LAST SEEN", "RUNS FOR", "MEMORY", "QUEUES"),
    "jobs": ("SHARD", "JID", "CLASS", "QUEUE", "RUNS FOR", "PROCESS"),
    "held": ("SHARD", "HELD BY", "JOBS", "OLDEST"),
    "scheduled": ("SHARD", "JID", "CLASS", "QUEUE", "DUE IN"),
    "retry": ("SHARD", "JID", "CLASS", "QUEUE", "RUNS IN", "ERROR"),
    "dead": ("SHARD", "JID", "CLASS", "QUEUE", "DEAD FOR", "ERROR"),
    "interrupted": ("SHARD", "JID", "CLASS", "QUEUE", "THERE FOR", "ERROR"),
    "classes": ("SHARD", "CLASS", "RUNS/MIN", "MEAN", "FAILED", "WAITING", "HELD", "LIMIT"),
}

Subject: TypeAlias = Queue | WorkerProcess | RunningJob | HeldPlace | JobEntry | ClassFigures


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


_FIRST_ORDER: Mapping[TableName, RowOrder] = {
    "queues": RowOrder(2),
    "jobs": RowOrder(4),
    "held": RowOrder(3),
    "classes": RowOrder(5),
}
"""The order of a table until the operator chooses another: first the queues with most jobs, and the longest runs and waits."""


def first_order(name: TableName) -> RowOrder:
    """Return the order of a table until the operator chooses another."""
    return _FIRST_ORDER.get(name, RowOrder())


def tables_of(view: str) -> Sequence[TableName]:
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
            yield from _queue_rows(facts, rates)
        case "processes":
            for process in facts.processes:
                yield _row(name, facts, process.identity, process, _process_cells(process, facts.now))
        case "jobs":
            for job in facts.jobs:
                yield _row(name, facts, f"{job.process} {job.thread}", job, _job_cells(job, facts.now))
        case "held":
            for place in facts.held:
                yield _row(name, facts, f"{place.kind} {place.name}", place, _held_cells(place, facts.now))
        case "classes":
            for figures in facts.classes:
                yield _row(name, facts, figures.name, figures, _class_cells(figures))
        case _:
            # After a change of the view the facts have the jobs of the last one until the next reading.
            shown = [entry for entry in facts.entries if entry.kind == name]
            yield from (_row(name, facts, one.text, one, _entry_cells(one, facts.now)) for one in shown)


def _queue_rows(facts: ShardFacts, rates: ShardRates) -> Iterator[TableRow]:
    served = {queue for process in facts.processes if not process.is_quiet for queue in process.queues}
    for queue in facts.queues:
        cells = _queue_cells(queue, rates.queues.get(queue.name), is_served=queue.name in served)
        yield _row("queues", facts, queue.name, queue, cells)


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


def _class_cells(one: ClassFigures) -> Sequence[Cell]:
    runs = one.runs
    per_minute = runs.processed / runs.minutes if runs.minutes else 0.0
    about = "~" if one.is_estimate and one.waiting else ""
    return (
        _text(one.name),
        Cell(f"{per_minute:,.1f}", per_minute),
        Cell("-" if runs.mean_s is None else f"{runs.mean_s:,.3g} s", runs.mean_s or 0.0),
        Cell(f"{runs.failed:,}", runs.failed),
        Cell(f"{about}{one.waiting:,}", one.waiting),
        Cell(f"{one.held:,}", one.held),
        _text(one.usage or "-"),
    )


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


Verb: TypeAlias = Literal["pause", "unpause", "retry", "delete", "quiet"]


class Intent(NamedTuple):
    """An action on one thing, after the operator has said yes."""

    verb: Verb
    row: TableRow


@dataclass(frozen=True, slots=True)
class ViewState:
    view: str = VIEWS[0]
    pattern: str = ""
    typing: bool = False
    """Whether keys write the filter."""
    orders: Mapping[TableName, RowOrder] = field(default_factory=dict[TableName, RowOrder])
    selected: str = ""
    """The key of the selected row."""
    asked: Intent | None = None
    """The action that waits for a yes."""
    shown: TableRow | None = None
    """The row whose details are on the screen instead of the tables."""
    message: str = ""
    read_only: bool = False
    ended: bool = False

    def order(self, name: TableName) -> RowOrder:
        return self.orders.get(name) or first_order(name)


class Step(NamedTuple):
    """The state after a key, and the action that the operator has confirmed with it."""

    state: ViewState
    intent: Intent | None = None


_STEPS: Mapping[str, int] = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -10, "page down": 10}
_FAR: Mapping[str, int] = {"home": 0, "end": -1}
_TURNS: Mapping[str, int] = {"tab": 1, "right": 1, "back tab": -1, "left": -1}
_VERBS = "prdu"


def press(state: ViewState, key: str, tables: Sequence[Table]) -> Step:
    """Return the effect of the key, with these tables on the screen. An unknown key has none."""
    if state.shown is not None:
        return Step(replace(state, shown=None, ended=key == "q"))
    if state.asked is not None:
        return _answer(state, state.asked, key)
    if state.typing:
        return Step(_type(state, key))
    state = replace(state, message="")
    rows = [row for table in tables for row in table.rows]
    if key in _STEPS or key in _FAR:
        return Step(_move(state, key, rows))
    if key in ("s", "S"):
        return Step(_sort(state, tables, opposite=key == "S"))
    if key in tuple(_VERBS):
        return Step(_ask(state, key, selected_row(state, rows)))
    if key == "enter":
        return Step(_show_details(state, selected_row(state, rows)))
    return Step(_go(state, key))


def selected_row(state: ViewState, rows: Sequence[TableRow]) -> TableRow | None:
    """Return the selected row; the first one where the selected thing is not shown."""
    return next((row for row in rows if row.key == state.selected), rows[0] if rows else None)


def possible_verbs(row: TableRow | None) -> Mapping[str, Verb]:
    """Return the actions on the thing that a row shows, by their keys."""
    match row.subject if row is not None else None:
        case Queue() as queue:
            return {"p": "unpause" if queue.paused else "pause"}
        case WorkerProcess():
            return {"u": "quiet"}
        case JobEntry() as entry:
            return {"r": "retry", "d": "delete"} if entry.kind in ("retry", "dead") else {"d": "delete"}
        case _:
            return {}


def job_of(row: TableRow | None) -> JobRecord | None:
    """Return the job that a row shows, ``None`` for a row of another thing."""
    match row.subject if row is not None else None:
        case RunningJob() as running:
            return running.job
        case JobEntry() as entry:
            return entry
        case _:
            return None


def _show_details(state: ViewState, row: TableRow | None) -> ViewState:
    if row is None:
        return replace(state, message="Enter shows the details of a row: there is none here.")
    return replace(state, shown=row)


def _answer(state: ViewState, asked: Intent, key: str) -> Step:
    calm = replace(state, asked=None)
    if key in ("y", "Y"):
        return Step(calm, asked)
    return Step(replace(calm, message=f"Nothing was changed: {asked.verb} needs the key y."))


def _type(state: ViewState, key: str) -> ViewState:
    match key:
        case "enter":
            return replace(state, typing=False)
        case "escape":
            return replace(state, typing=False, pattern="")
        case "backspace":
            return replace(state, pattern=state.pattern[:-1])
        case _:
            return replace(state, pattern=state.pattern + key) if len(key) == 1 else state


def _move(state: ViewState, key: str, rows: Sequence[TableRow]) -> ViewState:
    row = selected_row(state, rows)
    if row is None:
        return state
    at = _FAR[key] if key in _FAR else max(0, min(len(rows) - 1, rows.index(row) + _STEPS[key]))
    return replace(state, selected=rows[at].key)


def _sort(state: ViewState, tables: Sequence[Table], *, opposite: bool) -> ViewState:
    """Sort the table of the selected row by the next column, or in the opposite order."""
    row = selected_row(state, [row for table in tables for row in table.rows])
    table = next((one for one in tables if row is not None and one.name == row.table), None)
    if table is None:
        return state
    order = state.order(table.name)
    if opposite:
        order = replace(order, reverse=not order.reverse)
    else:
        order = RowOrder(0 if order.column is None else (order.column + 1) % len(table.headings))
    column = "the order of the set" if order.column is None else table.headings[order.column]
    message = f"{table.name}: sorted by {column}{', in the opposite order' if order.reverse else ''}"
    return replace(state, orders={**state.orders, table.name: order}, message=message)


def _ask(state: ViewState, key: str, row: TableRow | None) -> ViewState:
    verb = possible_verbs(row).get(key)
    if verb is None or row is None:
        what = "no row is selected" if row is None else f"it is no action for {row.table}"
        return replace(state, message=f"The key {key} does nothing here: {what}.")
    if state.read_only:
        return replace(state, message=f"{verb} is refused: this view was started with --read-only.")
    return replace(state, asked=Intent(verb, row))


def _go(state: ViewState, key: str) -> ViewState:
    """Change the view, begin a filter, or end."""
    if key in _TURNS:
        return _show(state, VIEWS[(VIEWS.index(state.view) + _TURNS[key]) % len(VIEWS)])
    if len(key) == 1 and key in VIEW_KEYS:
        return _show(state, VIEWS[VIEW_KEYS.index(key)])
    match key:
        case "/":
            return replace(state, typing=True)
        case "escape":
            return replace(state, pattern="")
        case "q":
            return replace(state, ended=True)
        case _:
            return state


def _show(state: ViewState, view: str) -> ViewState:
    return replace(state, view=view, selected="")
