"""Join readers, state and terminal: the loop of the view, and its one frame as text."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from framework.cli.top.actions import carry_out_later
from framework.cli.top.facts import ShardFacts
from framework.cli.top.rates import ShardRates
from framework.cli.top.readers import ShardReader
from framework.cli.top.rows import make_table, tables_of
from framework.cli.top.screen import Frame, as_text, draw
from framework.cli.top.session import TerminalSession
from framework.cli.top.state import Intent, Step, ViewState, press
from framework.terminal.output import echo, echo_whole

_CLOCK_S = 1.0
"""The longest time between two drawings: the clock of the view goes on, also while no shard answers."""


class LiveView:
    """The view in a terminal, until the operator ends it."""

    def __init__(self, shards: Sequence[str], period_s: float, state: ViewState) -> None:
        self._period_s = period_s
        self._state = state
        self._session = TerminalSession()
        self._readers = [ShardReader(name, period_s, self._session.wake) for name in shards]
        self._result = ""
        """The result of an action, from the thread that carried it out."""

    def run(self) -> None:
        """Show the view until the key q or Ctrl-C. The terminal is then as it was."""
        for reader in self._readers:
            reader.shown_set = self._state.view
            reader.start()
        with self._session:
            try:
                while not self._state.ended:
                    self._turn()
            except (KeyboardInterrupt, EOFError):
                return

    def _turn(self) -> None:
        """Draw, wait for keys or new readings, and apply the keys."""
        frame = self._frame()
        self._session.show(draw(frame, self._state, self._session.size()))
        for key in self._session.keys(_CLOCK_S):
            # Each key acts on the tables that the key before it has changed.
            step = press(self._state, key, self._frame().tables)
            self._take(step)
        if self._result:
            self._state, self._result = replace(self._state, message=self._result), ""

    def _take(self, step: Step) -> None:
        changed = step.state.view != self._state.view
        self._state = step.state
        if step.intent is not None:
            self._state = replace(self._state, message=f"{step.intent.verb} ...")
            self._start(step.intent)
        if changed:
            for reader in self._readers:
                reader.shown_set = self._state.view
                reader.read_soon()

    def _start(self, intent: Intent) -> None:
        def note(result: str) -> None:
            self._result = result
            for reader in self._readers:
                reader.read_soon()
            self._session.wake()

        carry_out_later(intent, note)

    def _frame(self) -> Frame:
        readings = [reader.reading for reader in self._readers]
        for one in readings:
            if one.crash is not None:
                raise one.crash
        found = [(one.facts, one.rates) for one in readings if one.facts is not None]
        failures = {reader.shard: reader.reading.failure for reader in self._readers if reader.reading.failure}
        return make_frame(found, failures, self._period_s, self._state)


def show_once(shards: Sequence[str], period_s: float, state: ViewState) -> bool:
    """Print one frame as text; return whether every shard has answered."""
    readers = [ShardReader(name, period_s, lambda: None) for name in shards]
    for reader in readers:
        reader.shown_set = state.view
        reader.read()
    found = [(one.reading.facts, one.reading.rates) for one in readers if one.reading.facts is not None]
    echo_whole(as_text(make_frame(found, {}, period_s, state), state))
    for reader in readers:
        if reader.reading.failure:
            echo(f"{reader.shard}: {reader.reading.failure}", err=True)
    return not any(reader.reading.failure for reader in readers)


def make_frame(
    readings: Sequence[tuple[ShardFacts, ShardRates]], failures: Mapping[str, str], period_s: float, state: ViewState
) -> Frame:
    """Return the content of a drawing, with the tables of the view."""
    tables = [make_table(name, readings, state.pattern, state.order(name)) for name in tables_of(state.view)]
    return Frame(readings, failures, tables, time.time(), period_s)
