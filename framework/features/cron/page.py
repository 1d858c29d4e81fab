"""The schedule: each entry with its last and next run. Operators run, disable, enable and change entries here."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from framework.command_line import worker_command
from framework.cron_expression import check_cron
from framework.errors import UnknownNameError
from framework.features.cron.admin import ScheduledEntry, cron_entries, entries_on, states_of
from framework.features.cron.changes import change_order, changed, disabled, enabled, push_now
from framework.features.cron.entries import CronEntry, Order
from framework.features.cron.store import CronStates
from framework.pages.forms import REASON, Field, Form, line, reason_of, word
from framework.pages.page import Page
from framework.pages.shard_action import FormAt, RowAction
from framework.pages.table import Rows
from framework.pages.view import Facts, View
from framework.shard.shard import Shard
from framework.text import Sentence, format_count

_LEADER_READS = Sentence("The leader knows within 5 s.")


class EntryRows(Rows[ScheduledEntry]):
    """The entries whose classes are loaded."""

    noun = "cron job"

    def read(self, view: View, shard: Shard) -> Iterable[ScheduledEntry]:  # noqa: ARG002 - of Rows
        """Return the entries of a shard."""
        return cron_entries(shard.name)

    def name_of(self, one: ScheduledEntry) -> str:
        """Return the name."""
        return one.name

    def worker_of(self, one: ScheduledEntry) -> str | None:
        """Return the class."""
        return one.cls

    def facts(self, one: ScheduledEntry) -> Facts:
        """Return its rhythm, its runs and its state."""
        return {
            "class": one.cls,
            "cron": one.cron,
            "time_zone": one.time_zone,
            "origin": one.origin,
            "is_enabled": one.enabled,
            "missed": one.missed,
            "overlap": one.overlap,
            "next_at": one.next_tick,
            "last_at": one.last_tick,
            "last_jid": one.last_jid,
            "waits": one.waits,
            "reason": one.reason,
        }


class EntryAction(RowAction[ScheduledEntry]):
    """An action on entries of the schedule."""

    rows = EntryRows()

    def change(self, at: FormAt, one: ScheduledEntry) -> int:
        """Change one entry, as the configuration has it.

        Raises:
            UnknownNameError: it is no longer there.
        """
        states = states_of(at.shard)
        configured = entries_on(at.shard, states.read_added()).get(one.name)
        if configured is None:
            raise UnknownNameError(Sentence("the entry {name} is no longer there", name=one.name))
        return self.act(at.form, states, configured)

    def act(self, form: Form, states: CronStates, entry: CronEntry) -> int:
        """Act on one entry; return the number of changes."""
        raise NotImplementedError

    def shown(self, at: FormAt, one: ScheduledEntry) -> str:
        """Return its rhythm and its state."""
        state = "enabled" if one.enabled else "disabled"
        return Sentence(
            "{name} on {shard}: {cls}, {cron} {time_zone}, {state}",
            name=one.name,
            shard=at.shard.name,
            cls=one.cls,
            cron=one.cron,
            time_zone=one.time_zone,
            state=state,
        )


class RunEntry(EntryAction):
    """Push a job of each entry now."""

    name = "run"
    label = "Run now"
    record = "cron run"

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return Sentence(
            "A job of each is pushed now, also if its last job still runs or the entry is disabled. The ticks stay as "
            "they are."
        )

    def act(self, form: Form, states: CronStates, entry: CronEntry) -> int:  # noqa: ARG002 - of EntryAction
        """Push a job."""
        _, settlement = push_now(states, entry)
        return int(settlement.outcome == "manual")

    def done(self, count: int) -> str:
        """Return how many were pushed: an equal job may have the lock, and a middleware may drop one."""
        return Sentence("{jobs} pushed", jobs=format_count(count, "job"))


class DisableEntry(EntryAction):
    """Let ticks of entries push no jobs."""

    name = "disable"
    label = "Disable"
    record = "cron disable"
    fields = (REASON,)

    def details(self, form: Form) -> Mapping[str, object]:
        """Return the reason."""
        return {"reason": reason_of(form)}

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return Sentence(
            "Their ticks push no jobs until they are enabled, whatever a deploy changes. {leader}",
            leader=_LEADER_READS,
        )

    def act(self, form: Form, states: CronStates, entry: CronEntry) -> int:
        """Write the order."""
        reason = reason_of(form)
        change_order(states, entry, lambda _, order: disabled(order, reason))
        return 1


class EnableEntry(EntryAction):
    """Let ticks of entries push jobs again."""

    name = "enable"
    label = "Enable"
    record = "cron enable"
    fields = (REASON,)

    def details(self, form: Form) -> Mapping[str, object]:
        """Return the reason."""
        return {"reason": line(form, "reason")}

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return Sentence(
            "They begin with their next ticks: ticks while they were disabled are not missed. {leader}",
            leader=_LEADER_READS,
        )

    def act(self, form: Form, states: CronStates, entry: CronEntry) -> int:
        """Write the order."""
        reason = line(form, "reason")
        change_order(states, entry, lambda configured, order: enabled(configured, order, reason))
        return 1


class ChangeEntry(EntryAction):
    """Give entries another expression or other arguments."""

    name = "change"
    label = "Change"
    role = "admin"
    record = "cron set"
    fields = (Field("cron", "Expression", hint="0 3 * * *"), Field("args", "Arguments", hint='["full"]'), REASON)

    def details(self, form: Form) -> Mapping[str, object]:
        """Return what is changed, and the reason.

        Raises:
            ValueError: the expression or the arguments are not valid, or both are missing.
        """
        expression, args = _change_of(form)
        return {"cron": expression, "args": args, "reason": reason_of(form)}

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return Sentence(
            "They begin with their next ticks, until they are reset to the configuration. {leader}",
            leader=_LEADER_READS,
        )

    def act(self, form: Form, states: CronStates, entry: CronEntry) -> int:
        """Write the order."""
        expression, args = _change_of(form)
        reason = reason_of(form)
        change_order(states, entry, lambda configured, order: changed(configured, order, expression, args, reason))
        return 1


class ResetEntry(EntryAction):
    """Let entries be as the configuration says."""

    name = "reset"
    label = "Reset"
    role = "admin"
    record = "cron reset"
    fields = (REASON,)

    def details(self, form: Form) -> Mapping[str, object]:
        """Return the reason."""
        return {"reason": line(form, "reason")}

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return Sentence(
            "They are enabled or not, with their expressions and arguments, as the configuration says. {leader}",
            leader=_LEADER_READS,
        )

    def act(self, form: Form, states: CronStates, entry: CronEntry) -> int:
        """Write the order."""
        given = Order(reason=line(form, "reason"))
        change_order(states, entry, lambda _configured, _order: given)
        return 1


class CronPage(Page):
    """Show the entries of the schedule, the next run first."""

    name = "cron"
    path = "/cron"
    title = "Cron"
    menu = "work"
    mends = ("cron_disabled", "cron_missed", "cron_no_leader")
    of_jobs = True
    actions = (RunEntry(), DisableEntry(), EnableEntry(), ChangeEntry(), ResetEntry())

    async def read(self, view: View) -> Facts:
        """Read the entries of each shard."""
        rows = EntryRows()
        found = await view.each(lambda shard: _read_schedule(view, view.shards[shard]))
        entries = [one for listed, _ in found.values() for one in listed if view.may("read", one.shard, one.cls)]
        facts = [{"name": one.name, "shard": one.shard, **rows.facts(one)} for one in sorted(entries, key=_next)]
        leaders = [
            {"shard": shard, "process": leader, "command": "" if leader else _leader_command(view, listed[0])}
            for shard, (listed, leader) in found.items()
            if listed and view.may("read", shard)
        ]
        return {"entries": facts, "leaders": leaders}


def _read_schedule(view: View, shard: Shard) -> tuple[list[ScheduledEntry], str]:
    """Return the entries of a shard, and the process that leads there; empty for none."""
    listed = list(EntryRows().read(view, shard))
    return listed, states_of(shard).leader() if listed else ""


def _leader_command(view: View, entry: ScheduledEntry) -> str:
    """Return the command of a process that would lead, and run the jobs of the entry."""
    declaration, router = view.installation.declaration(entry.cls), view.installation.router
    queue = router.route(declaration).queue if declaration is not None and router is not None else "default"
    return worker_command(*([] if entry.shard == "main" else ["--shard", entry.shard]), "-q", queue)


def _next(entry: ScheduledEntry) -> tuple[bool, int, str]:
    return entry.next_tick is None, entry.next_tick or 0, entry.name


def _change_of(form: Form) -> tuple[str | None, list[Any] | None]:
    expression, text = line(form, "cron"), word(form, "args")
    if not expression and not text:
        raise ValueError(Sentence("Give another expression, or other arguments."))
    if not text:
        return check_cron(expression), None
    try:
        args: Any = json.loads(text)
    except ValueError as error:
        raise ValueError(Sentence("The arguments are not JSON: {error}.", error=error)) from None
    if not isinstance(args, list):
        # The text of an operator, not the type of an argument.
        raise ValueError(Sentence('The arguments are no list: give one in JSON, such as [30, "full"].'))  # noqa: TRY004
    return check_cron(expression) if expression else None, cast("list[Any]", args)
