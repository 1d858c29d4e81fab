"""What the policies say to the jobs of a class, in the order of the gates: what would hold one up, and what ends that."""

from typing import NamedTuple

from framework.admin.facts import Facts
from framework.admin.limits import Limit, holders
from framework.admin.times import lasting
from framework.command_line import command
from framework.flags.flag import Flag, drop_flag, run_flag

_NAMED = 5
"""So many of those that have the slots are named."""


class Reason(NamedTuple):
    """What stands in a job's way (``code`` for machines), and the command, event or time that ends it."""

    code: str
    why: str
    release: str


class Valves:
    """The valves of one shard. Methods raise redis errors."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def door(self, worker: str, queue: str) -> list[Reason]:
        """What stands before a job of the class that is fetched from the queue."""
        limits = [reason for base in (f"queue/{queue}", worker) for reason in self.limit(base)]
        return [*self._dropped(worker), *self.pause(worker), *self._deferred(worker), *limits]

    def pause(self, worker: str) -> list[Reason]:
        """Who pauses the class, if anybody does."""
        pause = self._facts.pauses.get(worker)
        if pause is None or not pause.by:
            return []
        why = f"{worker} is paused by {pause.by}{f': {pause.reason}' if pause.reason else ''}"
        ends = "" if pause.until is None else f"; by itself in {lasting(pause.until - self._facts.now)}"
        release = (
            f"{command(f'jobs resume {worker}')}{ends}"
            if pause.manual
            else f"the strategy {pause.by}, when it pauses no more"
        )
        return [Reason("paused", why, release)]

    def limit(self, base: str, *, waits: bool = False, scope: str = "") -> list[Reason]:
        """What a limit says to one more job, or to one of a scope that ``waits`` at it."""
        limit = self._facts.limit(base)
        if not (limit.full or waits):
            return []
        if limit.limit is not None and limit.limit < 0:
            return [
                Reason(
                    "limit_paused",
                    f"the limit {base} is {limit.limit}: nobody runs ({self._said(limit)})",
                    self._change(limit),
                )
            ]
        held = self._facts.held_by_scope(base, scope) if scope and limit.share else 0
        if limit.share and held >= limit.share and limit.limit != 0:
            why = f"its scope {scope} has its share of the limit {base} ({held}/{limit.share}; all: {limit.shown})"
            why = f"{why}: {self._who(base, scope)}"
            return [Reason("share_reached", why, f"the end of a job of {scope}, which hands its slot over")]
        if not limit.full:
            why = f"the limit {base} has free slots ({limit.shown}) and jobs wait: they are handed out just now"
            return [
                Reason("limit_free", why, f"any process, in seconds; at once: {command(f'jobs limits release {base}')}")
            ]
        return [
            Reason(
                "limit_reached",
                f"the limit {base} is reached ({limit.shown}; {self._said(limit)}): {self._who(base)}",
                self._slot(limit),
            )
        ]

    def _who(self, base: str, scope: str = "") -> str:
        found = holders(self._facts.client, base, self._facts.now, scope)
        named = [
            f"{one.jid} in {one.identity or 'no process yet'} ({lasting(one.left_s)} left)" for one in found[:_NAMED]
        ]
        more = f" and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
        return f"held by {', '.join(named)}{more}"

    def _slot(self, limit: Limit) -> str:
        return f"the end of any of these, which hands its slot over; a dead process's slot ends by itself; {self._change(limit)}"

    def _change(self, limit: Limit) -> str:
        if limit.source == "operators":
            ends = "" if limit.until is None else f"; by itself in {lasting(limit.until - self._facts.now)}"
            return f"{command(f'jobs limits clear {limit.name}')}{ends}"
        return f"more slots: {command(f'jobs limits set {limit.name} N --reason ... --for ...')}"

    def _said(self, limit: Limit) -> str:
        if limit.source == "operators" and limit.override is not None:
            return f"set by {limit.override.by}: {limit.override.reason}"
        return {"throttled": "throttled", "application": "as the application says"}.get(limit.source, "nobody said so")

    def _dropped(self, worker: str) -> list[Reason]:
        flag = self._facts.flags.get(drop_flag(worker))
        if flag is None or flag.percentage <= 0:
            return []
        why = f"jobs of {worker} are dropped ({flag.percentage:g} %){_said_of(flag)}"
        return [Reason("dropping", why, self._until(flag, worker))]

    def _deferred(self, worker: str) -> list[Reason]:
        flag = self._facts.flags.get(run_flag(worker))
        if flag is None or flag.percentage >= 100:
            return []
        why = f"jobs of {worker} are deferred, {flag.percentage:g} % of them may run{_said_of(flag)}"
        return [Reason("deferring", why, self._until(flag, worker))]

    def _until(self, flag: Flag, worker: str) -> str:
        ends = "" if flag.expires_at is None else f"; by itself in {lasting(flag.expires_at - self._facts.now)}"
        return f"{command(f'jobs release {worker}')}{ends}"


def _said_of(flag: Flag) -> str:
    by = f", by {flag.set_by}" if flag.set_by else ""
    return f"{by}{f': {flag.reason}' if flag.reason else ''}"
