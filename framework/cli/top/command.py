"""``top``: a live view of the queues, processes and jobs of all shards in a terminal, or one frame of it as text."""

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack

import click

from framework import admin
from framework.all_settings import load
from framework.cli.top.rows import VIEWS
from framework.cli.top.state import ViewState
from framework.cli.top.view import LiveView, show_once
from framework.exit_codes import EXIT_FAILED
from framework.terminal.options import ChoiceOption, SecondsOption, check_shard, shard_option
from framework.terminal.output import reports_errors

_LEAST_PERIOD_S = 0.2


@click.command("top", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--view", type=ChoiceOption(VIEWS), default=VIEWS[0], show_default=True, help="Begin with this view.")
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
    """Show queues, processes, running jobs, sets and held jobs, live.

    The last line shows the keys. p pauses or unpauses a queue, r retries and d deletes a job of a set, u makes a process quiet: each
    asks first. q or Ctrl-C ends the view.

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
