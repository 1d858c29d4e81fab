"""Explain what policies do with a job: what would block it, in the order of the policies, and the remedy."""

from typing import NamedTuple

from framework.admin.limits import LimitState, read_slot_holders
from framework.admin.snapshot import ShardSnapshot
from framework.admin.times import format_duration
from framework.command_line import command
from framework.flags.flag import Flag, drop_flag, run_flag

_MAX_HOLDERS = 5
"""The most slot holders that are named."""


class Blocker(NamedTuple):
    """A reason why a job does not run, with a ``code`` for programs, and the remedy: a command, an event or a time."""

    code: str
    why: str
    remedy: str


class PolicyBlockers:
    """Find the policies of one shard that block a job. Methods raise redis errors."""

    def __init__(self, snapshot: ShardSnapshot) -> None:
        self._snapshot = snapshot

    def at_admission(self, worker: str, queue: str) -> list[Blocker]:
        """Return what blocks a job of the class when a process fetches it from the queue."""
        limits = [reason for base in (f"queue/{queue}", worker) for reason in self.limit(base)]
        return [*self._dropped(worker), *self.pause(worker), *self._deferred(worker), *limits]

    def pause(self, worker: str) -> list[Blocker]:
        """Return the pause of the class, empty without one."""
        pause = self._snapshot.pauses.get(worker)
        if pause is None or not pause.by:
            return []
        why = f"{worker} is paused by {pause.by}{f': {pause.reason}' if pause.reason else ''}"
        ends = "" if pause.until is None else f"; by itself in {format_duration(pause.until - self._snapshot.now)}"
        release = (
            f"{command(f'jobs resume {worker}')}{ends}"
            if pause.manual
            else f"the end of the pause by the strategy {pause.by}"
        )
        return [Blocker("paused", why, release)]

    def limit(self, base: str, *, is_waiting: bool = False, scope: str = "") -> list[Blocker]:
        """Return what a limit does with one more job, or with a job of ``scope`` that waits at it."""
        limit = self._snapshot.limit(base)
        if not (limit.is_full or is_waiting):
            return []
        if limit.limit is not None and limit.limit < 0:
            return [
                Blocker(
                    "limit_paused",
                    f"the limit {base} is {limit.limit}: no job runs ({self._limit_origin(limit)})",
                    self._limit_remedy(limit),
                )
            ]
        held = self._snapshot.slots_of_scope(base, scope) if scope and limit.share else 0
        if limit.share and held >= limit.share and limit.limit != 0:
            why = f"its scope {scope} has its share of the limit {base} ({held}/{limit.share}; all: {limit.usage})"
            why = f"{why}: {self._slot_holders(base, scope)}"
            return [Blocker("share_reached", why, f"the end of a job of {scope}, whose slot goes to the next")]
        if not limit.is_full:
            why = f"the limit {base} has free slots ({limit.usage}) and jobs wait: they are being released now"
            return [
                Blocker("limit_free", why, f"any process, in seconds; at once: {command(f'jobs limits sweep {base}')}")
            ]
        return [
            Blocker(
                "limit_reached",
                f"the limit {base} is reached ({limit.usage}; {self._limit_origin(limit)}): {self._slot_holders(base)}",
                self._slot_remedy(limit),
            )
        ]

    def _slot_holders(self, base: str, scope: str = "") -> str:
        found = read_slot_holders(self._snapshot.client, base, self._snapshot.now, scope)
        named = [
            f"{one.jid} in {one.identity or 'no process yet'} ({format_duration(one.left_s)} left)"
            for one in found[:_MAX_HOLDERS]
        ]
        more = f" and {len(found) - _MAX_HOLDERS:,} more" if len(found) > _MAX_HOLDERS else ""
        return f"held by {', '.join(named)}{more}"

    def _slot_remedy(self, limit: LimitState) -> str:
        return (
            f"the end of any of these jobs; the slot of a dead process expires by itself; {self._limit_remedy(limit)}"
        )

    def _limit_remedy(self, limit: LimitState) -> str:
        if limit.source == "operators":
            ends = "" if limit.until is None else f"; by itself in {format_duration(limit.until - self._snapshot.now)}"
            return f"{command(f'jobs limits clear {limit.name}')}{ends}"
        return f"more slots: {command(f'jobs limits set {limit.name} N --reason ... --for ...')}"

    def _limit_origin(self, limit: LimitState) -> str:
        if limit.source == "operators" and limit.override is not None:
            return f"set by {limit.override.by}: {limit.override.reason}"
        return {"throttled": "throttled", "application": "set by the application"}.get(limit.source, "not set")

    def _dropped(self, worker: str) -> list[Blocker]:
        flag = self._snapshot.flags.get(drop_flag(worker))
        if flag is None or flag.percentage <= 0:
            return []
        why = f"jobs of {worker} are dropped ({flag.percentage:g} %){_flag_origin(flag)}"
        return [Blocker("dropping", why, self._flag_remedy(flag, worker))]

    def _deferred(self, worker: str) -> list[Blocker]:
        flag = self._snapshot.flags.get(run_flag(worker))
        if flag is None or flag.percentage >= 100:
            return []
        why = f"jobs of {worker} are deferred, {flag.percentage:g} % of them may run{_flag_origin(flag)}"
        return [Blocker("deferring", why, self._flag_remedy(flag, worker))]

    def _flag_remedy(self, flag: Flag, worker: str) -> str:
        ends = (
            "" if flag.expires_at is None else f"; by itself in {format_duration(flag.expires_at - self._snapshot.now)}"
        )
        return f"{command(f'jobs flags clear {worker}')}{ends}"


def _flag_origin(flag: Flag) -> str:
    by = f", by {flag.set_by}" if flag.set_by else ""
    return f"{by}{f': {flag.reason}' if flag.reason else ''}"
