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
from framework.fetch.interruptions import INTERRUPTED_SET_LIMITS
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.delayed_payload import DelayedOutcome, delayed_payload, payload_leaving_queue
from framework.finish.handlers import Handlers
from framework.finish.outcome import (
    AwaitsTurn,
    Deferred,
    Discarded,
    Failed,
    ForeignClass,
    Held,
    Interrupted,
    Malformed,
    Outcome,
    Retired,
    Snoozed,
    Succeeded,
    UnknownClass,
)
from framework.finish.retry import Delete, Kill, Retry, RetryDecision, RetryPolicy, job_for_hooks
from framework.finish.status_writer import StatusWriter
from framework.store.script import DROP_RETIRED, FETCH, FINISH, KILL, REQUEUE, SCHEDULE, Script
from framework.types import JobState, Payload
from framework.wire import keys
from framework.wire.job import UNKNOWN_COUNT, decode
from framework.wire.payload_edit import rewrite
from framework.wire.resources import Lock, NextRun
from framework.wire.status_key import TrackedJob

_RUNS_AGAIN = 2  # what finish.lua says
RETRY_SOON_S = 10.0
"""A retry that is due within this may be due before anybody looks: ``on_retry_soon`` is called."""


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
class SettleResult:
    """What became of a job, for its log line: ``fate`` is acknowledged, retry, dead, dropped, scheduled, or fenced."""

    moved_to: str
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
        on_retry_soon: Callable[[], None],
        status_writer: StatusWriter,
    ) -> None:
        self._client = client
        self._lease = keys.lease(identity)
        self._working = keys.working(identity)
        self._fetcher = fetcher
        self._handlers = handlers
        self._policy = policy
        self._dead_set = dead_set
        self._on_trimmed = on_trimmed
        self._on_retry_soon = on_retry_soon
        self._status_writer = status_writer
        self._in_doubt: set[bytes] = set()

    def decide_retry(
        self, unit: UnitOfWork, worker: Any | None, outcome: Outcome, args: list[Any] | None = None
    ) -> RetryDecision | None:
        """Return what becomes of a failed job, ``None`` for every other outcome. Moves nothing.

        ``args`` are its arguments as the hooks shall see them: decompressed.
        """
        if not isinstance(outcome, Failed):
            return None
        payload = payload_leaving_queue(unit)
        decide = partial(self._policy.decide, worker=worker, error=outcome.error, args=args)
        guarded = self._handlers.guard("retry_in", lambda: decide(dict(payload)))
        # A hook that raises costs its own advice only: decide again without asking it.
        verdict: RetryDecision = guarded if guarded is not None else decide(payload, ask_class=False)
        if worker is not None and _exhausted(verdict):
            advice = self._handlers.guard(
                "retries_exhausted",
                lambda: worker.retries_exhausted(job_for_hooks(verdict.payload, args), outcome.error),
            )
            if advice == "discard":
                return Delete(self._policy.mark_discarded(verdict.payload), args)
        return verdict

    def settle(
        self,
        unit: UnitOfWork,
        outcome: Outcome,
        decision: RetryDecision | None,
        tracked: TrackedJob | None = None,
        *,
        confirmed: bool = False,
    ) -> SettleResult:
        """Move the job to its next place and free its slot; return where it went. ``confirmed``: only when Redis has heard its end.

        The state of a ``tracked`` one moves with it, in the same script. One that leaves Redis by its acknowledgement gets its
        last state before: a kill in between runs it again, and then it is running again.
        """
        match outcome:
            case Succeeded() | Discarded():
                if tracked is not None:
                    self._status_writer.write_last(
                        tracked, "discarded" if isinstance(outcome, Discarded) else "completed"
                    )
                return self._remove(unit, confirmed=confirmed, done=True)
            case Failed(error):
                assert decision is not None, "a failure is judged before it is settled"  # noqa: S101
                return self._fail(unit, error, decision, tracked)
            case Snoozed() | Deferred() | ForeignClass() | UnknownClass():
                return self._delay(unit, outcome, tracked)
            case Held():
                self._finish_unit(unit)
                return SettleResult("parked")
            case Retired(name):
                return self._remove_retired(unit, name, tracked)
            case Malformed(error, stored):
                return self._kill(unit, stored, None, error, tracked)
            case Interrupted() | AwaitsTurn():
                return SettleResult("interrupted")  # still in custody; shutdown gives it back
            case _:
                assert_never(outcome)

    def _remove(self, unit: UnitOfWork, *, confirmed: bool = False, done: bool = False) -> SettleResult:
        """The job leaves Redis: by its acknowledgement, or, if it holds anything, by a script that lets go in the same step.

        One that is ``done`` runs once more, where its class wants that, when a duplicate came while it ran: in the same step, too.
        """
        if unit.resources is not None:
            gone = self._complete(unit, done=done)
            self._finish_unit(unit)
            return SettleResult("acknowledged" if gone else "fenced")
        if confirmed:
            return self._acknowledge_confirmed(unit)
        self._fetcher.finish(unit)
        return SettleResult("acknowledged")

    def _complete(self, unit: UnitOfWork, *, done: bool = False) -> bool:
        """Take what holds anything out of Redis; whether it was ours to take."""
        names, arguments = [self._working], [unit.data, _resources_on_end(unit)]
        holds = unit.resources
        next_run = holds.next_run() if done and holds is not None and holds.next_run is not None else None
        if next_run is not None and holds is not None and holds.lock is not None:
            names += [keys.QUEUES, keys.queue(next_run.queue), holds.lock.key]
            arguments += _next_run_arguments(holds.lock, next_run)
        gone: Any = self._run_tracked(unit, FINISH, names, arguments)
        if gone == _RUNS_AGAIN and next_run is not None:
            next_run.on_written()
        return bool(gone) or unit.data in self._in_doubt

    def _acknowledge_confirmed(self, unit: UnitOfWork) -> SettleResult:
        """Take the job out of Redis, and free its slot when that is certain: nothing runs there meanwhile that could end us."""
        reply: Any = self._run_tracked(unit, FETCH, [self._lease, self._working], [LEASE_MS, 0, 1, unit.data])
        _, fenced, _ = reply
        gone = not fenced or unit.data in self._in_doubt
        self._finish_unit(unit)
        return SettleResult("acknowledged" if gone else "fenced")

    def _fail(
        self, unit: UnitOfWork, error: BaseException, decision: RetryDecision, tracked: TrackedJob | None
    ) -> SettleResult:
        match decision:
            case Delete(payload, args):
                if tracked is not None:
                    self._status_writer.write_last(tracked, "failed")
                held = unit.resources is not None
                # Before the handlers: it may be tried again, and they are told once.
                gone = self._complete(unit) if held else True
                if gone:
                    self._handlers.call_death_handlers(job_for_hooks(payload, args), error)
                self._in_doubt.discard(unit.data)
                self._fetcher.finish(unit, settled=held)
                return SettleResult("dropped" if gone else "fenced", payload)
            case Retry(payload, delay_s):
                data, state = rewrite(unit.data, payload), _status_write(tracked, "retrying", delay_s)
                settled = self._schedule(unit, keys.RETRY, data, delay_s, state, "retry", payload)
                if delay_s < RETRY_SOON_S:
                    self._on_retry_soon()
                return settled
            case Kill(payload):
                return self._kill(unit, rewrite(unit.data, payload), decision, error, tracked)
            case _:
                assert_never(decision)

    def _schedule(
        self,
        unit: UnitOfWork,
        target: str,
        data: bytes,
        delay_s: float,
        status: "_StatusWrite | None",
        moved_to: str,
        payload: Payload | None = None,
    ) -> SettleResult:
        holds = unit.resources.on_delay(delay_s) if unit.resources is not None else ""
        moved: Any = self._run_move(SCHEDULE, unit, target, [data, f"{delay_s:.6f}"], status, holds)
        if not moved and self._already_moved(unit, target, data):
            moved = 1
        self._finish_unit(unit)
        return SettleResult(moved_to if moved else "fenced", payload, delay_s)

    def _kill(
        self, unit: UnitOfWork, data: bytes, decision: Kill | None, error: BaseException, tracked: TrackedJob | None
    ) -> SettleResult:
        limits = self._dead_set
        most_business = limits.business_max_jobs if decision is not None and decision.business else ""
        keep = (limits.max_jobs, limits.timeout_s, most_business)
        trimmed = self._move_to_set(unit, keys.DEAD, data, keep, tracked)
        # Before the slot is free: a handler that takes its time takes this slot, not one that a job is dispatched to.
        if trimmed >= 0 and decision is not None:
            self._handlers.call_death_handlers(job_for_hooks(decision.payload, decision.args), error)
        self._finish_unit(unit)
        if trimmed > 0:
            self._on_trimmed(trimmed, keys.DEAD)
        return SettleResult("fenced" if trimmed < 0 else "dead", decision.payload if decision is not None else None)

    def _delay(self, unit: UnitOfWork, outcome: DelayedOutcome, tracked: TrackedJob | None) -> SettleResult:
        """Move a job that runs another time, or elsewhere, to where it waits."""
        if isinstance(outcome, ForeignClass) and outcome.delay_s == 0:
            return self._return_foreign(unit, outcome.count)
        if isinstance(outcome, UnknownClass) and outcome.gives_up:
            return self._give_up_unknown(unit, outcome, tracked)
        delay_s = outcome.delay_s
        state = _status_write(tracked, "queued", delay_s)
        return self._schedule(unit, keys.SCHEDULE, delayed_payload(unit, outcome), delay_s, state, "scheduled")

    def _return_foreign(self, unit: UnitOfWork, count: int) -> SettleResult:
        """Put a job of another application where it is the next to be fetched, with its count, in one step."""
        payload = decode(unit.data, None)
        payload[UNKNOWN_COUNT] = count
        data = rewrite(unit.data, payload)
        names = [self._working, keys.QUEUES, keys.queue(unit.queue)]
        moved: Any = self._run_tracked(
            unit, REQUEUE, names, [1, unit.data, data, unit.queue, unit.resources_on_requeue()]
        )
        if not moved and unit.data not in self._in_doubt:
            # Taken over, or its queue's key is no list any more: then it is still ours, and waits.
            return self._schedule(
                unit, keys.SCHEDULE, delayed_payload(unit, ForeignClass(1.0, count)), 1.0, None, "scheduled"
            )
        self._finish_unit(unit)
        return SettleResult("acknowledged")

    def _give_up_unknown(self, unit: UnitOfWork, outcome: UnknownClass, tracked: TrackedJob | None) -> SettleResult:
        """Move a job whose class came nowhere into the ``interrupted`` set, with what it holds let go of, in one step."""
        data = delayed_payload(unit, outcome)
        trimmed = self._move_to_set(unit, keys.INTERRUPTED, data, (*INTERRUPTED_SET_LIMITS, ""), tracked)
        self._finish_unit(unit)
        if trimmed > 0:
            self._on_trimmed(trimmed, keys.INTERRUPTED)
        return SettleResult("fenced" if trimmed < 0 else "interrupted")

    def _move_to_set(
        self, unit: UnitOfWork, target: str, data: bytes, limits: tuple[Any, ...], tracked: TrackedJob | None
    ) -> int:
        """Move a job that has failed for good into ``target``, in one step; return how many older jobs left that set, -1 when fenced.

        ``keep`` is how many jobs the set keeps, for how many seconds, and how many that the business refused (empty: as many).
        """
        trimmed: Any = self._run_move(
            KILL, unit, target, [data, *limits], _status_write(tracked, "failed"), _resources_on_end(unit)
        )
        return 0 if trimmed < 0 and self._already_moved(unit, target, data) else int(trimmed)

    def _remove_retired(self, unit: UnitOfWork, name: str, tracked: TrackedJob | None) -> SettleResult:
        # Whoever took a job over counts it; after a lost reply nobody knows, and the count is right either way.
        dropped: Any = self._run_move(
            DROP_RETIRED, unit, keys.RETIRED, [name], _status_write(tracked, "discarded"), _resources_on_end(unit)
        )
        gone = bool(dropped) or unit.data in self._in_doubt
        self._finish_unit(unit)
        return SettleResult("dropped" if gone else "fenced")

    def _run_move(
        self,
        script: Script,
        unit: UnitOfWork,
        target: str,
        more: list[Any],
        status: "_StatusWrite | None",
        resources: str,
    ) -> Any:
        """Run one moving script, which lets go of ``holds``; remember when it is not known whether it ran."""
        names, arguments = [self._working, target], [unit.data, *more]
        if status is not None:
            names.append(keys.status(status.tracked.jid))
            arguments += [status.word, status.lifetime_s]
        elif resources:
            arguments += ["", 0]
        if resources:
            arguments.append(resources)
        try:
            return self._run_tracked(unit, script, names, arguments)
        except NoPermissionError as error:  # before anything ran; of the keys only that of the state may be missed
            if status is None:
                raise
            self._status_writer.on_write_failed(status.tracked, status.word, error)
            return self._run_move(script, unit, target, more, None, resources)

    def _run_tracked(self, unit: UnitOfWork, script: Script, names: list[str], arguments: list[Any]) -> Any:
        """Run a script; remember when it is not known whether it ran."""
        try:
            return script(self._client, names, arguments)
        except (RedisConnectionError, RedisTimeoutError, OSError):
            self._in_doubt.add(unit.data)
            raise

    def _already_moved(self, unit: UnitOfWork, target: str, data: bytes) -> bool:
        """Tell whether a fenced move is our own, made by an earlier try whose reply was lost: our very bytes are there."""
        if unit.data not in self._in_doubt:
            return False
        score: Any = self._client.zscore(target, data)
        return score is not None

    def _finish_unit(self, unit: UnitOfWork) -> None:
        self._in_doubt.discard(unit.data)
        self._fetcher.finish(unit, settled=True)


class _StatusWrite(NamedTuple):
    """What a moving script writes besides."""

    tracked: TrackedJob
    word: JobState
    lifetime_s: int


def _status_write(tracked: TrackedJob | None, word: JobState, waits_s: float = 0.0) -> _StatusWrite | None:
    if tracked is None:
        return None
    return _StatusWrite(tracked, word, tracked.lifetime_s(waits_s))


def _exhausted(decision: RetryDecision) -> bool:
    match decision:
        case Kill():
            return True
        case Delete(exhausted=exhausted):
            return exhausted
        case Retry():
            return False


def _resources_on_end(unit: UnitOfWork) -> str:
    """Return what a script is told of a job that ends for good."""
    return unit.resources.on_end() if unit.resources is not None else ""


def _next_run_arguments(lock: Lock, run: NextRun) -> list[Any]:
    state = run.state or ("", "", 0)
    return [lock.owner, run.data, run.jid, lock.worker, run.queue, lock.ttl_ms, *state]
