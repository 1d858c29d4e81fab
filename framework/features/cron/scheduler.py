"""Push the jobs of due ticks, as the leader of the processes of an application on one shard."""

import math
import time
from collections.abc import Mapping
from typing import NamedTuple

from redis.exceptions import RedisError, ResponseError

from framework.features.cron.entries import AddedEntries, CronEntry, due_ticks
from framework.features.cron.events import CronEvents
from framework.features.cron.leadership import Leadership
from framework.features.cron.push import TickJobs
from framework.features.cron.store import (
    FIRST_ELSEWHERE,
    HELD_BACK,
    TOO_EARLY,
    CronStates,
    EntryState,
    Settlement,
    Snapshot,
)
from framework.recover.reaper import jittered
from framework.store.script import is_lasting
from framework.timings import STANDARD, Timings

_RETRY_S = 10.0
"""The time until an entry whose push failed is tried again."""
_EARLY_S = 0.05
"""The time until a tick that was in the future of the server's clock is tried again."""
_ROOM_RETRY_S = 5.0
"""The time until a tick is tried again that waits for room in the backlog of its class."""
_WAITING_CHECK_S = 1.0
"""The period of the check whether a waiting run may begin, because the last job has ended."""
_CLOCK_MARGIN_S = 0.002
"""A step begins a little after the tick: the estimate of the server's clock is not exact."""


class _Next(NamedTuple):
    """The next tick of an entry, computed for one state of it."""

    state: bytes
    fingerprint: str
    due_at: float
    """The time of the tick, and the offset of the entry."""


# The state of an entry decides about a tick; the lease only saves work: two leaders for a moment push a tick once, and a change
# of the leader loses none.
class CronScheduler:
    """Push the jobs of ``entries``. ``step`` is called in a loop by one thread."""

    def __init__(
        self,
        states: CronStates,
        leadership: Leadership,
        entries: Mapping[str, CronEntry],
        jobs: TickJobs,
        events: CronEvents,
        *,
        added: AddedEntries | None = None,
        kind: Leadership | None = None,
        timings: Timings = STANDARD,
    ) -> None:
        self._states = states
        self.leadership = leadership
        self._kind = kind
        """The lease that decides which process pushes, among those with the same part of the application's modules."""
        self._configured = entries
        self._added = added
        self._entries = entries
        """The configured entries, and those that were added at run time."""
        self._jobs = jobs
        self._events = events
        self.may_lead = True
        """Whether the process may lead."""
        self._timings = timings
        self._taken: Mapping[str, CronEntry] | None = None
        self._led = False
        self._snapshot: Snapshot | None = None
        self._read_at = 0.0
        self._clock_offset_s = 0.0
        self._next: dict[str, _Next] = {}
        self._retry_at: dict[str, float] = {}
        self._held_back: dict[str, int] = {}
        """The tick of each entry that waits for room in the backlog of its class."""

    def step(self) -> float:
        """Lead if no other process does, and push the jobs of due ticks; return the seconds until the next step.

        Raises redis errors of the connection.
        """
        try:
            if not (self.may_lead and self._has_work()):
                self.release()
                return self._timings.leader_check_period_s
            return self._lead() if self._renew() else self._follow()
        except (RedisError, OSError):
            # After an outage the states may be those of another leader.
            self._snapshot = None
            raise

    def _has_work(self) -> bool:
        """Return whether a leader has work here. Entries that were added at run time are only in Redis."""
        if self._configured or self.leadership.asked:
            return True
        if self._added is None or not self._added.may_exist():
            return False
        return bool(self._added.usable(self._states.read_added()))

    def release(self) -> None:
        """Give up the lease. Raises redis errors."""
        self._note_leadership(leads=False)
        self.leadership.release()
        if self._kind is not None:
            self._kind.release()

    def _renew(self) -> bool:
        """Take or renew the leases; return whether this process pushes."""
        leads = self.leadership.renew()
        return leads if self._kind is None else self._kind.renew()

    def _follow(self) -> float:
        self._note_leadership(leads=False)
        return jittered(self._timings.leader_check_period_s)

    def _note_leadership(self, *, leads: bool) -> None:
        if leads != self._led:
            self._led = leads
            self._snapshot = None
            self._events.leadership_changed(leads=leads)

    def _lead(self) -> float:
        self._note_leadership(leads=True)
        if not self._configured and (self._added is None or not self._added.may_exist()):
            return self._timings.leader_renewal_period_s
        snapshot = self._fresh_snapshot()
        wait_s = self._timings.leader_renewal_period_s
        for name, configured in self._entries.items():
            wait_s = min(wait_s, self._guarded(snapshot, name, configured))
        return max(0.0, wait_s)

    def _fresh_snapshot(self) -> Snapshot:
        """Return the states; they are read again when they are old, and when a tick may be due."""
        now = time.monotonic()
        found = self._snapshot
        due = any(one.due_at <= now + self._clock_offset_s for one in self._next.values())
        if found is None or due or now - self._read_at >= self._timings.cron_read_period_s:
            found = self._snapshot = self._states.read()
            self._read_at = time.monotonic()
            self._clock_offset_s = found.now - self._read_at
            self._take_added(found)
        return found

    def _take_added(self, snapshot: Snapshot) -> None:
        """Use the entries that were added at run time from now on, and report those that cannot be used."""
        if self._added is None:
            return
        added = self._added.usable(snapshot.added)
        if added is self._taken:
            return
        self._taken, self._entries = added, {**self._configured, **added}
        for name in self._next.keys() - self._entries.keys():
            self._next.pop(name, None)
            self._retry_at.pop(name, None)
        for name, why in self._added.unusable.items():
            self._events.unusable(name, why)

    def _now(self) -> float:
        return time.monotonic() + self._clock_offset_s

    def _guarded(self, snapshot: Snapshot, name: str, configured: CronEntry) -> float:
        """Return the seconds until the entry is due again. An error of one entry does not stop the others."""
        retry_s = self._retry_at.get(name, 0.0) - time.monotonic()
        if retry_s > 0:
            return retry_s
        entry = configured
        try:
            entry = self._ordered(snapshot, configured)
            return self._step_entry(snapshot, entry) - self._now() + _CLOCK_MARGIN_S
        except (RedisError, OSError) as error:
            if not (isinstance(error, ResponseError) and is_lasting(error)):
                raise
            failure: Exception = error
        except Exception as error:  # noqa: BLE001 - a client middleware, a hook or an order may raise anything
            failure = error
        self._events.failed(entry, failure)
        self._next.pop(name, None)
        self._retry_at[name] = time.monotonic() + _RETRY_S
        return _RETRY_S

    def _ordered(self, snapshot: Snapshot, configured: CronEntry) -> CronEntry:
        if configured.name not in snapshot.orders:
            return configured
        order = snapshot.orders[configured.name]
        if order is None:
            self._events.unreadable_order(configured.name)
            return configured
        return configured.ordered(order)

    def _step_entry(self, snapshot: Snapshot, entry: CronEntry) -> float:
        """Settle the due ticks of an entry; return when its next tick is due, by the server's clock."""
        name, fingerprint = entry.name, entry.fingerprint
        state = snapshot.states.get(name)
        raw = snapshot.raw.get(name, b"")
        if state is None or state.fingerprint != fingerprint:
            return self._begin(entry, state, raw)
        if not entry.enabled:
            self._next.pop(name, None)
            return math.inf
        known = self._next.get(name)
        if known is None or known.state != raw or known.fingerprint != fingerprint:
            known = self._note_next(entry, raw, state.tick)
        if known.due_at <= self._now():
            return self._settle(entry, state)
        if state.waits and entry.overlap == "queue":
            return min(known.due_at, self._push_waiting(entry, state))
        return known.due_at

    def _push_waiting(self, entry: CronEntry, state: EntryState) -> float:
        """Push the run that waits for the end of the last job, if it has ended; return when to look again."""
        # Asked first: a job that is made again and again would run the client middlewares as often.
        if self._states.has_ended(state.jid):
            self._snapshot = None
            settlement, jid = self._settle_tick(entry, state.raw, state.tick, pushes=True)
            # A clock that was set back, or another leader: the next step looks again.
            if settlement not in (FIRST_ELSEWHERE, TOO_EARLY) and settlement.outcome != "waits":
                self._report(entry, state.tick, settlement, jid)
            if settlement.outcome == HELD_BACK:
                return self._wait_for_room(entry)
        return self._now() + _WAITING_CHECK_S

    def _begin(self, entry: CronEntry, state: EntryState | None, raw: bytes) -> float:
        """Let a new or changed entry begin with its next tick."""
        # Not before the last tick: after a clock was set back, no tick is repeated.
        # With an offset, the next tick is the first that is not due yet.
        tick = max(int(self._now()) - entry.offset_s, state.tick if state is not None else 0)
        self._states.settle(entry.name, raw, tick, entry.fingerprint, "begun")
        # The next step reads the state that this step, or that of another process, has written.
        self._snapshot = None
        return self._now()

    def _note_next(self, entry: CronEntry, raw: bytes, settled: int) -> _Next:
        tick = entry.expression.next_after(settled)
        found = self._next[entry.name] = _Next(
            raw, entry.fingerprint, math.inf if tick is None else tick + entry.offset_s
        )
        return found

    def _settle(self, entry: CronEntry, state: EntryState) -> float:
        """Push the jobs of the due ticks, in order. Each step settles one tick and all skipped ones before it."""
        now = self._now() - entry.offset_s
        due = due_ticks(entry.expression, state.tick, now, entry.missed, self._timings.cron_missed_after_s)
        self._snapshot = None
        raw, settled, reported = state.raw, state.tick, not (due.skipped or due.more_skipped)
        steps = [(tick, True) for tick in due.push] or [(tick, False) for tick in due.skipped[-1:]]
        for tick, pushes in steps:
            settlement, jid = self._settle_tick(entry, raw, tick, pushes=pushes)
            if settlement is FIRST_ELSEWHERE:
                return self._now()
            if settlement is TOO_EARLY:
                return self._now() + _EARLY_S
            if settlement.outcome == HELD_BACK:
                self._report(entry, tick, settlement, "")
                return self._wait_for_room(entry)
            if not reported:
                reported = True
                self._events.missed(entry, due)
            self._report(entry, tick, settlement, jid)
            raw, settled = settlement.state, tick
        return self._note_next(entry, raw, settled).due_at

    # Decision 266: the tick is not settled. Later ones, and its own after a time, are as ``missed`` says.
    def _wait_for_room(self, entry: CronEntry) -> float:
        """Return when a tick is tried again for which the backlog of its class has no room."""
        self._retry_at[entry.name] = time.monotonic() + _ROOM_RETRY_S
        return self._now() + _ROOM_RETRY_S

    def _settle_tick(self, entry: CronEntry, raw: bytes, tick: int, *, pushes: bool) -> tuple[Settlement, str]:
        job = self._jobs.make(entry, tick) if pushes else None
        if job is None:
            outcome = "dropped" if pushes else "missed"
            return self._states.settle(entry.name, raw, tick, entry.fingerprint, outcome), ""
        settlement = self._states.push(entry.name, raw, tick, entry.fingerprint, job, entry.overlap)
        if settlement.outcome == "duplicate":
            job.log_duplicate(settlement.other)
        elif settlement.outcome == "pushed":
            job.note_written()
        return settlement, job.jid

    def _report(self, entry: CronEntry, tick: int, settlement: Settlement, jid: str) -> None:
        if settlement.outcome == HELD_BACK:
            self._events.held_back(entry, tick, again=self._held_back.get(entry.name) == tick)
            self._held_back[entry.name] = tick
        elif settlement.outcome == "pushed":
            self._events.pushed(entry, tick, jid, self._now() - tick - entry.offset_s)
        elif settlement.outcome != "missed":
            self._events.not_pushed(entry, tick, settlement.outcome, settlement.other)
