"""``top``: a live view of the queues, processes and jobs of all shards in a terminal, or one frame of it as text."""

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import replace

import click
from redis.exceptions import RedisError

from framework import admin
from framework.admin import JobEntry, Queue, WorkerProcess
from framework.admin.port import current
from framework.admin.rates import ShardRates
from framework.all_settings import load
from framework.cli.top.facts import ShardFacts, ShardReader
from framework.cli.top.screen import Frame, TerminalSession, as_text, draw
from framework.cli.top.state import VIEWS, Intent, Step, ViewState, make_table, press, tables_of
from framework.command_line import EXIT_FAILED
from framework.errors import FrameworkError
from framework.process.identity import operator_name
from framework.shard.shards import answering
from framework.supervised_threads import SupervisedThread
from framework.terminal.options import ChoiceOption, SecondsOption, check_shard, shard_option
from framework.terminal.output import echo, echo_whole, reports_errors


def carry_out(intent: Intent) -> str:
    """Carry out the action; return its result, or the error, as one line."""
    try:
        with admin.acting_as(operator_name(), "command"):
            return _act(intent)
    except (FrameworkError, RedisError, OSError, ValueError) as error:
        return f"{intent.verb} failed: {error}"


def carry_out_later(intent: Intent, on_result: Callable[[str], None]) -> None:
    """Carry out the action in a thread: a shard that does not answer blocks no key."""
    # ``read_only`` holds in the thread too.
    context = copy_context()
    SupervisedThread(intent.verb, lambda: on_result(context.run(carry_out, intent))).start()


def _act(intent: Intent) -> str:
    match intent.row.subject:
        case Queue() as queue:
            if intent.verb == "pause":
                queue.pause()
                return f"{queue.shard}: {queue.name} is paused"
            queue.unpause()
            return f"{queue.shard}: {queue.name} is no longer paused"
        case WorkerProcess() as process:
            process.quiet()
            return f"{process.shard}: {process.identity} is asked to become quiet, and reads that within ten seconds"
        case JobEntry() as entry:
            done = entry.retry() if intent.verb == "retry" else entry.delete()
            past = "moved to its queue" if intent.verb == "retry" else "deleted"
            return f"{entry.shard}: {entry.jid} is {past if done else 'not there any more: nothing was changed'}"
        case _:
            return f"{intent.verb} is no action here"


_CLOCK_S = 1.0
"""The longest time between two drawings: the clock of the view goes on, also while no shard answers."""

_END_S = 0.5
"""The longest wait for the threads at the end: a frozen shard does not hold the terminal."""


class LiveView:
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
            reader.view = self._state.view
            reader.start()
        try:
            with self._session:
                while not self._state.ended:
                    self._turn()
        except (KeyboardInterrupt, EOFError):
            return
        finally:
            self._end_readers()

    def _end_readers(self) -> None:
        """End the threads: the interpreter aborts ("exception not rethrown") if it ends while one is inside of pydantic."""
        until = time.monotonic() + _END_S
        for reader in self._readers:
            reader.end()
        for reader in self._readers:
            reader.wait(max(0.0, until - time.monotonic()))

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
                reader.view = self._state.view
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
    opened = current().shards
    failures = {shard.name: str(late) for shard, late in answering([opened[name] for name in shards]) if late}
    readers = [ShardReader(name, period_s, lambda: None) for name in shards if name not in failures]
    for reader in readers:
        reader.view = state.view
        reader.read()
        if reader.reading.failure:
            failures[reader.shard] = reader.reading.failure
    found = [(one.reading.facts, one.reading.rates) for one in readers if one.reading.facts is not None]
    echo_whole(as_text(make_frame(found, {}, period_s, state), state))
    for shard, failure in failures.items():
        echo(f"{shard}: {failure}", err=True)
    return not failures


def make_frame(
    readings: Sequence[tuple[ShardFacts, ShardRates]], failures: Mapping[str, str], period_s: float, state: ViewState
) -> Frame:
    """Return the content of a drawing, with the tables of the view."""
    tables = [make_table(name, readings, state.pattern, state.order(name)) for name in tables_of(state.view)]
    return Frame(readings, failures, tables, time.time(), period_s)


_LEAST_PERIOD_S = 0.2


@click.command("top", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--view",
    type=ChoiceOption(VIEWS),
    default=VIEWS[0],
    show_default=True,
    metavar="VIEW",
    help=f"Begin with this view: {', '.join(VIEWS)}.",
)
@click.option("--filter", "pattern", default="", metavar="TEXT", help="Show only rows that contain this text.")
@click.option(
    "--every",
    "period_s",
    type=SecondsOption(),
    default=2.0,
    show_default=True,
    help="Read each shard again after these seconds.",
)
@click.option("--once", is_flag=True, help="Print one frame as text, and end.")
@click.option("--read-only", is_flag=True, help="Refuse the keys that change something.")
@shard_option
@reports_errors
def top(*, view: str, pattern: str, period_s: float, once: bool, read_only: bool, names: Sequence[str]) -> None:
    """Show queues, processes, running jobs, sets, held jobs and classes, live.

    Enter shows the details of the selected row, and Esc leads back. The last line shows the keys. p pauses or unpauses a queue, r
    retries and d deletes a job of a set, u makes a process quiet: each asks first. q or Ctrl-C ends the view.

    IN/S is the number of jobs that arrived per second, OUT/S that of runs that ended, in the last 15 seconds.

    Status 1: a shard does not answer, with --once. The live view shows the error and goes on.
    """
    settings = load()
    shards = [check_shard(settings, name) for name in names] or sorted(settings.shards)
    state = ViewState(view=view, pattern=pattern, read_only=read_only)
    period_s = max(_LEAST_PERIOD_S, period_s)
    with ExitStack() as stack:
        if read_only:
            stack.enter_context(admin.read_only())
        if once:
            if not show_once(shards, period_s, state):
                sys.exit(EXIT_FAILED)
            return
        _check_terminal()
        # A line on stderr would be written over the view.
        logging.getLogger("framework").addHandler(logging.NullHandler())
        LiveView(shards, period_s, state).run()


def _check_terminal() -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        raise click.UsageError("The live view needs a terminal: give --once to print one frame as text.")
