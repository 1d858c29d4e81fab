"""``jobs leases``: show the exclusive leases that the application holds, and end one."""

import sys
from collections.abc import Sequence

import click

from framework.exit_codes import EXIT_FAILED
from framework.features.leases.store import LeaseState, end_lease, read_lease, read_leases
from framework.store.connect import server_time
from framework.terminal.groups import DefaultShowGroup
from framework.terminal.options import confirm, json_option, shard_option, yes_option
from framework.terminal.output import echo, reports_errors
from framework.terminal.shards import ShardCommand
from framework.text import format_age, format_duration

_HEADINGS = ("SHARD", "LEASE", "HOLDER", "SINCE", "ENDS IN")


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
    read = on.each(lambda shard: (server_time(shard.client), read_leases(shard.client)))
    found = [(shard, now, one) for shard, (now, held) in read for one in held if name in (None, one.name)]
    if as_json:
        on.print_json({"leases": [{"shard": shard, **_facts(one)} for shard, _, one in found]})
    else:
        rows = [
            (shard, one.name, one.holder, format_age(now, one.since), format_duration(one.left_s))
            for shard, now, one in found
        ]
        on.print_table(_HEADINGS, rows, "No lease is held" if name is None else f"The lease {name} is free")
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
    on = ShardCommand(names)
    ended = 0
    for shard, held in on.each(lambda shard: read_lease(shard.client, name)):
        if held is None:
            continue
        echo(f"{shard}: {name} is held by {held.holder}, for {format_duration(held.left_s)} more")
        confirm(f"End the lease on {shard}?", yes=yes)
        done = end_lease(on.shards[shard].client, held)
        ended += done
        echo(f"{shard}: ended" if done else f"{shard}: not ended, because it has ended, or has another holder now")
    on.exit_if_unanswered()
    if not ended:
        echo(f"No lease was ended: {name}", err=True)
        sys.exit(EXIT_FAILED)


def _facts(one: LeaseState) -> dict[str, object]:
    return {"name": one.name, "holder": one.holder, "since": one.since, "left_s": one.left_s}
