"""From an outcome to the job's next place: one case each, one atomic script each."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, assert_never

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.fetch.call import LEASE_MS
from framework.fetch.interruptions import KEEP_INTERRUPTED
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.handlers import Handlers
from framework.finish.outcome import (
    AwaitsTurn,
    Deferred,
    Discarded,
    Failed,
    ForeignClass,
    Interrupted,
    Outcome,
    Parked,
    Postponed,
    Retired,
    Succeeded,
    UnknownClass,
    Unreadable,
)
from framework.finish.retry import Bury, Drop, Retry, RetryPolicy, Verdict, shown
from framework.finish.states import States
from framework.finish.waiting import Waits, leaving, waiting
from framework.store.script import BURY, COMPLETE, DROP, FETCH, POSTPONE, REQUEUE, Script
from framework.types import JobState, Payload
from framework.wire import keys
from framework.wire.holds import Lock, NextRun
from framework.wire.job import UNKNOWN_COUNT, decode
from framework.wire.splice import rewrite
from framework.wire.status import Tracked

_RUNS_AGAIN = 2  # what complete.lua says
SOON_S = 10.0
"""A retry that is due within this may be due before anybody looks: ``on_soon`` is called."""


class Acknowledges(Protocol):
    """Where a unit goes when its job has come to an end (the fetcher)."""

    def finish(self, unit: UnitOfWork, *, settled: bool = False) -> None:
        """The unit's job has come to an end; ``settled``: it has left the working list already."""


@dataclass(frozen=True, slots=True)
class DeadSetLimits:
    """Sidekiq's: at most 9,999 entries for ``max_jobs`` 10,000, none older than 180 days."""

    max_jobs: int = 10_000
    timeout_s: float = 180 * 86_400
    business_max_jobs: int = 1_000
    """Most of them that the business refused."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a job, for its log line: ``fate`` is acknowledged, retry, dead, dropped, scheduled, or fenced."""

    fate: str
    payload: Payload | None = None
    delay_s: float | None = None


class Settler:
    """Moves one job according to its outcome. Raises redis errors; the job is then still in the working list."""

    def __init__(
        self,
        client: "redis.Redis",
        identity: str,
        fetcher: Acknowledges,
        handlers: Handlers,
        policy: RetryPolicy,
        dead_set: DeadSetLimits,
        on_trimmed: Callable[[int, str], None],
        on_soon: Callable[[], None],
        states: States,
    ) -> None:
        self._client = client
        self._lease = keys.lease(identity)
        self._working = keys.working(identity)
        self._fetcher = fetcher
        self._handlers = handlers
        self._policy = policy
        self._dead_set = dead_set
        self._on_trimmed = on_trimmed
        self._on_soon = on_soon
        self._states = states
        self._in_doubt: set[bytes] = set()

    def judge(
        self, unit: UnitOfWork, worker: Any | None, outcome: Outcome, args: list[Any] | None = None
    ) -> Verdict | None:
        """Return what becomes of a failed job, ``None`` for every other outcome. Moves nothing.

        ``args`` are its arguments as the hooks shall see them: decompressed.
        """
        if not isinstance(outcome, Failed):
            return None
        payload = leaving(unit)
        decide = partial(self._policy.verdict, worker=worker, error=outcome.error, args=args)
        guarded = self._handlers.guard("retry_in", lambda: decide(dict(payload)))
        # A hook that raises costs its own advice only: decide again without asking it.
        verdict: Verdict = guarded if guarded is not None else decide(payload, ask=False)
        if worker is not None and _exhausted(verdict):
            advice = self._handlers.guard(
                "retries_exhausted", lambda: worker.retries_exhausted(shown(verdict.payload, args), outcome.error)
            )
            if advice == "discard":
                return Drop(self._policy.discarded(verdict.payload), args)
        return verdict

    def settle(
        self,
        unit: UnitOfWork,
        outcome: Outcome,
        verdict: Verdict | None,
        tracked: Tracked | None = None,
        *,
        confirmed: bool = False,
    ) -> Settled:
        """Move the job to its next place and free its slot; return where it went. ``confirmed``: only when Redis has heard its end.

        The state of a ``tracked`` one moves with it, in the same script. One that leaves Redis by its acknowledgement gets its
        last state before: a kill in between runs it again, and then it is running again.
        """
        match outcome:
            case Succeeded() | Discarded():
                if tracked is not None:
                    self._states.end(tracked, "discarded" if isinstance(outcome, Discarded) else "completed")
                return self._leave(unit, confirmed=confirmed, done=True)
            case Failed(error):
                assert verdict is not None, "a failure is judged before it is settled"  # noqa: S101
                return self._fail(unit, error, verdict, tracked)
            case Postponed() | Deferred() | ForeignClass() | UnknownClass():
                return self._put_off(unit, outcome, tracked)
            case Parked():
                self._finish(unit)
                return Settled("parked")
            case Retired(name):
                return self._drop(unit, name, tracked)
            case Unreadable(error, stored):
                return self._bury(unit, stored, None, error, tracked)
            case Interrupted() | AwaitsTurn():
                return Settled("interrupted")  # still in custody; shutdown gives it back
            case _:
                assert_never(outcome)

    def _leave(self, unit: UnitOfWork, *, confirmed: bool = False, done: bool = False) -> Settled:
        """The job leaves Redis: by its acknowledgement, or, if it holds anything, by a script that lets go in the same step.

        One that is ``done`` runs once more, where its class wants that, when a duplicate came while it ran: in the same step, too.
        """
        if unit.holds is not None:
            gone = self._complete(unit, done=done)
            self._finish(unit)
            return Settled("acknowledged" if gone else "fenced")
        if confirmed:
            return self._acknowledge(unit)
        self._fetcher.finish(unit)
        return Settled("acknowledged")

    def _complete(self, unit: UnitOfWork, *, done: bool = False) -> bool:
        """Take what holds anything out of Redis; whether it was ours to take."""
        names, arguments = [self._working], [unit.data, _ended(unit)]
        holds = unit.holds
        next_run = holds.next_run() if done and holds is not None and holds.next_run is not None else None
        if next_run is not None and holds is not None and holds.lock is not None:
            names += [keys.QUEUES, keys.queue(next_run.queue), holds.lock.key]
            arguments += _once_more(holds.lock, next_run)
        gone: Any = self._heard(unit, COMPLETE, names, arguments)
        if gone == _RUNS_AGAIN and next_run is not None:
            next_run.tell()
        return bool(gone) or unit.data in self._in_doubt

    def _acknowledge(self, unit: UnitOfWork) -> Settled:
        """Take the job out of Redis, and free its slot when that is certain: nothing runs there meanwhile that could end us."""
        reply: Any = self._heard(unit, FETCH, [self._lease, self._working], [LEASE_MS, 0, 1, unit.data])
        _, fenced, _ = reply
        gone = not fenced or unit.data in self._in_doubt
        self._finish(unit)
        return Settled("acknowledged" if gone else "fenced")

    def _fail(self, unit: UnitOfWork, error: BaseException, verdict: Verdict, tracked: Tracked | None) -> Settled:
        match verdict:
            case Drop(payload, args):
                if tracked is not None:
                    self._states.end(tracked, "failed")
                held = unit.holds is not None
                # Before the handlers: it may be tried again, and they are told once.
                gone = self._complete(unit) if held else True
                if gone:
                    self._handlers.died(shown(payload, args), error)
                self._in_doubt.discard(unit.data)
                self._fetcher.finish(unit, settled=held)
                return Settled("dropped" if gone else "fenced", payload)
            case Retry(payload, delay_s):
                data, state = rewrite(unit.data, payload), _state(tracked, "retrying", delay_s)
                settled = self._postpone(unit, keys.RETRY, data, delay_s, state, "retry", payload)
                if delay_s < SOON_S:
                    self._on_soon()
                return settled
            case Bury(payload):
                return self._bury(unit, rewrite(unit.data, payload), verdict, error, tracked)
            case _:
                assert_never(verdict)

    def _postpone(
        self,
        unit: UnitOfWork,
        target: str,
        data: bytes,
        delay_s: float,
        state: "_State | None",
        fate: str,
        payload: Payload | None = None,
    ) -> Settled:
        holds = unit.holds.waits(delay_s) if unit.holds is not None else ""
        moved: Any = self._run(POSTPONE, unit, target, [data, f"{delay_s:.6f}"], state, holds)
        if not moved and self._moved_before(unit, target, data):
            moved = 1
        self._finish(unit)
        return Settled(fate if moved else "fenced", payload, delay_s)

    def _bury(
        self, unit: UnitOfWork, data: bytes, verdict: Bury | None, error: BaseException, tracked: Tracked | None
    ) -> Settled:
        limits = self._dead_set
        most_business = limits.business_max_jobs if verdict is not None and verdict.business else ""
        keep = (limits.max_jobs, limits.timeout_s, most_business)
        trimmed = self._move_to_set(unit, keys.DEAD, data, keep, tracked)
        # Before the slot is free: a handler that takes its time takes this slot, not one that a job is dispatched to.
        if trimmed >= 0 and verdict is not None:
            self._handlers.died(shown(verdict.payload, verdict.args), error)
        self._finish(unit)
        if trimmed > 0:
            self._on_trimmed(trimmed, keys.DEAD)
        return Settled("fenced" if trimmed < 0 else "dead", verdict.payload if verdict is not None else None)

    def _put_off(self, unit: UnitOfWork, outcome: Waits, tracked: Tracked | None) -> Settled:
        """Move a job that runs another time, or elsewhere, to where it waits."""
        if isinstance(outcome, ForeignClass) and outcome.delay_s == 0:
            return self._hand_back(unit, outcome.count)
        if isinstance(outcome, UnknownClass) and outcome.gives_up:
            return self._give_up(unit, outcome, tracked)
        delay_s = outcome.delay_s
        state = _state(tracked, "queued", delay_s)
        return self._postpone(unit, keys.SCHEDULE, waiting(unit, outcome), delay_s, state, "scheduled")

    def _hand_back(self, unit: UnitOfWork, count: int) -> Settled:
        """Put a job of another application where it is the next to be fetched, with its count, in one step."""
        payload = decode(unit.data, None)
        payload[UNKNOWN_COUNT] = count
        data = rewrite(unit.data, payload)
        names = [self._working, keys.QUEUES, keys.queue(unit.queue)]
        moved: Any = self._heard(unit, REQUEUE, names, [1, unit.data, data, unit.queue, unit.goes_back()])
        if not moved and unit.data not in self._in_doubt:
            # Taken over, or its queue's key is no list any more: then it is still ours, and waits.
            return self._postpone(unit, keys.SCHEDULE, waiting(unit, ForeignClass(1.0, count)), 1.0, None, "scheduled")
        self._finish(unit)
        return Settled("acknowledged")

    def _give_up(self, unit: UnitOfWork, outcome: UnknownClass, tracked: Tracked | None) -> Settled:
        """Move a job whose class came nowhere into the ``interrupted`` set, with what it holds let go of, in one step."""
        data = waiting(unit, outcome)
        trimmed = self._move_to_set(unit, keys.INTERRUPTED, data, (*KEEP_INTERRUPTED, ""), tracked)
        self._finish(unit)
        if trimmed > 0:
            self._on_trimmed(trimmed, keys.INTERRUPTED)
        return Settled("fenced" if trimmed < 0 else "interrupted")

    def _move_to_set(
        self, unit: UnitOfWork, target: str, data: bytes, keep: tuple[Any, ...], tracked: Tracked | None
    ) -> int:
        """Move a job that has failed for good into ``target``, in one step; return how many older jobs left that set, -1 when fenced.

        ``keep`` is how many jobs the set keeps, for how many seconds, and how many that the business refused (empty: as many).
        """
        trimmed: Any = self._run(BURY, unit, target, [data, *keep], _state(tracked, "failed"), _ended(unit))
        return 0 if trimmed < 0 and self._moved_before(unit, target, data) else int(trimmed)

    def _drop(self, unit: UnitOfWork, name: str, tracked: Tracked | None) -> Settled:
        # Whoever took a job over counts it; after a lost reply nobody knows, and the count is right either way.
        dropped: Any = self._run(DROP, unit, keys.RETIRED, [name], _state(tracked, "discarded"), _ended(unit))
        gone = bool(dropped) or unit.data in self._in_doubt
        self._finish(unit)
        return Settled("dropped" if gone else "fenced")

    def _run(
        self, script: Script, unit: UnitOfWork, target: str, more: list[Any], state: "_State | None", holds: str
    ) -> Any:
        """Run one moving script, which lets go of ``holds``; remember when it is not known whether it ran."""
        names, arguments = [self._working, target], [unit.data, *more]
        if state is not None:
            names.append(keys.status(state.tracked.jid))
            arguments += [state.word, state.lifetime_s]
        elif holds:
            arguments += ["", 0]
        if holds:
            arguments.append(holds)
        try:
            return self._heard(unit, script, names, arguments)
        except NoPermissionError as error:  # before anything ran; of the keys only that of the state may be missed
            if state is None:
                raise
            self._states.missed(state.tracked, state.word, error)
            return self._run(script, unit, target, more, None, holds)

    def _heard(self, unit: UnitOfWork, script: Script, names: list[str], arguments: list[Any]) -> Any:
        """Run a script; remember when it is not known whether it ran."""
        try:
            return script(self._client, names, arguments)
        except (RedisConnectionError, RedisTimeoutError, OSError):
            self._in_doubt.add(unit.data)
            raise

    def _moved_before(self, unit: UnitOfWork, target: str, data: bytes) -> bool:
        """Tell whether a fenced move is our own, made by an earlier try whose reply was lost: our very bytes are there."""
        if unit.data not in self._in_doubt:
            return False
        score: Any = self._client.zscore(target, data)
        return score is not None

    def _finish(self, unit: UnitOfWork) -> None:
        self._in_doubt.discard(unit.data)
        self._fetcher.finish(unit, settled=True)


class _State(NamedTuple):
    """What a moving script writes besides."""

    tracked: Tracked
    word: JobState
    lifetime_s: int


def _state(tracked: Tracked | None, word: JobState, waits_s: float = 0.0) -> _State | None:
    if tracked is None:
        return None
    return _State(tracked, word, tracked.lifetime_s(waits_s))


def _exhausted(verdict: Verdict) -> bool:
    match verdict:
        case Bury():
            return True
        case Drop(exhausted=exhausted):
            return exhausted
        case Retry():
            return False


def _ended(unit: UnitOfWork) -> str:
    """Return what a script is told of a job that ends for good."""
    return unit.holds.ended() if unit.holds is not None else ""


def _once_more(lock: Lock, run: NextRun) -> list[Any]:
    state = run.state or ("", "", 0)
    return [lock.owner, run.data, run.jid, lock.worker, run.queue, lock.ttl_ms, *state]
