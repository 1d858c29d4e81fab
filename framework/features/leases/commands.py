"""``jobs leases``: show the exclusive leases that the application holds, and end one."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from framework.features.leases.store import LeaseState, end_lease, read_lease, read_leases
from framework.shard.shard import Shard
from framework.terminal.groups import DefaultShowGroup
from framework.terminal.options import json_option, shard_option, yes_option
from framework.terminal.output import reports_errors
from framework.terminal.shards import ChangeWords, NamedTable, ShardCommand
from framework.text import format_age, format_duration


class _Leases(NamedTable[LeaseState]):
    field = "leases"
    headings = ("LEASE", "HOLDER", "SINCE", "ENDS IN")

    def row(self, one: LeaseState, now: float) -> Sequence[str]:
        return one.name, one.holder, format_age(now, one.since), format_duration(one.left_s)

    def facts(self, one: LeaseState) -> Mapping[str, Any]:
        # The token makes a program the holder.
        return {name: value for name, value in one._asdict().items() if name != "token"}

    def find(self, shard: Shard, name: str) -> LeaseState | None:
        return read_lease(shard.client, name)

    def describe(self, shard: Shard, one: LeaseState) -> Iterable[str]:
        yield f"{shard.name}: {one.name} is held by {one.holder}, for {format_duration(one.left_s)} more"


_LEASES = _Leases()


@click.group("leases", cls=DefaultShowGroup)
def leases() -> None:
    """Show and end the exclusive leases of the application, which code takes with framework.lease.

    Without a command the leases are shown.
    """


@leases.command("show")
@click.argument("name", required=False, metavar="[NAME]")
@shard_option
@json_option
@reports_errors
def show(name: str | None, *, names: Sequence[str], as_json: bool) -> None:
    """Show the leases that are held, or the lease NAME, with their holders.

    A holder is a job with its class, or a process.
    """
    on = ShardCommand(names)
    none = "No lease is held" if name is None else f"The lease {name} is free"
    on.show_all(
        _LEASES,
        lambda shard: [one for one in read_leases(shard.client) if name in (None, one.name)],
        none,
        as_json=as_json,
    )


@leases.command("delete")
@click.argument("name", metavar="NAME")
@yes_option
@shard_option
@reports_errors
def delete(name: str, *, yes: bool, names: Sequence[str]) -> None:
    """End the lease NAME for its holder.

    Another holder may then take the lease, while the work of the first one goes on. The first one sees this at its next
    renewal.
    Status 1: the lease is free, or has another holder now.
    """
    not_done = "not ended, because it has ended, or has another holder now"
    words = ChangeWords("End the lease", "ended", not_done, f"No lease was ended: {name}")
    _LEASES.change(ShardCommand(names), name, lambda shard, held: end_lease(shard.client, held), words, yes=yes)
