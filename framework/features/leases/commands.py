"""``jobs leases``: show the exclusive leases that the application holds, and end one."""

from collections.abc import Sequence

import click

from framework.features.leases.store import LeaseState, end_lease, read_lease, read_leases
from framework.shard.shard import Shard
from framework.terminal.groups import DefaultShowGroup
from framework.terminal.options import json_option, shard_option, yes_option
from framework.terminal.output import reports_errors
from framework.terminal.shards import EndWords, ShardCommand, ShardTable, end_held
from framework.text import format_age, format_duration

_LEASES = ShardTable[LeaseState](
    "leases",
    ("LEASE", "HOLDER", "SINCE", "ENDS IN"),
    lambda one, now: (one.name, one.holder, format_age(now, one.since), format_duration(one.left_s)),
    # The token makes a program the holder.
    lambda one: {name: value for name, value in one._asdict().items() if name != "token"},
)


_END = EndWords("lease", "End", "ended", "it has ended, or has another holder now")


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
    found = on.read(lambda shard: [one for one in read_leases(shard.client) if name in (None, one.name)])
    on.show(_LEASES.of(found, "No lease is held" if name is None else f"The lease {name} is free"), as_json=as_json)
    on.exit_if_unanswered()


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

    def describe(shard: Shard, held: LeaseState) -> Sequence[str]:
        return [f"{shard.name}: {name} is held by {held.holder}, for {format_duration(held.left_s)} more"]

    end_held(
        ShardCommand(names),
        name,
        lambda shard: read_lease(shard.client, name),
        describe,
        lambda shard, held: end_lease(shard.client, held),
        _END,
        yes=yes,
    )
