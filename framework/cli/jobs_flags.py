"""``jobs drop``, ``defer``, ``release`` and ``flags``: the operators' flags of a class, each with a reason and an end."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import click

from framework.admin.times import format_duration, server_time
from framework.cli.errors import refuse_unknown, reports_errors, unknown_worker_message
from framework.cli.groups import DefaultShowGroup
from framework.cli.options import DURATION_HELP, REASON_HELP, DurationOption, json_option, modules_option, shard_option
from framework.cli.project import load_project
from framework.cli.shards import ShardCommand, operator_name
from framework.cli.terminal import echo, echo_lines
from framework.declare import registry
from framework.errors import FrameworkError
from framework.exit_codes import EXIT_FAILED
from framework.flags.flag import Flag, drop_flag, run_flag
from framework.flags.redis_flags import MAX_AGE_S, read_flags_or_none, set_flag, unset_flag
from framework.shard.shard import Shard
from framework.telemetry.visible import visible

_HEADINGS = ("SHARD", "FLAG", "ON FOR", "SET BY", "ENDS IN", "REASON")

percent_option = click.option(
    "--percent", type=click.IntRange(1, 100), default=100, show_default=True, help="Act on so many jobs in a hundred."
)


def reason_and_duration_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the two options without which no operator's flag is set: why, and for how long."""
    command = click.option(
        "--for",
        "lasts_s",
        type=DurationOption(),
        required=True,
        help=DURATION_HELP,
    )(command)
    return click.option("--reason", required=True, help=REASON_HELP)(command)


def resolve_class(name: str, modules: Sequence[str]) -> str:
    """Return the wire name of a class that exists, a former name resolved; ends with status 1 and the nearest otherwise."""
    known = load_project(modules).workers
    found = registry.find(name)
    if found is not None:
        return str(found.declaration().wire_name)
    refuse_unknown([name], known, unknown_worker_message, status=EXIT_FAILED)
    return name


def refuse_unknown_class(name: str, modules: Sequence[str] = ()) -> None:
    """End with status 1 when no class has that name, or one had it: for commands that found nothing under it.

    Classes that were removed, or are not loaded here, have jobs and flags still: so these commands look first.
    """
    try:
        project = load_project(modules)
    except FrameworkError as error:
        unknown = f"The worker classes cannot be loaded, so it is not known whether {visible(name)} is one: {error}"
        echo_lines(unknown.split("\n"), err=True)
        sys.exit(EXIT_FAILED)
    found = registry.find(name)
    if found is None:
        known = [*project.workers, *project.settings.retired_workers]
        refuse_unknown([name], known, unknown_worker_message, status=EXIT_FAILED)
    elif (now := found.declaration().wire_name) != name:
        echo(f"{name} is called {now} now: its flags, locks and parked jobs are under that name", err=True)
        sys.exit(EXIT_FAILED)


def set_flag_on_shards(
    on: ShardCommand, name: str, percentage: float, reason: str, lasts_s: float, effect: str
) -> None:
    """Set one flag on every shard, and say so."""
    if not reason.strip():
        raise click.UsageError("--reason is empty: say why, for whoever finds the flag at night.")
    flag = Flag(name, percentage, reason.strip(), operator_name())
    for shard, _ in on.each(lambda one: set_flag(one.client, flag, lasts_s)):
        echo(f"{shard}: {effect}, for {format_duration(lasts_s)} ({name})")
    if on.answered:
        whose = f"process of {' and '.join(on.answered)}" if on.unanswered else "process"
        echo(f"Every {whose} knows within {MAX_AGE_S:g} s.")


@click.command("drop")
@click.argument("worker", metavar="CLASS")
@percent_option
@reason_and_duration_options
@modules_option
@shard_option
@reports_errors
def drop(
    worker: str, *, percent: int, reason: str, lasts_s: float, modules: Sequence[str], names: Sequence[str]
) -> None:
    """Drop jobs of CLASS as they come up to run.

    They are gone: only the log and a counter know of them.
    """
    on, name = ShardCommand(names), resolve_class(worker, modules)
    set_flag_on_shards(on, drop_flag(name), percent, reason, lasts_s, f"{percent} % of the jobs of {name} are dropped")
    on.exit_if_unanswered()


@click.command("defer")
@click.argument("worker", metavar="CLASS")
@percent_option
@reason_and_duration_options
@modules_option
@shard_option
@reports_errors
def defer(
    worker: str, *, percent: int, reason: str, lasts_s: float, modules: Sequence[str], names: Sequence[str]
) -> None:
    """Put jobs of CLASS off as they come up to run.

    Each time they wait in the schedule set for about the setting flags.defer_delay, 300 s.
    """
    on, name = ShardCommand(names), resolve_class(worker, modules)
    set_flag_on_shards(
        on, run_flag(name), 100 - percent, reason, lasts_s, f"{percent} % of the jobs of {name} are put off"
    )
    on.exit_if_unanswered()


@click.group("flags", cls=DefaultShowGroup)
def flags() -> None:
    """Show and clear the flags that operators set on classes.

    Without a command the flags are shown.
    """


@flags.command("clear")
@click.argument("worker", metavar="CLASS")
@click.option("--percent", type=click.IntRange(1, 99), help="Let only so many jobs in a hundred run.")
@click.option("--reason", help=REASON_HELP)
@click.option("--for", "lasts_s", type=DurationOption(), help=DURATION_HELP)
@modules_option
@shard_option
@reports_errors
def clear_flags(
    worker: str,
    *,
    percent: int | None,
    reason: str | None,
    lasts_s: float | None,
    modules: Sequence[str],
    names: Sequence[str],
) -> None:
    """End the dropping and the putting off of CLASS, so that its jobs run again.

    With --percent, which needs --reason and --for, only so many run and the others are put off: 10, then 50, then all.
    """
    if (percent is None) != (reason is None) or (percent is None) != (lasts_s is None):
        raise click.UsageError("--percent, --reason and --for belong together: without them all jobs may run.")
    on = ShardCommand(names)
    name = worker if percent is None else resolve_class(worker, modules)
    gone = [drop_flag(name)] if percent is not None else [drop_flag(name), run_flag(name)]
    found = False
    for shard, ended in on.each(lambda one: [flag for flag in gone if unset_flag(one.client, flag)]):
        found = found or bool(ended)
        echo(f"{shard}: {', '.join(ended) or 'no flag of the class'} {'ended' if ended else 'was set'}")
    if percent is not None and reason is not None and lasts_s is not None:
        set_flag_on_shards(on, run_flag(name), percent, reason, lasts_s, f"{percent} % of the jobs of {name} run")
    on.exit_if_unanswered()
    if not found:
        refuse_unknown_class(name, modules)


@flags.command("show")
@shard_option
@json_option
@reports_errors
def show(*, names: Sequence[str], as_json: bool) -> None:
    """Show every flag that operators have set.

    It says for how many jobs in a hundred, by whom, until when and why. A flag run_jobs_CLASS lets jobs run, a flag
    drop_jobs_CLASS drops them.
    """
    on = ShardCommand(names)
    found = [(shard, now, name, flag) for shard, (now, read) in on.each(_read_flags) for name, flag in read]
    if as_json:
        on.print_json({"flags": [{"shard": shard, **_flag_json(name, flag)} for shard, _, name, flag in found]})
    else:
        on.print_table(_HEADINGS, [_row(*one) for one in found], "No flag is set")
    on.exit_if_unanswered()


def _read_flags(shard: Shard) -> tuple[float, list[tuple[str, Flag | None]]]:
    now = server_time(shard.client)
    written = sorted(read_flags_or_none(shard.client).items())
    return now, [one for one in written if one[1] is None or one[1].expires_at is None or one[1].expires_at > now]


def _flag_json(name: str, flag: Flag | None) -> dict[str, Any]:
    return {"name": name, "unreadable": True} if flag is None else asdict(flag)


def _row(shard: str, now: float, name: str, flag: Flag | None) -> Sequence[str]:
    if flag is None:
        return shard, name, "-", "-", "-", "cannot be read and counts as not set: set it anew, or release the class"
    ends = "never" if flag.expires_at is None else format_duration(flag.expires_at - now)
    return shard, flag.name, f"{flag.percentage:g} %", flag.set_by or "-", ends, flag.reason or "-"


COMMANDS: tuple[click.Command, ...] = (drop, defer, flags)
