"""The state of the view, and the effect of each key on it: no input and no output."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

from framework.admin import JobEntry, JobRecord, Queue, RunningJob, WorkerProcess
from framework.cli.top.rows import VIEWS, RowOrder, Table, TableName, TableRow, first_order

Verb: TypeAlias = Literal["pause", "unpause", "retry", "delete", "quiet"]


class Intent(NamedTuple):
    """An action on one thing, after the operator has said yes."""

    verb: Verb
    row: TableRow


@dataclass(frozen=True, slots=True)
class ViewState:
    """The choices of the operator."""

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
    """The job whose payload is on the screen instead of the tables."""
    message: str = ""
    read_only: bool = False
    ended: bool = False

    def order(self, name: TableName) -> RowOrder:
        """Return the order of a table."""
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
        return Step(_show_job(state, selected_row(state, rows)))
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


def _show_job(state: ViewState, row: TableRow | None) -> ViewState:
    if job_of(row) is None:
        return replace(state, message="Enter shows a job: select one in the view jobs, or in that of a set.")
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
    if len(key) == 1 and key in "123456789"[: len(VIEWS)]:
        return _show(state, VIEWS[int(key) - 1])
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
