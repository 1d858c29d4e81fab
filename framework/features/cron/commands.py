"""``application-worker cron``: show the schedule, push a job of an entry now, and change entries without a deploy."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import click

from framework.all_settings import Settings
from framework.command_line import EXIT_FAILED
from framework.cron_expression import check_cron
from framework.declare.declaration import Declaration
from framework.features.cron.changes import change_order, changed, disabled, enabled, push_now, with_order
from framework.features.cron.entries import (
    SCHEDULE_FILE,
    AddedEntries,
    AddedEntry,
    CronEntry,
    Order,
    Origin,
    check_new_entry,
    collect_entries,
    hide_arguments,
)
from framework.features.cron.events import NO_JOB
from framework.features.cron.store import (
    CronStates,
    EntryState,
    last_tick,
    next_tick,
)
from framework.process.identity import operator_name
from framework.push.protection import open_protection
from framework.route.router import Router
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.terminal.groups import CommandGroup
from framework.terminal.options import REASON_HELP, check_reason, json_option, modules_option, shard_option
from framework.terminal.output import columns, echo, echo_json, echo_lines, refuse_unknown, reports_errors
from framework.terminal.project import load_project
from framework.terminal.shards import ShardCommand, ShardTable, recorded
from framework.text import format_clock_time

_LEADER_READS = "The leader knows within 5 s."
_ORIGINS: dict[Origin, str] = {"file": SCHEDULE_FILE, "class": "class", "added": "added"}


@click.group("cron", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def cron() -> None:
    """Show the schedule, push a job of an entry now, and change entries without a deploy.

    Entries come from config/schedule.yml, from classes with the attribute cron, and from `cron add`.
    """


@cron.command("list")
@modules_option
@shard_option
@json_option
@reports_errors
def list_entries(*, modules: Sequence[str], names: Sequence[str], as_json: bool) -> None:
    """List the entries with their next and last ticks.

    Times are in the zone of the entry. OFFSET is how much later than its time a tick pushes its job.
    """
    schedule, on = load_schedule(modules), ShardCommand(names, "cron")
    on.show_all(_Entries(), lambda one: _listed(schedule, one), "The schedule has no entry", as_json=as_json)


class _Listed(NamedTuple):
    """An entry of a shard, ``None`` if it cannot be used: ``unusable`` has then its JSON."""

    name: str
    shard: str
    entry: CronEntry | None
    problem: str
    state: EntryState | None = None
    following: int | None = None
    unusable: Mapping[str, Any] = {}


def _listed(schedule: "LoadedSchedule", shard: Shard) -> Iterator[_Listed]:
    snapshot, added = schedule.states(shard).read(), schedule.added_on(shard.name)
    entries = {name: one for name, one in schedule.entries.items() if schedule.shards[name] == shard.name}
    entries |= added.usable(snapshot.added)
    for name in sorted({*entries, *snapshot.raw, *snapshot.added}):
        if name in added.unusable:
            facts = {"origin": "added", "unusable": added.unusable[name]}
            yield _Listed(name, shard.name, None, f"added, and not used: {added.unusable[name]}", unusable=facts)
        elif name not in entries:
            why = f"not in the configuration: `cron forget {name}`"
            yield _Listed(name, shard.name, None, why, unusable={"origin": None})
        else:
            entry, state = with_order(entries[name], snapshot), snapshot.states.get(name)
            refused = name in snapshot.orders and snapshot.orders[name] is None
            problem = f", its order is not used: `cron reset {name}`" if refused else ""
            yield _Listed(name, shard.name, entry, problem, state, next_tick(entry, state, snapshot.now))


class _Entries(ShardTable[_Listed]):
    field = "entries"
    headings = ("ENTRY", "CLASS", "CRON", "ZONE", "OFFSET", "NEXT", "LAST", "FROM", "STATE")
    names_shard = False

    def row(self, one: _Listed, _now: float) -> Sequence[str]:
        entry, state, last = one.entry, one.state, last_tick(one.state)
        if entry is None:
            return one.name, *"-------", one.problem
        zone = entry.expression.zone
        return (
            entry.name,
            entry.declaration.wire_name,
            entry.expression.text,
            zone,
            f"{entry.offset_s} s" if entry.offset_s else "-",
            "-" if one.following is None else _local_time(one.following, zone),
            "-" if last is None else _local_time(last, zone),
            _ORIGINS[entry.origin],
            _state_text(entry) + (", a run waits" if state is not None and state.waits else "") + one.problem,
        )

    def facts(self, one: _Listed) -> Mapping[str, Any]:
        entry, state = one.entry, one.state
        known = {"name": one.name, "shard": one.shard}
        if entry is None:
            return {**known, **one.unusable}
        return {
            **known,
            "origin": entry.origin,
            "class": entry.declaration.wire_name,
            "cron": entry.expression.text,
            "time_zone": entry.expression.zone,
            "args": list(entry.shown_args),
            "missed": entry.missed,
            "overlap": entry.overlap,
            "enabled": entry.enabled,
            "offset_s": entry.offset_s,
            "next_tick": one.following,
            "last_tick": last_tick(state),
            "waits": state is not None and state.waits,
            "last_jid": state.jid if state is not None else "",
            "reason": entry.order.reason,
            "set_by": entry.order.set_by,
            "added_by": entry.added_by,
            "added_reason": entry.note,
        }


def _state_text(entry: CronEntry) -> str:
    order = entry.order
    words = ["enabled" if entry.enabled else "disabled"]
    if order.cron is not None or order.args is not None:
        words.append("changed")
    text = ", ".join(words) + (f" by {order.set_by}: {order.reason}" if order.set_by else "")
    return f"{text}; added by {entry.added_by}: {entry.note}" if entry.origin == "added" else text


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

    If the shard answers, changes by operators are included. Each tick pushes its job later by the offset of the entry.
    """
    schedule = load_schedule(modules)
    entry, on = schedule.find(name)
    for _, snapshot in on.each(lambda one: schedule.states(one).read()):
        entry = with_order(entry, snapshot)
    ticks = [
        tick
        for tick, _ in zip(entry.expression.ticks_after(int(time.time()) - entry.offset_s), range(count), strict=False)
    ]
    if as_json:
        on.print_json({"entry": name, "enabled": entry.enabled, "offset_s": entry.offset_s, "ticks": ticks})
    else:
        echo(f"{entry.expression.text} ({entry.expression.explain()}), {entry.expression.zone}")
        echo_lines(columns([(_local_time(one, entry.expression.zone), format_clock_time(one)) for one in ticks]))
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
    schedule = load_schedule(modules)
    entry, on = schedule.find(name)
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

    The exit status is 1 when no job was pushed: an equal job has the deduplication lock, a client middleware dropped it, or the
    backlog of its class is full.
    """
    schedule = load_schedule(modules)
    entry, on = schedule.find(name)
    pushed = True
    for shard, (jid, settlement) in on.each(
        recorded(lambda one: push_now(schedule.states(one), entry), lambda pushed: int(pushed[0] is not None))
    ):
        pushed = jid is not None and settlement.outcome == "manual"
        if as_json:
            echo_json({"entry": name, "shard": shard, "jid": jid if pushed else None, "outcome": settlement.outcome})
        elif pushed:
            echo(f"{shard}: {name} has pushed job {jid}")
        else:
            why = f"job {settlement.other} has its lock" if settlement.other else NO_JOB[settlement.outcome]
            echo(f"{shard}: {name} has pushed no job: {why}", err=True)
    on.exit_unless(pushed)


@cron.command("leader")
@shard_option
@json_option
@reports_errors
def leader(*, names: Sequence[str], as_json: bool) -> None:
    """Show the process of each shard that leads the application, as `framework.leader` says."""
    on = ShardCommand(names, "cron")
    application = on.settings.cron.application
    found = dict(on.each(lambda one: CronStates(one.client, application).leader()))
    if as_json:
        on.print_json({"application": application, "leaders": {shard: one or None for shard, one in found.items()}})
    else:
        on.print_table(("SHARD", "LEADER"), [(shard, one or "none") for shard, one in found.items()], "No leader")
    on.exit_if_unanswered()


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
    for shard, known in on.each(recorded(lambda one: CronStates(one.client, application).forget(name))):
        found = found or known
        echo(f"{shard}: {name} {'is forgotten' if known else 'was not known'}")
    on.exit_unless(found)


def _change_order(name: str, modules: Sequence[str], change: Callable[[CronEntry, Order], Order], effect: str) -> None:
    """Write another order for the entry, and print the effect."""

    def step(states: CronStates, configured: CronEntry) -> None:
        change_order(states, configured, change)

    for shard, _ in load_schedule(modules).change(name, step):
        echo(f"{shard}: {name} {effect}")
        echo(_LEADER_READS)


@cron.command("disable")
@click.argument("name", metavar="ENTRY")
@click.option("--reason", required=True, help=REASON_HELP)
@modules_option
@reports_errors
def disable(name: str, *, reason: str, modules: Sequence[str]) -> None:
    """Disable ENTRY: its ticks push no jobs until it is enabled, whatever a deploy changes."""
    reason = check_reason(reason)
    _change_order(name, modules, lambda _, order: disabled(order, reason), "is disabled")


@cron.command("enable")
@click.argument("name", metavar="ENTRY")
@click.option("--reason", default="", help=REASON_HELP)
@modules_option
@reports_errors
def enable(name: str, *, reason: str, modules: Sequence[str]) -> None:
    """Enable ENTRY, which begins with its next tick: ticks while it was disabled are not missed."""

    _change_order(name, modules, lambda entry, order: enabled(entry, order, reason), "is enabled")


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
        try:
            return changed(entry, order, checked, args, reason)
        except ValueError as error:
            raise click.UsageError(str(error)) from None

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
@click.option("--reason", default="", help=REASON_HELP)
@modules_option
@reports_errors
def reset(name: str, *, reason: str, modules: Sequence[str]) -> None:
    """Let ENTRY be as the configuration says: enabled or not, with its expression and arguments."""
    given = Order(reason=reason.strip())
    _change_order(name, modules, lambda _entry, _order: given, "is as the configuration says")


@cron.command("add")
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

    for shard, added in on.each(recorded(store)):
        if added:
            echo(f"{shard}: {name} is added")
            echo(_LEADER_READS)
        else:
            echo(f"{shard}: {name} was added before: `cron remove {name}` removes that entry", err=True)
    on.exit_unless(added)


@cron.command("remove")
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
    for shard, known in on.each(recorded(lambda one: CronStates(one.client, application).remove(name))):
        found = found or known
        if known:
            echo(f"{shard}: {name} is removed")
    on.exit_unless(found, f"no entry {name} was added at run time: `cron disable` stops an entry of the configuration")


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadedSchedule:
    """The configured entries of the project, and the shard of each."""

    settings: Settings
    router: Router
    entries: Mapping[str, CronEntry]
    shards: Mapping[str, str]

    def states(self, shard: Shard) -> CronStates:
        return CronStates(shard.client, self.settings.cron.application, open_protection(self.settings).state)

    def shard_of(self, declaration: Declaration) -> str:
        return self.router.home(declaration)

    def added_on(self, shard: str) -> AddedEntries:
        """Return the reader of the entries that were added at run time on a shard."""
        return AddedEntries(self.settings, shard, self.shard_of)

    def find(self, name: str) -> tuple[CronEntry, ShardCommand]:
        """Return the entry of this name, and the command on its shard; end with status 1 if there is none."""
        configured = self.entries.get(name)
        if configured is not None:
            return configured, ShardCommand([self.shards[name]], "cron")
        on = ShardCommand([], "cron")
        known = [*self.entries]
        for shard, added in on.each(lambda one: self.states(one).read_added()):
            known += added
            if name not in added:
                continue
            found = self.added_on(shard).usable_entry(name, added[name])
            if isinstance(found, str):
                echo(f"{shard}: the entry {name} was added at run time and cannot be used here: {found}", err=True)
                sys.exit(EXIT_FAILED)
            return found, ShardCommand([shard], "cron")
        on.exit_if_unanswered()
        refuse_unknown([name], known, lambda one, near: f"no entry is named {one!r}{near}", status=EXIT_FAILED)
        raise AssertionError("unreachable")

    def change(self, name: str, step: Callable[[CronStates, CronEntry], T]) -> Sequence[tuple[str, T]]:
        """Run the action on the shard of an entry; end with status 1 if the shard does not answer, after ``step``."""
        entry, on = self.find(name)
        found = list(on.each(recorded(lambda one: step(self.states(one), entry))))
        on.exit_if_unanswered()
        return found


def load_schedule(modules: Sequence[str]) -> LoadedSchedule:
    """Load the project and its configured entries.

    Raises:
        ConfigurationError, DeclarationError: the project is invalid, and no process would boot.
    """
    project = load_project(modules)
    entries = collect_entries(project.settings)
    shards = {name: project.router.home(one.declaration) for name, one in entries.items()}
    return LoadedSchedule(project.settings, project.router, entries, shards)
