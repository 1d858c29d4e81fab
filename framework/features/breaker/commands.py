"""``breakers``: show the breakers of classes, open one, or close one."""

import sys
from collections.abc import Sequence
from shlex import quote

import click

from framework.admin.queue_actions import note_pause
from framework.command_line import EXIT_FAILED, command
from framework.declare import registry
from framework.features.breaker.store import BreakerState, close_breaker, open_breaker, read_breakers
from framework.shard.shard import Shard
from framework.terminal.groups import DefaultShowGroup
from framework.terminal.options import (
    REASON_HELP,
    DurationOption,
    check_reason,
    json_option,
    modules_option,
    shard_option,
)
from framework.terminal.output import echo, reports_errors
from framework.terminal.project import resolve_class
from framework.terminal.shards import ShardCommand, ShardTable, recorded
from framework.text import format_age, format_duration


@click.group("breakers", cls=DefaultShowGroup)
def breakers() -> None:
    """Show, open and close the breakers of classes (break_after).

    Without a command the breakers are shown.
    """


class _Breakers(ShardTable[BreakerState]):
    field = "breakers"
    headings = ("CLASS", "STATE", "SINCE", "PROBE IN", "DEATHS", "REASON")

    def row(self, one: BreakerState, now: float) -> Sequence[str]:
        probe = "-"
        if one.state == "open" and one.probes_at is not None:
            probe = format_duration(max(0.0, one.probes_at - now))
        since = "-" if one.state == "closed" else format_age(now, one.opened_at)
        return one.worker, one.state, since, probe, str(one.deaths), one.reason or "-"


@breakers.command("show")
@shard_option
@json_option
@reports_errors
def show(*, names: Sequence[str], as_json: bool) -> None:
    """Show the breakers that are open, and those that count runs or deaths.

    Status 1: a shard does not answer.
    """
    on = ShardCommand(names)
    on.show_all(_Breakers(), lambda shard: read_breakers(shard.client), "No breaker is open", as_json=as_json)


@breakers.command("close")
@click.argument("worker", metavar="CLASS")
@click.option("--reason", default="", help=REASON_HELP)
@shard_option
@reports_errors
def close(worker: str, *, reason: str, names: Sequence[str]) -> None:
    """Close the breaker of CLASS: its held jobs return to their queues.

    They return within seconds, and the counts of the breaker begin again.

    Status 1: the breaker is open on no shard asked; or a shard does not answer.
    """
    on = ShardCommand(names)

    def act(shard: Shard) -> bool:
        was_open = close_breaker(shard.client, worker)
        if was_open:
            note_pause(shard.client, "resume", worker, reason.strip())
        return was_open

    closed = [shard for shard, was_open in on.each(recorded(act)) if was_open]
    for shard in closed:
        echo(f"{shard}: the breaker of {worker} is closed")
    on.exit_unless(closed, f"The breaker of {worker} is not open.")


@breakers.command("open")
@click.argument("worker", metavar="CLASS")
@click.option("--reason", required=True, help=REASON_HELP)
@click.option(
    "--probe-after", type=DurationOption(), default="1m", help="When a job runs as a probe, such as 15m or 2h."
)
@modules_option
@shard_option
@reports_errors
def open_(worker: str, *, reason: str, probe_after: float, modules: Sequence[str], names: Sequence[str]) -> None:
    """Open the breaker of CLASS, which declares break_after: its jobs are held until a probe succeeds.

    A class without break_after has no breaker: use `jobs pause`.

    Status 1: the class declares no break_after, or a shard does not answer.
    """
    on, name = ShardCommand(names), resolve_class(worker, modules)
    found = registry.find(name)
    if found is not None and found.declaration().facts["break_after"] is None:
        pause = command(f"jobs pause {name} --reason {quote(reason)}")
        echo(f"{name} declares no break_after, so it has no breaker. To hold its jobs: {pause}", err=True)
        sys.exit(EXIT_FAILED)

    def act(shard: Shard) -> str:
        open_breaker(shard.client, name, check_reason(reason), probe_after)
        note_pause(shard.client, "pause", name, reason.strip())
        return f"the breaker of {name} is open; a job runs as a probe in {format_duration(probe_after)}"

    on.tell(act)
