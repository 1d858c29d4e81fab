"""Draw the view as lines of text for a terminal of any size, or as plain text: no input and no output."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, TypeAlias

from framework.admin import JobRecord, ShardStats
from framework.cli.jobs_show import record_lines
from framework.cli.top.facts import ShardFacts
from framework.cli.top.rates import ShardRates
from framework.cli.top.rows import VIEWS, Table, TableRow
from framework.cli.top.state import ViewState, job_of, possible_verbs, selected_row
from framework.telemetry.visible import visible
from framework.terminal.output import fit, text_width
from framework.text import format_clock_time

Style: TypeAlias = Literal["plain", "title", "heading", "selected", "alert", "question", "help"]

_COUNTS = ("enqueued", "scheduled", "retry", "dead", "interrupted", "held")
_MAX_CELL_WIDTH = 80
_LEAST_TABLE = 3
"""The lines of a table that is shown at all: its name, its headings, one row."""


class ScreenLine(NamedTuple):
    """One line of the screen."""

    text: str
    style: Style = "plain"


class Size(NamedTuple):
    """The columns and lines of a terminal."""

    columns: int
    lines: int


@dataclass(frozen=True, slots=True)
class Frame:
    """The content of a drawing: the readings of the shards that have answered, and the errors of those that do not answer now."""

    readings: Sequence[tuple[ShardFacts, ShardRates]]
    failures: Mapping[str, str]
    tables: Sequence[Table]
    clock: float
    """The time of this host, in epoch seconds."""
    period_s: float


def draw(frame: Frame, state: ViewState, size: Size) -> list[ScreenLine]:
    """Return the lines that fill the terminal."""
    head, foot = [*_head(frame, state)], [*_foot(frame, state)]
    room = max(0, size.lines - len(head) - len(foot))
    job = job_of(state.shown)
    body = _draw_tables(frame.tables, state, room) if job is None else _draw_job(job, size.columns)
    lines = [*head, *body][: max(0, size.lines - len(foot))]
    lines += [ScreenLine("")] * (size.lines - len(foot) - len(lines))
    return [ScreenLine(fit(one.text, size.columns), one.style) for one in [*lines, *foot][: size.lines]]


def as_text(frame: Frame, state: ViewState) -> Iterator[str]:
    """Yield the lines of the whole view, for a pipe."""
    for line in _head(frame, state):
        yield line.text.rstrip()
    for table in frame.tables:
        yield ""
        for line in _draw_table(table, table.rows, None):
            yield line.text.rstrip()


def _head(frame: Frame, state: ViewState) -> Iterator[ScreenLine]:
    clock = format_clock_time(frame.clock)
    shards = ", ".join(facts.shard for facts, _ in frame.readings) or "no shard has answered"
    note = "  read-only" if state.read_only else ""
    yield ScreenLine(f"application-worker top  {clock}  shards: {shards}  every {frame.period_s:g} s{note}", "title")
    sums = {one.name: sum(getattr(facts.stats, one.name) for facts, _ in frame.readings) for one in fields(ShardStats)}
    slots = sum(process.slots for facts, _ in frame.readings for process in facts.processes)
    processed = _rate_text([one.processed for _, one in frame.readings])
    failed = _rate_text([one.failed for _, one in frame.readings])
    yield ScreenLine(
        f"processed {sums['processed']:,}{processed}  failed {sums['failed']:,}{failed}"
        f"  busy {sums['busy']:,}/{slots:,} in {sums['processes']:,} process{'es' * (sums['processes'] != 1)}"
    )
    yield ScreenLine("  ".join(f"{name} {sums[name]:,}" for name in _COUNTS))
    for shard, failure in frame.failures.items():
        yield ScreenLine(f"{shard}: {visible(failure)}", "alert")


def _rate_text(rates: Sequence[float | None]) -> str:
    known = [rate for rate in rates if rate is not None]
    return f" ({sum(known):,.1f}/s)" if known else ""


def _foot(frame: Frame, state: ViewState) -> Iterator[ScreenLine]:
    names = [f"{number} {name}" for number, name in enumerate(VIEWS, 1)]
    yield ScreenLine("  ".join(f"[{one}]" if one.endswith(f" {state.view}") else one for one in names), "heading")
    if state.shown is not None:
        yield ScreenLine("any key: back to the tables  q quit", "help")
        return
    if state.asked is not None:
        shown = visible(state.asked.row.cells[1].text, _MAX_CELL_WIDTH)
        shard = state.asked.row.cells[0].text
        yield ScreenLine(f"{state.asked.verb.capitalize()} {shown} on {shard}? y: yes, any other key: no", "question")
        return
    if state.typing:
        yield ScreenLine(f"filter: {visible(state.pattern)}_   Enter: keep it, Esc: clear it", "question")
        return
    filtered = f"filter {visible(state.pattern)!r} (Esc clears)  " if state.pattern else ""
    if state.message:
        yield ScreenLine(f"{filtered}{visible(state.message)}", "question")
        return
    row = selected_row(state, [row for table in frame.tables for row in table.rows])
    verbs = "".join(f"{key} {verb}  " for key, verb in possible_verbs(row).items()) if not state.read_only else ""
    verbs = f"Enter show  {verbs}" if job_of(row) is not None else verbs
    yield ScreenLine(f"{filtered}{verbs}q quit  / filter  s S sort  ↑↓ select  Tab view", "help")


def _draw_job(job: JobRecord, columns: int) -> Iterator[ScreenLine]:
    """Yield what `jobs show` prints of the job; a long value goes on in the next lines."""
    first, *others = record_lines(job)
    yield ScreenLine(visible(first), "title")
    for line in map(visible, others):
        for start in range(0, max(1, len(line)), max(20, columns)):
            yield ScreenLine(line[start : start + max(20, columns)])


def _draw_tables(tables: Sequence[Table], state: ViewState, room: int) -> Iterator[ScreenLine]:
    """Yield the tables within the room, each with a share of it; the selected row is always shown."""
    chosen = selected_row(state, [row for table in tables for row in table.rows])
    for table, lines in zip(tables, _shares([len(table.rows) for table in tables], room), strict=True):
        if lines >= _LEAST_TABLE:
            yield from _draw_table(table, _window(table.rows, chosen, lines - 2), chosen)


def _shares(rows: Sequence[int], room: int) -> list[int]:
    """Return how many lines each table has: two lines and its rows if there is room, else as equal a share as possible."""
    wanted = [2 + max(1, count) for count in rows]
    shares = [0] * len(rows)
    left = room
    while left > 0 and (open_ := [at for at, lines in enumerate(wanted) if shares[at] < lines]):
        for at in open_[:left]:
            shares[at] += 1
        left -= len(open_[:left])
    return shares


def _window(rows: Sequence[TableRow], chosen: TableRow | None, count: int) -> Sequence[TableRow]:
    """Return ``count`` successive rows, with the chosen row among them if the table has it."""
    at = next((number for number, row in enumerate(rows) if chosen is not None and row.key == chosen.key), 0)
    start = max(0, min(at - count // 2, len(rows) - count))
    return rows[start : start + count]


def _draw_table(table: Table, rows: Sequence[TableRow], chosen: TableRow | None) -> Iterator[ScreenLine]:
    count = f"{len(table.rows):,}" if len(table.rows) == table.total else f"{len(table.rows):,} of {table.total:,}"
    yield ScreenLine(f"{table.name} ({count})", "title")
    texts = [[visible(cell.text, _MAX_CELL_WIDTH) for cell in row.cells] for row in rows]
    widths = [max(map(text_width, column)) for column in zip(table.headings, *texts, strict=True)]
    yield ScreenLine(_join(table.headings, widths), "heading")
    for row, cells in zip(rows, texts, strict=True):
        is_chosen = chosen is not None and row.key == chosen.key
        yield ScreenLine(_join(cells, widths), "selected" if is_chosen else "plain")


def _join(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell + " " * (width - text_width(cell)) for cell, width in zip(cells, widths, strict=True))
