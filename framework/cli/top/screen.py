"""Draw the view as lines of text for a terminal of any size, or as plain text; read keys, and restore the terminal at any end."""

import os
import re
import select
import signal
import socket
import sys
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from framework.admin import ShardStats
from framework.admin.rates import ShardRates
from framework.cli.jobs_list import record_lines
from framework.cli.top.details import detail_lines
from framework.cli.top.facts import ShardFacts
from framework.cli.top.state import VIEW_KEYS, VIEWS, Table, TableRow, ViewState, job_of, possible_verbs, selected_row
from framework.terminal.output import fit, text_width
from framework.text import format_clock_time, visible

_NAMES: Mapping[bytes, str] = {
    b"\r": "enter",
    b"\n": "enter",
    b"\t": "tab",
    b"\x7f": "backspace",
    b"\x08": "backspace",
    b"\x1b": "escape",
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1b[H": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1b[4~": "end",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[Z": "back tab",
}
"""The sequences of xterm, which other terminals send too."""

# A sequence of CSI or SS3, a single ESC, or one character of UTF-8.
_KEY = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1bO.|\x1b|[\xc2-\xf4][\x80-\xbf]+|.", re.DOTALL)


def parse_keys(data: bytes) -> Iterator[str]:
    """Yield a name, such as ``page up``, or the character of each key. Unknown sequences are left out."""
    for match in _KEY.finditer(data):
        # A terminal in application mode sends ESC O A instead of ESC [ A.
        sent = match[0].replace(b"\x1bO", b"\x1b[")
        name = _NAMES.get(sent)
        if name is not None:
            yield name
        elif not sent.startswith(b"\x1b"):
            text = sent.decode(errors="replace")
            if text.isprintable():
                yield text


Style: TypeAlias = Literal["plain", "title", "heading", "selected", "alert", "question", "help"]

_COUNTS = ("enqueued", "scheduled", "retry", "dead", "interrupted", "held")
_MAX_CELL_WIDTH = 80
_LEAST_TABLE = 3
"""The lines of a table that is shown at all: its name, its headings, one row."""


class ScreenLine(NamedTuple):
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
    body = (
        _draw_tables(frame.tables, state, room)
        if state.shown is None
        else _draw_details(frame, state.shown, size.columns)
    )
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
    names = [f"{key} {name}" for key, name in zip(VIEW_KEYS, VIEWS, strict=True)]
    yield ScreenLine("  ".join(f"[{one}]" if one.endswith(f" {state.view}") else one for one in names), "heading")
    if state.shown is not None:
        yield ScreenLine("Esc, or any other key: back to the tables  q quit", "help")
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
    verbs = f"Enter show  {verbs}" if row is not None else verbs
    yield ScreenLine(f"{filtered}{verbs}q quit  / filter  s S sort  ↑↓ select  Tab view", "help")


def _draw_details(frame: Frame, row: TableRow, columns: int) -> Iterator[ScreenLine]:
    """Yield what `jobs show` prints of a job, or the details of another thing; a long value goes on in the next lines."""
    job = job_of(row)
    # The row may have left the tables since; else it has newer figures there.
    newest = next((one for table in frame.tables for one in table.rows if one.key == row.key), row)
    first, *others = record_lines(job) if job is not None else detail_lines(newest, frame.readings)
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


_ENTER = "\x1b[?1049h\x1b[?25l"
"""The alternate screen, and no cursor."""
_LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"
_STYLES: Mapping[Style, str] = {
    "plain": "",
    "title": "\x1b[1m",
    "heading": "\x1b[2m",
    "selected": "\x1b[7m",
    "alert": "\x1b[1;31m",
    "question": "\x1b[1;33m",
    "help": "\x1b[2m",
}
_READ_BYTES = 1_024
_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGWINCH)
_GONE = "the terminal is closed"
_WAKE = b"\0"
"""A byte that is the number of no signal."""


class TerminalSession:
    """Control the terminal within a ``with`` block, in the main thread of a process that ends after the block.

    Signals take effect in ``keys``, between two steps: INT raises KeyboardInterrupt, TERM and HUP raise SystemExit, and TSTP
    restores the terminal while the process is stopped. The class writes plain escape sequences and does not use curses: they need no
    database of terminals, and one method ends them.
    """

    def __init__(self) -> None:
        self._input = sys.stdin.fileno()
        self._output = sys.stdout.fileno()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._saved: list[Any] = []

    def __enter__(self) -> Self:
        self._saved = termios.tcgetattr(self._input)
        for number in _HANDLED:
            signal.signal(number, _no_operation)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()
        signal.set_wakeup_fd(-1)
        for number in _HANDLED:
            signal.signal(number, signal.SIG_DFL)
        self._reader.close()
        self._writer.close()

    def size(self) -> Size:
        with suppress(OSError):
            columns, lines = os.get_terminal_size(self._output)
            if columns and lines:
                return Size(columns, lines)
        return Size(80, 24)

    def show(self, lines: Sequence[ScreenLine]) -> None:
        """Replace the screen. No line is longer than the screen is wide.

        Raises:
            EOFError: the terminal is gone.
        """
        drawn = "\r\n".join(f"{_STYLES[one.style]}{one.text}\x1b[0m\x1b[K" for one in lines)
        self._write(f"\x1b[H{drawn}\x1b[J")

    def wake(self) -> None:
        """End the wait of ``keys`` in the thread of the session. Call it from any thread."""
        # A full socket ends the wait too; with a closed one no thread waits.
        with suppress(OSError):
            self._writer.send(_WAKE)

    def keys(self, timeout_s: float) -> Iterator[str]:
        """Yield the keys that were pressed; wait for one, for a signal, for ``wake``, or for the time.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            SystemExit: the process is asked to stop.
            EOFError: the terminal is gone.
        """
        ready, _, _ = select.select([self._input, self._reader], [], [], timeout_s)
        if self._reader in ready:
            with suppress(BlockingIOError):
                for number in self._reader.recv(_READ_BYTES):
                    self._obey(number)
        if self._input in ready:
            try:
                data = os.read(self._input, _READ_BYTES)
            except OSError as error:
                raise EOFError(_GONE) from error
            if not data:
                raise EOFError(_GONE)
            yield from parse_keys(data)

    def _obey(self, number: int) -> None:
        match number:
            case signal.SIGINT:
                raise KeyboardInterrupt
            case signal.SIGTERM | signal.SIGHUP:
                raise SystemExit(128 + number)
            case signal.SIGTSTP:
                self._give_back()
                signal.signal(signal.SIGTSTP, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTSTP)
                # The process goes on here after CONT.
                signal.signal(signal.SIGTSTP, _no_operation)
                self._take()
            case _:
                # A new size of the terminal, or new readings: the next drawing shows them.
                pass

    def _take(self) -> None:
        # ISIG stays on: Ctrl-C and Ctrl-Z are signals.
        tty.setcbreak(self._input, termios.TCSAFLUSH)
        self._write(_ENTER)

    def _give_back(self) -> None:
        # The terminal may be gone (HUP).
        with suppress(EOFError):
            self._write(_LEAVE)
        with suppress(termios.error):
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._saved)

    def _write(self, text: str) -> None:
        data = text.encode(errors="replace")
        try:
            while data:
                data = data[os.write(self._output, data) :]
        except OSError as error:
            raise EOFError(_GONE) from error


def _no_operation(_number: int, _frame: object) -> None:
    """Exist as a handler, without which Python does not write to the wake-up descriptor."""
