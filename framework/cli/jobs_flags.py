"""``jobs drop``, ``defer``, ``release`` and ``flags``: the operators' flags of a class, each with a reason and an end."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import click

from framework.admin.times import clock, lasting
from framework.cli.failure import EXIT_USAGE, explained, no_worker, refuse_unknown
from framework.cli.on_shards import OnShards, json_option, operator, shard_option
from framework.cli.options import DurationOption, ModuleOption
from framework.cli.project import load_project
from framework.declare import registry
from framework.errors import FrameworkError
from framework.flags.flag import Flag, drop_flag, run_flag
from framework.flags.redis_flags import FRESH_S, read_written, set_flag, unset_flag
from framework.settings.suggest import did_you_mean
from framework.shard.shard import Shard

_HEADINGS = ("SHARD", "FLAG", "ON FOR", "SET BY", "ENDS IN", "REASON")

percent_option = click.option(
    "--percent", type=click.IntRange(1, 100), default=100, help="Of so many jobs in a hundred."
)
modules_option = click.option(
    "-r", "--require", "modules", type=ModuleOption(), multiple=True, help="Load this instead of workers_module."
)


def reasoned(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the two options without which no operator's flag is set: why, and for how long."""
    command = click.option("--for", "lasts_s", type=DurationOption(), required=True, help="It ends by itself.")(command)
    return click.option("--reason", required=True, help="Why: shown wherever the flag acts.")(command)


def checked_class(name: str, modules: Sequence[str]) -> str:
    """Return the wire name of a class that exists, a former name resolved; ends with status 2 and the nearest otherwise."""
    known = load_project(modules).workers
    found = registry.find(name)
    if found is not None:
        return str(found.declaration().wire_name)
    refuse_unknown([name], known, no_worker)
    return name


def refuse_slip(name: str, modules: Sequence[str] = ()) -> None:
    """End with status 2 when no class has that name and one has nearly that, or had that: for commands that found nothing under it.

    Classes that were removed, or are not loaded here, have jobs and flags still: so these commands look first, and a name
    that is like no other is let be.
    """
    try:
        known = load_project(modules).workers
    except FrameworkError:
        return
    found = registry.find(name)
    if found is None:
        if did_you_mean(name, known):
            refuse_unknown([name], known, no_worker)
    elif (now := found.declaration().wire_name) != name:
        click.echo(f"{name} is called {now} now: its flags, locks and parked jobs are under that name", err=True)
        sys.exit(EXIT_USAGE)


def set_on(on: OnShards, name: str, percentage: float, reason: str, lasts_s: float, does: str) -> None:
    """Set one flag on every shard, and say so."""
    if not reason.strip():
        raise click.UsageError("--reason is empty: say why, for whoever finds the flag at night.")
    flag = Flag(name, percentage, reason.strip(), operator())
    for shard, _ in on.each(lambda one: set_flag(one.client, flag, lasts_s)):
        click.echo(f"{shard}: {does}, for {lasting(lasts_s)} ({name})")
    click.echo(f"Every process knows within {FRESH_S:g} s.")


@click.command("drop")
@click.argument("worker", metavar="CLASS")
@percent_option
@reasoned
@modules_option
@shard_option
@explained
def drop(
    worker: str, *, percent: int, reason: str, lasts_s: float, modules: Sequence[str], names: Sequence[str]
) -> None:
    """Drop jobs of CLASS as they come up to run: they are gone, and only the log and a counter know."""
    on, name = OnShards(names), checked_class(worker, modules)
    set_on(on, drop_flag(name), percent, reason, lasts_s, f"{percent} % of the jobs of {name} are dropped")
    on.end()


@click.command("defer")
@click.argument("worker", metavar="CLASS")
@percent_option
@reasoned
@modules_option
@shard_option
@explained
def defer(
    worker: str, *, percent: int, reason: str, lasts_s: float, modules: Sequence[str], names: Sequence[str]
) -> None:
    """Put jobs of CLASS off as they come up to run, for about flags.defer_delay (300 s) each time."""
    on, name = OnShards(names), checked_class(worker, modules)
    set_on(on, run_flag(name), 100 - percent, reason, lasts_s, f"{percent} % of the jobs of {name} are put off")
    on.end()


@click.command("release")
@click.argument("worker", metavar="CLASS")
@click.option("--percent", type=click.IntRange(1, 99), help="Let so many jobs in a hundred run, and put the rest off.")
@click.option("--reason", help="Why not all: with --percent.")
@click.option("--for", "lasts_s", type=DurationOption(), help="Until all may run: with --percent.")
@modules_option
@shard_option
@explained
def release(
    worker: str,
    *,
    percent: int | None,
    reason: str | None,
    lasts_s: float | None,
    modules: Sequence[str],
    names: Sequence[str],
) -> None:
    """Let jobs of CLASS run again: it is dropped and put off no more. With --percent, slowly: 10, then 50, then all."""
    if (percent is None) != (reason is None) or (percent is None) != (lasts_s is None):
        raise click.UsageError("--percent, --reason and --for belong together: without them all jobs may run.")
    on = OnShards(names)
    name = worker if percent is None else checked_class(worker, modules)
    gone = [drop_flag(name)] if percent is not None else [drop_flag(name), run_flag(name)]
    found = False
    for shard, ended in on.each(lambda one: [flag for flag in gone if unset_flag(one.client, flag)]):
        found = found or bool(ended)
        click.echo(f"{shard}: {', '.join(ended) or 'no flag of the class'} {'ended' if ended else 'was set'}")
    if percent is not None and reason is not None and lasts_s is not None:
        set_on(on, run_flag(name), percent, reason, lasts_s, f"{percent} % of the jobs of {name} run")
    on.end()
    if not found:
        refuse_slip(name, modules)


@click.command("flags")
@shard_option
@json_option
@explained
def flags(*, names: Sequence[str], as_json: bool) -> None:
    """Show every flag that is set: for how many jobs in a hundred, by whom, until when and why. A run_jobs_ flag lets them run."""
    on = OnShards(names)
    found = [(shard, now, name, flag) for shard, (now, read) in on.each(_read) for name, flag in read]
    if as_json:
        on.report({"flags": [{"shard": shard, **_told(name, flag)} for shard, _, name, flag in found]})
    else:
        on.table(_HEADINGS, [_row(*one) for one in found], "No flag is set")
    on.end()


def _read(shard: Shard) -> tuple[float, list[tuple[str, Flag | None]]]:
    now = clock(shard.client)
    written = sorted(read_written(shard.client).items())
    return now, [one for one in written if one[1] is None or one[1].expires_at is None or one[1].expires_at > now]


def _told(name: str, flag: Flag | None) -> dict[str, Any]:
    return {"name": name, "unreadable": True} if flag is None else asdict(flag)


def _row(shard: str, now: float, name: str, flag: Flag | None) -> Sequence[str]:
    if flag is None:
        return shard, name, "-", "-", "-", "cannot be read and counts as not set: set it anew, or release the class"
    ends = "never" if flag.expires_at is None else lasting(flag.expires_at - now)
    return shard, flag.name, f"{flag.percentage:g} %", flag.set_by or "-", ends, flag.reason or "-"


COMMANDS: tuple[click.Command, ...] = (drop, defer, release, flags)
