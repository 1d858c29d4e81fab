"""``application-worker cron``: show the schedule, push a job of an entry now, and change entries without a deploy."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import click

from framework.cli.errors import refuse_unknown, reports_errors
from framework.cli.groups import CommandGroup
from framework.cli.options import REASON_HELP, check_reason, json_option, modules_option, shard_option
from framework.cli.project import load_project
from framework.cli.shards import ShardCommand
from framework.cli.terminal import columns, echo, echo_json, echo_lines
from framework.cron.entries import CronEntry, arguments_problems, collect_entries
from framework.cron.jobs import TickJobs
from framework.cron.orders import Order
from framework.cron.states import FIRST_ELSEWHERE, CronStates, EntryState, Settlement, Snapshot
from framework.cron_expression import check_cron
from framework.errors import ConfigurationError
from framework.exit_codes import EXIT_FAILED
from framework.process.identity import operator_name
from framework.shard.shard import Shard
from framework.wiring.client import default_client

_HEADINGS = ("ENTRY", "CLASS", "CRON", "ZONE", "OFFSET", "NEXT", "LAST", "STATE")
_READ_S = 5


@click.group("cron", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def cron() -> None:
    """Show the schedule, push a job of an entry now, and change entries without a deploy.

    Entries come from config/schedule.yml and from classes with the attribute cron.
    """


@dataclass(frozen=True, slots=True)
class _Schedule:
    """The entries of the project, and the shard of each."""

    entries: Mapping[str, CronEntry]
    shards: Mapping[str, str]
    application: str

    def states(self, shard: Shard) -> CronStates:
        """Return the states of the entries on a shard."""
        return CronStates(shard.client, self.application)


def _load_schedule(modules: Sequence[str]) -> _Schedule:
    project = load_project(modules)
    entries = collect_entries(project.settings)
    shards = {name: project.router.route(one.declaration).shard for name, one in entries.items()}
    return _Schedule(entries, shards, project.settings.cron.application)


def _find_entry(schedule: _Schedule, name: str) -> CronEntry:
    refuse_unknown([name], schedule.entries, lambda one, near: f"no entry is named {one!r}{near}", status=EXIT_FAILED)
    return schedule.entries[name]


def _ordered(entry: CronEntry, snapshot: Snapshot) -> CronEntry:
    order = snapshot.orders.get(entry.name)
    return entry if order is None else entry.ordered(order)


@cron.command("list")
@modules_option
@shard_option
@json_option
@reports_errors
def list_entries(*, modules: Sequence[str], names: Sequence[str], as_json: bool) -> None:
    """List the entries with their next and last ticks.

    Times are in the zone of the entry. A tick pushes its job by OFFSET later than its time.
    """
    schedule, on = _load_schedule(modules), ShardCommand(names, "cron")
    rows: list[Sequence[str]] = []
    facts: list[dict[str, Any]] = []
    for shard, snapshot in on.each(lambda one: schedule.states(one).read()):
        for name in sorted({one for one, place in schedule.shards.items() if place == shard} | set(snapshot.raw)):
            configured = schedule.entries.get(name)
            if configured is None or schedule.shards[name] != shard:
                rows.append((name, "-", "-", "-", "-", "-", "-", f"not in the configuration: `cron forget {name}`"))
                facts.append({"name": name, "shard": shard, "configured": False})
                continue
            entry, state = _ordered(configured, snapshot), snapshot.states.get(name)
            rows.append(_row(entry, state, snapshot.now))
            facts.append(_facts(entry, shard, state, snapshot.now))
    if as_json:
        on.print_json({"entries": facts})
    else:
        on.print_table(_HEADINGS, rows, "The schedule has no entry")
    on.exit_if_unanswered()


def _next_tick(entry: CronEntry, state: EntryState | None, now: float) -> int | None:
    if not entry.enabled:
        return None
    passed = int(now) - entry.offset_s
    settled = state.tick if state is not None and state.fingerprint == entry.fingerprint else passed
    return entry.expression.next_after(max(settled, passed))


def _last_tick(state: EntryState | None) -> int | None:
    """Return the last tick that had a job."""
    return state.tick if state is not None and state.jid else None


def _row(entry: CronEntry, state: EntryState | None, now: float) -> Sequence[str]:
    zone, following, last = entry.expression.zone, _next_tick(entry, state, now), _last_tick(state)
    return (
        entry.name,
        entry.declaration.wire_name,
        entry.expression.text,
        zone,
        f"{entry.offset_s} s" if entry.offset_s else "-",
        "-" if following is None else _local_time(following, zone),
        "-" if last is None else _local_time(last, zone),
        _state_text(entry) + (", a run waits" if state is not None and state.waits else ""),
    )


def _state_text(entry: CronEntry) -> str:
    order = entry.order
    words = ["enabled" if entry.enabled else "disabled"]
    if order.cron is not None or order.args is not None:
        words.append("changed")
    return ", ".join(words) + (f" by {order.set_by}: {order.reason}" if order.set_by else "")


def _facts(entry: CronEntry, shard: str, state: EntryState | None, now: float) -> dict[str, Any]:
    return {
        "name": entry.name,
        "shard": shard,
        "configured": True,
        "class": entry.declaration.wire_name,
        "cron": entry.expression.text,
        "time_zone": entry.expression.zone,
        "args": list(entry.args),
        "missed": entry.missed,
        "overlap": entry.overlap,
        "enabled": entry.enabled,
        "offset_s": entry.offset_s,
        "next_tick": _next_tick(entry, state, now),
        "last_tick": _last_tick(state),
        "waits": state is not None and state.waits,
        "last_jid": state.jid if state is not None else "",
        "reason": entry.order.reason,
        "set_by": entry.order.set_by,
    }


def _local_time(tick: int, zone: str) -> str:
    return f"{datetime.fromtimestamp(tick, ZoneInfo(zone)):%Y-%m-%d %H:%M:%S %z}"


@cron.command("next")
@click.argument("name", metavar="ENTRY")
@click.option("--count", type=click.IntRange(1, 1_000), default=5, show_default=True, help="Show this many ticks.")
@modules_option
@json_option
@reports_errors
def next_ticks(name: str, *, count: int, modules: Sequence[str], as_json: bool) -> None:
    """Show the next ticks of ENTRY, in its time zone and in UTC.

    They are those of the configuration and of the operators' order, if the shard answers. A tick pushes its job by the offset of
    the entry later.
    """
    schedule = _load_schedule(modules)
    entry = _find_entry(schedule, name)
    on = ShardCommand([schedule.shards[name]], "cron")
    for _, snapshot in on.each(lambda one: schedule.states(one).read()):
        entry = _ordered(entry, snapshot)
    ticks = [
        tick
        for tick, _ in zip(entry.expression.ticks_after(int(time.time()) - entry.offset_s), range(count), strict=False)
    ]
    if as_json:
        on.print_json({"entry": name, "enabled": entry.enabled, "offset_s": entry.offset_s, "ticks": ticks})
    else:
        echo(f"{entry.expression.text} ({entry.expression.explain()}), {entry.expression.zone}")
        echo_lines(
            columns(
                [
                    (_local_time(one, entry.expression.zone), f"{datetime.fromtimestamp(one, UTC):%H:%M:%SZ}")
                    for one in ticks
                ]
            )
        )
        if entry.offset_s:
            echo(f"Each tick pushes its job {entry.offset_s} s after its time.")
        if not entry.enabled:
            echo("The entry is disabled: these ticks push no jobs.")
    on.exit_if_unanswered()


@cron.command("history")
@click.argument("name", metavar="ENTRY")
@modules_option
@json_option
@reports_errors
def history(name: str, *, modules: Sequence[str], as_json: bool) -> None:
    """Show the last ticks of ENTRY, the newest first, with their jobs."""
    schedule = _load_schedule(modules)
    entry = _find_entry(schedule, name)
    on = ShardCommand([schedule.shards[name]], "cron")
    for _, ticks in on.each(lambda one: schedule.states(one).last_ticks(name)):
        if as_json:
            on.print_json({"entry": name, "ticks": [one._asdict() for one in ticks]})
            continue
        zone = entry.expression.zone
        rows = [
            ("between ticks" if one.tick is None else _local_time(one.tick, zone), one.outcome, one.jid or "-")
            for one in ticks
        ]
        on.print_table(("TICK", "OUTCOME", "JOB"), rows, "No tick of the entry is known")
    on.exit_if_unanswered()


@cron.command("run")
@click.argument("name", metavar="ENTRY")
@modules_option
@json_option
@reports_errors
def run(name: str, *, modules: Sequence[str], as_json: bool) -> None:
    """Push a job of ENTRY now, also if the entry is disabled or its last job still runs. Its ticks stay as they are.

    The exit status is 1 when no job was pushed: an equal job has the deduplication lock, or a client middleware dropped it.
    """
    schedule = _load_schedule(modules)
    entry = _find_entry(schedule, name)
    on = ShardCommand([schedule.shards[name]], "cron")
    pushed = True
    for shard, (jid, settlement) in on.each(lambda one: _push_now(schedule.states(one), entry)):
        pushed = jid is not None and settlement.outcome == "manual"
        if as_json:
            echo_json({"entry": name, "shard": shard, "jid": jid if pushed else None, "outcome": settlement.outcome})
        elif pushed:
            echo(f"{shard}: {name} has pushed job {jid}")
        else:
            why = f"job {settlement.other} has its lock" if settlement.other else "a client middleware dropped it"
            echo(f"{shard}: {name} has pushed no job: {why}", err=True)
    on.exit_if_unanswered()
    if not pushed:
        raise click.exceptions.Exit(EXIT_FAILED)


def _push_now(states: CronStates, configured: CronEntry) -> tuple[str | None, Settlement]:
    while True:
        snapshot = states.read()
        entry = _ordered(configured, snapshot)
        job = TickJobs(default_client).make(entry, None)
        if job is None:
            return None, Settlement("dropped")
        raw = snapshot.raw.get(entry.name, b"")
        settlement = states.push(entry.name, raw, None, entry.fingerprint, job, "run")
        # A tick of the entry was settled in between.
        if settlement is not FIRST_ELSEWHERE:
            return job.jid, settlement


def _change_order(name: str, modules: Sequence[str], change: Callable[[CronEntry, Order], Order], effect: str) -> None:
    """Write another order for the entry, with the operator and the time, and print the effect."""
    schedule = _load_schedule(modules)
    configured = _find_entry(schedule, name)
    on = ShardCommand([schedule.shards[name]], "cron")

    def step(shard: Shard) -> None:
        states = schedule.states(shard)
        snapshot = states.read()
        before = snapshot.orders.get(name) or Order()
        order = replace(change(configured, before), set_by=operator_name(), set_at=snapshot.now)
        states.set_order(name, order)

    for shard, _ in on.each(step):
        echo(f"{shard}: {name} {effect}")
        echo(f"The leader knows within {_READ_S} s.")
    on.exit_if_unanswered()


@cron.command("disable")
@click.argument("name", metavar="ENTRY")
@click.option("--reason", required=True, help=REASON_HELP)
@modules_option
@reports_errors
def disable(name: str, *, reason: str, modules: Sequence[str]) -> None:
    """Disable ENTRY: its ticks push no jobs until it is enabled, whatever a deploy changes."""
    reason = check_reason(reason)
    _change_order(name, modules, lambda _, order: replace(order, enabled=False, reason=reason), "is disabled")


@cron.command("enable")
@click.argument("name", metavar="ENTRY")
@click.option("--reason", default="", help=REASON_HELP)
@modules_option
@reports_errors
def enable(name: str, *, reason: str, modules: Sequence[str]) -> None:
    """Enable ENTRY, which begins with its next tick: ticks while it was disabled are not missed."""

    def change(entry: CronEntry, order: Order) -> Order:
        # An entry that the file enables needs no order.
        return replace(order, enabled=None if entry.enabled else True, reason=reason.strip() or order.reason)

    _change_order(name, modules, change, "is enabled")


@cron.command("set")
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


@cron.command("reset")
@click.argument("name", metavar="ENTRY")
@modules_option
@reports_errors
def reset(name: str, *, modules: Sequence[str]) -> None:
    """Let ENTRY be as the configuration says: enabled or not, with its expression and arguments."""
    _change_order(name, modules, lambda _entry, _order: Order(), "is as the configuration says")


@cron.command("forget")
@click.argument("name", metavar="ENTRY")
@shard_option
@reports_errors
def forget(name: str, *, names: Sequence[str]) -> None:
    """Remove the state and the order of ENTRY, which is no longer in the configuration.

    An entry that is still there begins with its next tick. The exit status is 1 when no shard has it.
    """
    on = ShardCommand(names, "cron")
    application = on.settings.cron.application
    found = False
    for shard, known in on.each(lambda one: CronStates(one.client, application).forget(name)):
        found = found or known
        echo(f"{shard}: {name} {'is forgotten' if known else 'was not known'}")
    on.exit_if_unanswered()
    if not found:
        raise click.exceptions.Exit(EXIT_FAILED)
