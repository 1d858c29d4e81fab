"""``application-worker limiters``: list and show rate limiters; resize and reset them."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from framework.command_line import EXIT_FAILED
from framework.features.limiters.admin import LimiterState, read_limiter, read_limiters, used_keys
from framework.features.limiters.store import reset_limiter, resize_limiter
from framework.process.identity import operator_name
from framework.shard.shard import Shard
from framework.terminal.groups import CommandGroup
from framework.terminal.options import check_reason, json_option, reason_and_duration_options, shard_option
from framework.terminal.output import refuse_unknown, reports_errors
from framework.terminal.shards import ShardCommand, ShardFinding, ShardTable
from framework.text import format_count, format_duration


@click.group("limiters", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def limiters() -> None:
    """Show, resize and reset rate limiters, which code makes with framework.limiter.

    The limits of jobs of a class or queue that run at a time belong to the command jobs limits.
    """


@limiters.command("list")
@shard_option
@json_option
@reports_errors
def list_limiters(*, names: Sequence[str], as_json: bool) -> None:
    """List the rate limiters in use, with their counts.

    USED counts calls without a key; REFUSED counts calls that were not admitted at once.
    """
    on = ShardCommand(names, "limiters")
    on.show_all(_Limiters(), lambda shard: read_limiters(shard.client), "No limiter is in use", as_json=as_json)


@limiters.command("show")
@click.argument("name", metavar="NAME")
@click.option("--most", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Show this many keys.")
@shard_option
@json_option
@reports_errors
def show(name: str, *, most: int, names: Sequence[str], as_json: bool) -> None:
    """Show the limiter NAME, and its keys, the most used first.

    The command scans all keys of the shard.
    """
    on = ShardCommand(names, "limiters")
    found = _find(on, name)
    keys = on.read(lambda shard: sorted(used_keys(shard.client, name), key=lambda row: (-row[1], row[0]))[:most])
    on.show(_Limiters().of(found), _Keys().of(keys), as_json=as_json)
    on.exit_if_unanswered()


@limiters.command("resize")
@click.argument("name", metavar="NAME")
@click.argument("limit", type=click.IntRange(0, 10**9), metavar="N")
@reason_and_duration_options
@shard_option
@reports_errors
def resize(name: str, limit: int, *, reason: str, lasts_s: float, names: Sequence[str]) -> None:
    """Let N be the limit of NAME, for every process and every key, instead of the limit of the code.

    The limit 0 admits no call.
    """
    reason = check_reason(reason)
    on = ShardCommand(names, "limiters")
    known = {one.shard for one in _find(on, name)}

    def act(shard: Shard) -> str | None:
        if shard.name not in known:
            return None
        resize_limiter(shard.client, name, limit, lasts_s, operator_name(), reason)
        return f"{name} has the limit {limit:,}, for {format_duration(lasts_s)}"

    on.tell(act)


@limiters.command("unresize")
@click.argument("name", metavar="NAME")
@shard_option
@reports_errors
def unresize(name: str, *, names: Sequence[str]) -> None:
    """Let the limit of the code hold again for NAME, before the time of `limiters resize` is over."""
    on = ShardCommand(names, "limiters")
    _find(on, name)

    def act(shard: Shard) -> str:
        was_set = resize_limiter(shard.client, name, None, None)
        return f"{name} {'has the limit of the code' if was_set else 'was not resized'}"

    on.tell(act)


@limiters.command("reset")
@click.argument("name", metavar="NAME")
@click.option("--key", help="Reset this key only. Without it: the limiter and all of its keys.")
@shard_option
@reports_errors
def reset(name: str, *, key: str | None, names: Sequence[str]) -> None:
    """Set what is used of NAME to zero, so that it admits calls again.

    Blocks that run go on: a concurrent limiter may then have more than its limit.
    """
    on = ShardCommand(names, "limiters")
    _find(on, name)
    on.tell(lambda shard: f"{name}: {format_count(reset_limiter(shard.client, name, key), 'key')} reset")


def _find(on: ShardCommand, name: str) -> list[ShardFinding[LimiterState]]:
    """Return the limiter on each shard that has it; end with status 1 when none has."""
    found = on.read(lambda shard: filter(None, [read_limiter(shard.client, name)]))
    if not found:
        # A shard that did not answer may have it.
        on.exit_if_unanswered()
        known = {found.one.name for found in on.read(lambda shard: read_limiters(shard.client))}
        refuse_unknown([name], known, lambda one, near: f"no limiter in use is named {one!r}{near}", status=EXIT_FAILED)
    return found


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


class _Limiters(ShardTable[LimiterState]):
    field = "limiters"
    headings = ("LIMITER", "KIND", "LIMIT", "USED", "TAKEN", "WAITED", "REFUSED", "RECLAIMED", "SET BY")

    def row(self, one: LimiterState, _now: float) -> Sequence[str]:
        of = "" if one.interval_s is None else f" per {format_duration(one.interval_s)}"
        limit = f"{_number(one.limit)}{of}"
        counts = (f"{count:,}" for count in (one.taken, one.waited, one.refused, one.reclaimed))
        resized = one.limit != one.declared
        by = f"{one.resized_by or 'code'}: {one.resized_reason or 'resize()'}; declared: {_number(one.declared)}"
        return one.name, one.kind, limit, _number(one.used), *counts, by if resized else "the code"


class _Keys(ShardTable[tuple[str, float]]):
    field = "keys"
    headings = ("KEY", "USED")

    def row(self, one: tuple[str, float], _now: float) -> Sequence[str]:
        return one[0], _number(one[1])

    def facts(self, one: tuple[str, float]) -> Mapping[str, Any]:
        return {"key": one[0], "used": one[1]}
