"""Write the log lines of cron."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from framework.command_line import command
from framework.features.cron.entries import CronEntry, DueTicks
from framework.telemetry import logs
from framework.telemetry.job_events import StreamEvent, job_events
from framework.telemetry.logs import LogRateLimit
from framework.types import Jid

CRON_TICKS = "sidekiq_cron_ticks_total"
"""Ticks of the schedule, by entry and outcome: ``pushed``, ``missed``, or why the tick pushed no job."""


@dataclass(frozen=True, slots=True)
class CronTicked(StreamEvent):
    """Ticks of an entry of the schedule were due."""

    counter: ClassVar[str] = CRON_TICKS
    entry: str = ""
    outcome: str = ""


_REPEAT_S = 30.0

NO_JOB = {
    "held_back": "the backlog of its class is full",
    "overlap": "the last job of the entry waits or runs",
    "waits": "the last job of the entry waits or runs, and one run follows its end",
    "duplicate": "an equal job has the deduplication lock",
    "dropped": "a client middleware dropped the job",
    "full": "the backlog of its class is full, and the class declares on_full = 'drop'",
}


class CronEvents:
    """Report the events of cron: each method is one event with one log line, and counts the ticks that it is about."""

    def __init__(self, shard: str) -> None:
        self._log = logs.logger(shard=shard)
        self._rate_limit = LogRateLimit(_REPEAT_S)
        self._shard = shard

    def leadership_changed(self, *, leads: bool) -> None:
        """Report that this process took the lease, or lost it."""
        text = "this process leads: it pushes the jobs of the schedule" if leads else "this process no longer leads"
        self._log.info(text, event_name="cron.leader", leads=leads)

    def pushed(self, entry: CronEntry, tick: int, jid: Jid, late_s: float) -> None:
        _count(entry, "pushed")
        self._log.info(
            "a tick of the schedule has pushed its job",
            event_name="cron.pushed",
            entry=entry.name,
            tick=tick,
            jid=jid,
            late_s=round(max(0.0, late_s), 3),
            **{"class": entry.declaration.wire_name},
        )

    def not_pushed(self, entry: CronEntry, tick: int, outcome: str, other: Jid) -> None:
        """Report a tick without a job: ``overlap``, ``waits``, ``duplicate``, ``dropped`` or ``full``."""
        _count(entry, outcome)
        self._log.info(
            f"a tick of the schedule has pushed no job: {NO_JOB[outcome]}",
            event_name="cron.skipped",
            entry=entry.name,
            tick=tick,
            outcome=outcome,
            **({"jid": other} if other else {}),
            **{"class": entry.declaration.wire_name},
        )

    def held_back(self, entry: CronEntry, tick: int, *, again: bool) -> None:
        """Report a tick that waits for room in the backlog of its class; ``again``: it was tried before."""
        if not again:
            _count(entry, "held_back")
        self._rate_limit.warning(
            f"held back {entry.name}",
            "a tick of the schedule waits for room: the backlog of its class is full. Let more processes run the class, or raise "
            "max_waiting",
            "cron.held_back",
            shard=self._shard,
            entry=entry.name,
            tick=tick,
            **{"class": entry.declaration.wire_name},
        )

    def missed(self, entry: CronEntry, due: DueTicks) -> None:
        """Report missed ticks that push no job."""
        _count(entry, "missed", len(due.skipped))
        self._log.warning(
            "ticks of the schedule were missed and push no job: no process ran, or Redis did not answer. "
            f"`{command(f'cron run {entry.name}')}` pushes one now",
            event_name="cron.missed",
            entry=entry.name,
            count=len(due.skipped),
            more=due.more_skipped,
            first_tick=due.skipped[0] if due.skipped else None,
            missed=entry.missed,
            **{"class": entry.declaration.wire_name},
        )

    def failed(self, entry: CronEntry, error: BaseException) -> None:
        """Report an entry whose job cannot be pushed; the process tries again, and the other entries go on."""
        self._rate_limit.error(
            entry.name,
            "the job of a tick of the schedule cannot be pushed, and the process tries again. Look at the error",
            "cron.failed",
            shard=self._shard,
            entry=entry.name,
            error=error,
            **{"class": entry.declaration.wire_name},
        )

    def unreadable_order(self, name: str) -> None:
        """Report an operators' order that cannot be read."""
        self._rate_limit.error(
            f"order of {name}",
            "an order for an entry of the schedule cannot be read, or is not signed as it must be, and counts as not given. "
            f"`{command(f'cron reset {name}')}` removes it",
            "cron.unreadable_order",
            shard=self._shard,
            entry=name,
        )

    def unusable(self, name: str, why: str) -> None:
        """Report an entry that was added at run time, and of which this process pushes no jobs."""
        self._rate_limit.warning(
            f"unusable {name}",
            "an entry of the schedule that was added at run time is not used by this process. Look at the reason: "
            f"`{command(f'cron remove {name}')}` removes it",
            "cron.unusable",
            shard=self._shard,
            entry=name,
            reason=why,
        )

    def unknown_classes(self, entries: Mapping[str, str]) -> None:
        """Report entries whose classes this process does not have; processes that have them push their jobs."""
        self._log.info(
            "this process does not have the classes of some entries of the schedule: processes with these classes push their "
            "jobs. If no process has them, deploy the classes or remove the entries",
            event_name="cron.unknown_classes",
            classes=sorted(set(entries.values())),
        )


def _count(entry: CronEntry, outcome: str, ticks: int = 1) -> None:
    job_events.emit(CronTicked(entry.declaration.wire_name, ticks, entry=entry.name, outcome=outcome))
