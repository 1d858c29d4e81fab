"""``application-worker cron disable``, ``enable``, ``set``, ``reset``, ``add``, ``remove``: change the schedule without a deploy."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import click

from framework.cli.cron_schedule import load_schedule
from framework.cron.added import AddedEntry, check_new_entry, hide_arguments
from framework.cron.entries import CronEntry, arguments_problems
from framework.cron.orders import Order
from framework.cron.states import CronStates
from framework.cron_expression import check_cron
from framework.errors import ConfigurationError
from framework.exit_codes import EXIT_FAILED
from framework.process.identity import operator_name
from framework.shard.shard import Shard
from framework.store.clock import server_time
from framework.terminal.errors import reports_errors
from framework.terminal.options import REASON_HELP, check_reason, modules_option, shard_option
from framework.terminal.output import echo
from framework.terminal.shards import ShardCommand

_LEADER_READS = "The leader knows within 5 s."


def _change_order(name: str, modules: Sequence[str], change: Callable[[CronEntry, Order], Order], effect: str) -> None:
    """Write another order for the entry, with the operator and the time, and print the effect."""

    def step(states: CronStates, configured: CronEntry) -> None:
        def changed(before: Order, now: float) -> Order:
            return replace(change(configured, before), set_by=operator_name(), set_at=now)

        states.change_order(name, changed)

    for shard, _ in load_schedule(modules).each(name, step):
        echo(f"{shard}: {name} {effect}")
        echo(_LEADER_READS)


@click.command("disable")
@click.argument("name", metavar="ENTRY")
@click.option("--reason", required=True, help=REASON_HELP)
@modules_option
@reports_errors
def disable(name: str, *, reason: str, modules: Sequence[str]) -> None:
    """Disable ENTRY: its ticks push no jobs until it is enabled, whatever a deploy changes."""
    reason = check_reason(reason)
    _change_order(name, modules, lambda _, order: replace(order, enabled=False, reason=reason), "is disabled")


@click.command("enable")
@click.argument("name", metavar="ENTRY")
@click.option("--reason", default="", help=REASON_HELP)
@modules_option
@reports_errors
def enable(name: str, *, reason: str, modules: Sequence[str]) -> None:
    """Enable ENTRY, which begins with its next tick: ticks while it was disabled are not missed."""

    def change(entry: CronEntry, order: Order) -> Order:
        # An entry that the file enables needs no order.
        enabled = replace(order, enabled=None if entry.enabled else True)
        return replace(enabled, reason=reason.strip() or ("" if enabled.changes_nothing else order.reason))

    _change_order(name, modules, change, "is enabled")


@click.command("set")
@click.argument("name", metavar="ENTRY")
@click.option("--cron", "expression", help="Use this expression instead of that of the configuration.")
@click.option("--args", "arguments", help="Push jobs with these arguments, a list in JSON.")
@click.option("--reason", required=True, help=REASON_HELP)
@modules_option
@reports_errors
def set_entry(name: str, *, expression: str | None, arguments: str | None, reason: str, modules: Sequence[str]) -> None:
    """Give ENTRY another expression or other arguments, until `cron reset`. It begins with its next tick."""
    reason = check_reason(reason)
    if expression is None and arguments is None:
        raise click.UsageError("--cron or --args is missing: give what to change.")
    try:
        checked = None if expression is None else check_cron(expression)
    except ValueError as error:
        raise click.UsageError(f"--cron {error}.") from None
    args = None if arguments is None else _parse_arguments(arguments)

    def change(entry: CronEntry, order: Order) -> Order:
        if args is not None:
            if entry.declaration.encrypt:
                raise click.UsageError(
                    f"{entry.declaration.wire_name} declares encrypt, and an order is stored in plain text: "
                    "change the file, or remove the added entry, and add it again."
                )
            problems = list(arguments_problems("--args", name, entry.declaration, args))
            if problems:
                raise ConfigurationError(problems)
        return replace(
            order,
            cron=order.cron if checked is None else checked,
            args=order.args if args is None else args,
            reason=reason,
        )

    _change_order(name, modules, change, "is changed")


def _parse_arguments(text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"--args is not JSON: {error}.") from None
    if not isinstance(found, list):
        raise click.UsageError("--args is no list: give the arguments as a list in JSON, for example '[30, \"full\"]'.")
    return list(found)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


@click.command("reset")
@click.argument("name", metavar="ENTRY")
@click.option("--reason", default="", help=REASON_HELP)
@modules_option
@reports_errors
def reset(name: str, *, reason: str, modules: Sequence[str]) -> None:
    """Let ENTRY be as the configuration says: enabled or not, with its expression and arguments."""
    given = Order(reason=reason.strip())
    _change_order(name, modules, lambda _entry, _order: given, "is as the configuration says")


@click.command("add")
@click.argument("name", metavar="ENTRY")
@click.option("--cron", "expression", required=True, help="Push a job at the ticks of this expression.")
@click.option("--class", "wire_name", required=True, metavar="CLASS", help="Push jobs of this class, by its wire name.")
@click.option("--args", "arguments", default="[]", help="Push jobs with these arguments, a list in JSON.")
@click.option("--time-zone", help="Read the expression in this time zone. Default: UTC.")
@click.option("--missed", help="Catch up missed ticks: skip, once or all. Default: once.")
@click.option("--overlap", help="Push while the last job waits or runs: run, skip or queue. Default: run.")
@click.option("--spread", help="Spread the jobs over this many seconds. Default: the setting cron.spread.")
@click.option("--reason", required=True, help=REASON_HELP)
@modules_option
@reports_errors
def add(
    name: str, *, expression: str, wire_name: str, arguments: str, reason: str, modules: Sequence[str], **others: Any
) -> None:
    """Add ENTRY to the schedule, on the shard of its jobs. It begins with its next tick, and stays after deploys.

    It is checked as an entry of config/schedule.yml is. A name that the configuration has is refused.
    """
    reason = check_reason(reason)
    facts = {"cron": expression, "class": wire_name, "args": _parse_arguments(arguments)}
    facts |= {key: value for key, value in others.items() if value is not None}
    schedule = load_schedule(modules)
    entry, declaration = check_new_entry(schedule.settings, name, facts)
    on = ShardCommand([schedule.shard_of(declaration)], "cron")
    added = False

    def store(one: Shard) -> bool:
        made = AddedEntry(entry, reason, operator_name(), server_time(one.client))
        return schedule.states(one).add(name, hide_arguments(schedule.settings, name, made, declaration).encode())

    for shard, added in on.each(store):
        if added:
            echo(f"{shard}: {name} is added")
            echo(_LEADER_READS)
        else:
            echo(f"{shard}: {name} was added before: `cron remove {name}` removes that entry", err=True)
    on.exit_if_unanswered()
    if not added:
        raise click.exceptions.Exit(EXIT_FAILED)


@click.command("remove")
@click.argument("name", metavar="ENTRY")
@shard_option
@reports_errors
def remove(name: str, *, names: Sequence[str]) -> None:
    """Remove ENTRY, which `cron add` added. Its jobs in the queue stay.

    The exit status is 1 when no shard has such an entry. An entry of the configuration is disabled, not removed.
    """
    on = ShardCommand(names, "cron")
    application = on.settings.cron.application
    found = False
    for shard, known in on.each(lambda one: CronStates(one.client, application).remove(name)):
        found = found or known
        if known:
            echo(f"{shard}: {name} is removed")
    on.exit_if_unanswered()
    if not found:
        echo(f"no entry {name} was added at run time: `cron disable` stops an entry of the configuration", err=True)
        raise click.exceptions.Exit(EXIT_FAILED)


CHANGES = (add, remove, disable, enable, set_entry, reset)
"""The commands that change the schedule."""
