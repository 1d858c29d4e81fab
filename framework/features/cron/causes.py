"""Find why jobs of the schedule do not come: no leader, a disabled entry, missed ticks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from framework.admin.diagnosis.cause import Cause, CauseCode, CauseReader
from framework.command_line import remedy_command
from framework.features.cron.entries import CronEntry, collect_entries
from framework.features.cron.settings import CronSettings
from framework.features.cron.store import CronStates, EntryState, Snapshot
from framework.push.protection import open_protection
from framework.text import Sentence, format_count, format_duration, join_names

_LATE_S = 30.0
_MOST_NAMES = 3
_MOST_TICKS = 1_000


class CronCauses(CauseReader):
    """Find what keeps the entries of the schedule from their ticks. It needs the classes of the entries."""

    alerts: ClassVar[Mapping[CauseCode, Sequence[str]]] = {
        "cron_no_leader": ("CronMissed", "SchedulerStalled"),
        "cron_disabled": ("CronMissed", "ClassNotDequeued"),
        "cron_missed": ("CronMissed",),
    }

    def causes(self) -> Iterator[Cause]:
        installation = self.facts.installation
        if installation.router is None:
            return
        settings = CronSettings.of(installation.settings)
        router, shard = installation.router, self.facts.shard
        entries = {
            name: entry for name, entry in collect_entries(settings).items() if router.home(entry.declaration) == shard
        }
        if not entries:
            return
        states = CronStates(self.facts.client, settings.cron.application, open_protection(settings).state)
        snapshot = states.read()
        ordered = {
            name: entry if (order := snapshot.orders.get(name)) is None else entry.ordered(order)
            for name, entry in entries.items()
        }
        late = {
            name: ticks
            for name, entry in ordered.items()
            if (ticks := _late_ticks(entry, snapshot.states.get(name), snapshot.now))
        }
        if late:
            yield self._late(late, ordered, snapshot, states.leader(), enabled=settings.cron.enabled)
        yield from (
            self._disabled(entries[name], entry, snapshot)
            for name, entry in ordered.items()
            if _is_disabled(entries[name], entry)
        )

    def _late(
        self,
        late: Mapping[str, int],
        entries: Mapping[str, CronEntry],
        snapshot: Snapshot,
        leader: str,
        *,
        enabled: bool,
    ) -> Cause:
        facts = self.facts
        running = facts.running_processes
        first = max(late, key=lambda name: late[name])
        classes = frozenset(entries[name].declaration.wire_name for name in late)
        quiet = sum(one.is_quiet for one in running)
        state = snapshot.states.get(first)
        since = "" if state is None else Sentence(", since the one of {since}", since=facts.ago(float(state.tick)))
        text = (
            Sentence("{leader} leads, but does not push the jobs of the schedule", leader=leader)
            if leader
            else Sentence("no process leads, so no job of the schedule is pushed")
        )
        evidence: list[str] = [
            (
                Sentence(
                    "late: {names}; {first} has missed {ticks}{since}",
                    names=join_names(sorted(late), max_names=_MOST_NAMES),
                    first=first,
                    ticks=format_count(late[first], "tick"),
                    since=since,
                )
            ),
            Sentence(
                "{processes} on this shard, {quiet} of them quiet",
                processes=format_count(len(running), "process", "runs"),
                quiet=quiet,
            ),
        ]
        if not enabled:
            evidence.append(Sentence("the setting cron.enabled is false here"))
        queue = facts.queue_of(entries[first].declaration.wire_name) or "default"
        return Cause(
            code="cron_missed" if leader else "cron_no_leader",
            shard=facts.shard,
            cause=text,
            evidence=evidence,
            remedy=remedy_command("jobs", "stack", leader) if leader else facts.worker_for(queue),
            effect=(
                Sentence("shows the stacks of the process; after its stop another one leads within 10 s")
                if leader
                else Sentence(
                    "a process leads within 10 s, and makes up for missed ticks as `missed` of each entry says"
                )
            ),
            certainty=8.0,
            jobs=sum(late.values()),
            classes=classes,
        )

    def _disabled(self, configured: CronEntry, entry: CronEntry, snapshot: Snapshot) -> Cause:
        facts, order = self.facts, entry.order
        missed = _ticks_between(configured, order.set_at, snapshot.now)
        next_in = format_duration(_next_s(configured, snapshot.now))
        by = f"{order.set_by or 'an operator'}{f': {order.reason}' if order.reason else ''}"
        return Cause(
            code="cron_disabled",
            shard=facts.shard,
            cause=Sentence("the cron entry {entry} is disabled by {by}", entry=entry.name, by=by),
            evidence=[
                Sentence(
                    "disabled at {since}; {ticks} since then without a job",
                    since=facts.ago(order.set_at),
                    ticks=format_count(missed, "tick"),
                ),
                Sentence(
                    "its expression is {text}, its class {wire_name}",
                    text=entry.expression.text,
                    wire_name=entry.declaration.wire_name,
                ),
            ],
            remedy=remedy_command("cron", "enable", entry.name, loads_classes=True),
            effect=Sentence(
                "its next job comes in {next_in}; the {missed:,} before stay without one",
                next_in=next_in,
                missed=missed,
            ),
            certainty=7.0,
            jobs=missed,
            classes=frozenset({entry.declaration.wire_name}),
        )


def _is_disabled(configured: CronEntry, entry: CronEntry) -> bool:
    return configured.enabled and not entry.enabled


def _late_ticks(entry: CronEntry, state: EntryState | None, now: float) -> int:
    """Return the number of ticks of an entry that are late; 0 for one that no process has begun."""
    if not entry.enabled or state is None or state.waits or state.fingerprint != entry.fingerprint:
        return 0
    return _ticks_between(entry, float(state.tick), now - _LATE_S - entry.offset_s)


def _ticks_between(entry: CronEntry, after: float, until: float) -> int:
    count, tick = 0, entry.expression.next_after(int(after))
    while tick is not None and tick <= until and count < _MOST_TICKS:
        count, tick = count + 1, entry.expression.next_after(tick)
    return count


def _next_s(entry: CronEntry, now: float) -> float:
    tick = entry.expression.next_after(int(now))
    return 0.0 if tick is None else tick - now
