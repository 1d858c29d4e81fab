"""``application-worker flags``: list, set and clear the feature flags of the application."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from framework.command_line import EXIT_FAILED
from framework.features.flags.flag import Flag, check_flag_name, is_class_flag
from framework.features.flags.redis_flags import MAX_AGE_S, read_flags_in_force, set_flag, unset_flag
from framework.process.identity import operator_name
from framework.shard.shard import Shard
from framework.terminal.groups import CommandGroup
from framework.terminal.options import DURATION_HELP, REASON_HELP, DurationOption, json_option, shard_option
from framework.terminal.output import echo, refuse_unknown, reports_errors
from framework.terminal.shards import ShardCommand, ShardTable, recorded
from framework.text import format_duration


@click.group("flags", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def flags() -> None:
    """List, set and clear the feature flags of the application.

    Code asks for them with framework.flags.enabled. Flags that drop, defer or pause a class belong to the command jobs.
    """


@flags.command("list")
@shard_option
@json_option
@reports_errors
def list_flags(*, names: Sequence[str], as_json: bool) -> None:
    """List the flags that are set.

    Each shard has a copy: a worker process asks its own shard, every other process asks main.
    """
    print_flags(names, lambda name: not is_class_flag(name), as_json=as_json)


@flags.command("set")
@click.argument("name", metavar="NAME")
@click.option(
    "--percentage",
    type=click.FloatRange(0, 100),
    default=100,
    show_default=True,
    help="Turn the flag on for this percentage of the calls, or of the keys.",
)
@click.option("--expires-in", "lasts_s", type=DurationOption(), help=DURATION_HELP)
@click.option("--reason", default="", help=REASON_HELP)
@shard_option
@json_option
@reports_errors
def set_one(
    name: str, *, percentage: float, lasts_s: float | None, reason: str, names: Sequence[str], as_json: bool
) -> None:
    """Set the flag NAME; it replaces a flag of the name."""
    on, flag = ShardCommand(names, "flags"), Flag(_check_name(name), percentage, reason.strip(), operator_name())

    def act(shard: Shard) -> list[tuple[str, Flag | None]]:
        return [(name, set_flag(shard.client, flag, lasts_s))]

    written = on.read(recorded(act))
    if as_json:
        on.show(_Flags().of(written), as_json=True)
    else:
        lasting = "" if lasts_s is None else f", for {format_duration(lasts_s)}"
        for shard, *_ in written:
            echo(f"{shard}: {name} is on for {percentage:g} %{lasting}")
        if written:
            echo(f"Every process knows within {MAX_AGE_S:g} s.")
    on.exit_if_unanswered()


@flags.command("clear")
@click.argument("name", metavar="NAME")
@shard_option
@json_option
@reports_errors
def clear_one(name: str, *, names: Sequence[str], as_json: bool) -> None:
    """Clear the flag NAME, so that it counts as not set.

    The exit status is 1 when no shard has the flag.
    """
    on, name = ShardCommand(names, "flags"), _check_name(name)
    known: set[str] = set()

    def step(shard: Shard) -> bool:
        if unset_flag(shard.client, name):
            return True
        known.update(filter(lambda one: not is_class_flag(one), read_flags_in_force(shard.client)[1]))
        return False

    found = dict(on.each(recorded(step)))
    if as_json:
        on.print_json({"cleared": [shard for shard, cleared in found.items() if cleared]})
    else:
        for shard, cleared in found.items():
            echo(f"{shard}: {name} {'is cleared' if cleared else 'was not set'}")
    on.exit_if_unanswered()
    if not any(found.values()):
        refuse_unknown([name], known - {name}, lambda one, near: f"no flag is named {one!r}{near}", status=EXIT_FAILED)


def print_flags(names: Sequence[str], wanted: Callable[[str], bool], *, as_json: bool) -> None:
    """Print the flags of the shards whose names are wanted, and end with status 1 when a shard did not answer."""
    on = ShardCommand(names, "flags")

    def read(shard: Shard) -> list[tuple[str, Flag | None]]:
        _, found = read_flags_in_force(shard.client)
        return [(name, flag) for name, flag in sorted(found.items()) if wanted(name)]

    on.show_all(_Flags(), read, "No flag is set", as_json=as_json)


def _check_name(name: str) -> str:
    try:
        return check_flag_name(name)
    except ValueError as error:
        raise click.UsageError(f"{error}.") from None


class _Flags(ShardTable[tuple[str, Flag | None]]):
    field = "flags"
    headings = ("FLAG", "ON FOR", "SET BY", "ENDS IN", "REASON")

    def row(self, one: tuple[str, Flag | None], now: float) -> Sequence[str]:
        name, flag = one
        if flag is None:
            return name, "-", "-", "-", "cannot be read and counts as not set: set it again, or clear it"
        ends = "never" if flag.expires_at is None else format_duration(flag.expires_at - now)
        return flag.name, f"{flag.percentage:g} %", flag.set_by or "-", ends, flag.reason or "-"

    def facts(self, one: tuple[str, Flag | None]) -> Mapping[str, Any]:
        name, flag = one
        return {"name": name, "unreadable": True} if flag is None else asdict(flag)
