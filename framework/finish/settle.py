"""Move a job out of the working list by its outcome: one case per outcome, one atomic script per case."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, assert_never

import redis
from redis import exceptions

from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.answers import note_end, sign_answer
from framework.finish.endings import DELETED, KILLED, RETIRED, RETRIED, SUCCEEDED, ending_of
from framework.finish.outcome import (
    Cancelled,
    Deferred,
    Discarded,
    Expired,
    Failed,
    ForeignClass,
    Held,
    Malformed,
    Retired,
    RunOutcome,
    SettledOutcome,
    Snoozed,
    Succeeded,
    UnknownClass,
    Yielded,
)
from framework.finish.report import ProcessorEvents
from framework.finish.retry import MAX_MESSAGE, Delete, Kill, Retry, RetryDecision, RetryPolicy, job_for_hooks
from framework.finish.status_writer import StatusWrite, StatusWriter, status_write
from framework.process_clock import process_clock
from framework.recover.suspects import SUSPECT_FIELD, quarantine_counter
from framework.store.script import DROP_RETIRED, FETCH, FINISH, KILL, REQUEUE, SCHEDULE, YIELD_JOB, Script
from framework.text import error_class, error_message
from framework.timings import STANDARD, Timings
from framework.types import JobState, Payload
from framework.wire import keys
from framework.wire.job import (
    BUFFERED_AT,
    DEATH_COUNT,
    DEFERRED,
    DEFERRED_BY,
    DEFERRED_COUNT,
    EXPIRES_IN,
    EXPIRY,
    INTERRUPTED_COUNT,
    TRANSFER,
    UNKNOWN_COUNT,
    UNKNOWN_SINCE,
    clear_error,
    clear_unknown_class,
    decode,
    deferral_count,
    fix_expiry,
    rewrite,
    wire_timestamp,
)
from framework.wire.json import loads_object
from framework.wire.keys import INTERRUPTED_SET_LIMITS, SetLimits
from framework.wire.protected import UNSIGNED_STATE, StateSignatures
from framework.wire.resources import JobResources
from framework.wire.status_key import LastStatus, TrackedJob
from framework.wire.sub_queues import return_queue

# Reply of finish.lua: it has enqueued one more run, which a duplicate asked for.
_RUNS_AGAIN = 2

DelayedOutcome: TypeAlias = Snoozed | Deferred | ForeignClass | UnknownClass
"""The outcomes of jobs that run later, or in another process."""

MovedTo: TypeAlias = Literal[
    "acknowledged", "retry", "dead", "deleted", "scheduled", "queued", "held", "interrupted", "lost"
]
"""Where a settled job is. ``lost`` means that another process owns it."""

REMOVED: frozenset[MovedTo] = frozenset({"acknowledged", "deleted"})
"""The job is nowhere. ``acknowledged`` is also a job that was put back for another application: it has not been read."""


@dataclass(frozen=True, slots=True)
class SettleResult:
    """Say where a job is now, with the payload stored there and its delay."""

    moved_to: MovedTo
    payload: Payload | None = None
    delay_s: float | None = None
    acknowledge: bool = False
    """Whether the job is still in the working list, until the next call of ``fetch.lua`` acknowledges it."""


class Settler:
    """Move one job by its outcome. Raises redis errors; the job is then still in the working list."""

    def __init__(
        self,
        client: "redis.Redis",
        identity: str,
        events: ProcessorEvents,
        policy: RetryPolicy,
        dead_set: SetLimits,
        on_retry_soon: Callable[[], None],
        status_writer: StatusWriter,
        timings: Timings = STANDARD,
        signatures: StateSignatures = UNSIGNED_STATE,
    ) -> None:
        self._client = client
        self._signatures = signatures
        self._signs = signatures.signs
        self._lease = keys.lease(identity)
        self._working = keys.working(identity)
        self._events = events
        self._handlers = events.handlers
        self._policy = policy
        self._dead_set = dead_set
        self._on_retry_soon = on_retry_soon
        self._status_writer = status_writer
        self._lease_ms = timings.lease_ms
        # A retry that is due earlier may be due before the next poll: ``on_retry_soon`` is called.
        self._retry_soon_s = timings.longest_poll_period_s
        self._in_doubt: set[bytes] = set()

    def decide_retry(
        self, unit: UnitOfWork, worker: Any | None, outcome: RunOutcome, args: list[Any] | None = None
    ) -> RetryDecision | None:
        """Return the retry decision for a failed job, ``None`` for every other outcome. Moves nothing.

        ``args`` are the arguments for the hooks: decompressed.
        """
        if not isinstance(outcome, Failed):
            return None
        payload = payload_leaving_queue(unit)
        decide = partial(self._policy.decide, worker=worker, error=outcome.error, args=args)
        guarded = self._handlers.guard("retry_in", lambda: decide(dict(payload)))
        # A hook that raises loses only its own advice: decide again without it.
        decision: RetryDecision = guarded if guarded is not None else decide(payload, ask_class=False)
        if worker is not None and _exhausted(decision):
            advice = self._handlers.guard(
                "retries_exhausted",
                lambda: worker.retries_exhausted(job_for_hooks(decision.payload, args), outcome.error),
            )
            if advice == "discard":
                return Delete(self._policy.mark_discarded(decision.payload), args)
        return decision

    def settle(
        self,
        unit: UnitOfWork,
        outcome: SettledOutcome,
        decision: RetryDecision | None,
        tracked: TrackedJob | None = None,
        *,
        confirmed: bool = False,
    ) -> SettleResult:
        """Move the job out of the working list, and return where the job is; its capacity in this process is then free.

        ``confirmed``: wait until Redis has confirmed the acknowledgement (``ack = "sync"``).
        The script that moves a ``tracked`` job writes its state too. Only a job with a confirmed acknowledgement and no resources
        gets its last state earlier: if the process is killed in between, the job runs again and is ``running`` again.
        """
        if unit.resources is not None and unit.resources.awaited is not None:
            self._note_end(unit.resources, outcome, decision)
        match outcome:
            case Succeeded() | Discarded() | Expired() | Cancelled():
                if isinstance(outcome, Cancelled):
                    # Its mark goes in the same step.
                    unit.own_resources().cancelled = outcome.jid
                return self._acknowledge(unit, tracked, ending_of(outcome, None).state, confirmed=confirmed)
            case Failed(error):
                assert decision is not None, "a failure is settled after decide_retry"  # noqa: S101
                return self._fail(unit, error, decision, tracked)
            case Snoozed() | Deferred() | ForeignClass() | UnknownClass():
                return self._delay(unit, outcome, tracked)
            case Yielded():
                return self._yield(unit, outcome, tracked)
            # The policy's script has moved the job.
            case Held():
                return SettleResult("held")
            case Retired(name):
                return self._remove_retired(unit, name, tracked)
            case Malformed(error, stored):
                worker = loads_object(unit.data).get("class")
                unit.own_resources().counter = quarantine_counter(worker, "malformed")
                return self._kill(unit, stored, None, error, tracked)
            case _:
                assert_never(outcome)

    def call_hook(self, name: str, hook: Callable[[], object]) -> None:
        """Call a hook of a job that has left Redis: its error is reported, and changes nothing."""
        self._handlers.guard(name, hook)

    def _note_end(self, resources: JobResources, outcome: RunOutcome, decision: RetryDecision | None) -> None:
        note_end(resources, outcome, decision)
        if self._signs:
            sign_answer(resources, self._signatures)

    def _acknowledge(
        self, unit: UnitOfWork, tracked: TrackedJob | None, state: JobState | None, *, confirmed: bool
    ) -> SettleResult:
        """End a job that is kept nowhere: acknowledge it with other jobs, or else remove it by a call of its own."""
        if not confirmed and unit.acknowledged_with_others:
            self.acknowledge_with_others(unit, tracked, state)
            return SettleResult("acknowledged", acknowledge=True)
        if unit.resources is None and tracked is not None and state is not None:
            self._status_writer.write_last(tracked, state)
        return self._remove(unit, _last_status(tracked, state))

    def acknowledge_with_others(
        self, unit: UnitOfWork, tracked: TrackedJob | None, state: JobState | None = SUCCEEDED.state
    ) -> None:
        """Prepare a unit that is ``acknowledged_with_others``: ``fetch.lua`` releases its resources and writes its last state."""
        if unit.resources is not None or tracked is not None:
            if self._signs and unit.resources is not None:
                sign_answer(unit.resources, self._signatures)
            unit.release_on_ack(_last_status(tracked, state))

    def _remove(self, unit: UnitOfWork, status: LastStatus | None) -> SettleResult:
        """Remove the job from Redis: by its acknowledgement, or by a script that also releases its resources and writes its state.

        If a duplicate arrived during its run, the same script enqueues one more run.
        """
        if unit.resources is None:
            return self._acknowledge_confirmed(unit)
        removed = self._complete(unit, status, done=True)
        self._in_doubt.discard(unit.data)
        return SettleResult("acknowledged" if removed else "lost")

    def _complete(self, unit: UnitOfWork, status: LastStatus | None, *, done: bool = False) -> bool:
        """Remove a job with resources from Redis, and release these; return whether this process owned the job."""
        names, arguments = [self._working], [unit.data, _resources_on_end(unit, status)]
        resources = unit.resources
        next_run = resources.next_run() if done and resources is not None and resources.next_run is not None else None
        if next_run is not None and resources is not None and resources.lock is not None:
            names += [keys.QUEUES, keys.queue(next_run.queue), resources.lock.key]
            arguments += next_run.arguments(resources.lock)
        reply: Any = self._run_tracked(unit, FINISH, names, arguments)
        if reply == _RUNS_AGAIN and next_run is not None:
            next_run.on_written()
        # A job that is not found after a lost reply was removed by the earlier try of this process.
        return bool(reply) or unit.data in self._in_doubt

    def _acknowledge_confirmed(self, unit: UnitOfWork) -> SettleResult:
        """Acknowledge the job and wait for the reply, before its capacity is free.

        So no job that starts instead of it can kill the process before the acknowledgement has arrived.
        """
        # The fetch script without queues only acknowledges.
        reply: Any = self._run_tracked(unit, FETCH, [self._lease, self._working], [self._lease_ms, 0, 1, unit.data])
        _, fenced, _ = reply
        removed = not fenced or unit.data in self._in_doubt
        self._in_doubt.discard(unit.data)
        return SettleResult("acknowledged" if removed else "lost")

    def _fail(
        self, unit: UnitOfWork, error: BaseException, decision: RetryDecision, tracked: TrackedJob | None
    ) -> SettleResult:
        match decision:
            case Delete(payload, args):
                has_resources = unit.resources is not None
                if tracked is not None and not has_resources:
                    self._status_writer.write_last(tracked, DELETED.state)
                # Before the handlers: this script may be tried again, and the handlers must be called once.
                if removed := not has_resources or self._complete(unit, _last_status(tracked, DELETED.state)):
                    self._handlers.call_death_handlers(job_for_hooks(payload, args), error)
                self._in_doubt.discard(unit.data)
                return SettleResult("deleted" if removed else "lost", payload, acknowledge=not has_resources)
            case Retry(payload, delay_s):
                data, status = rewrite(unit.data, payload), status_write(tracked, RETRIED.state, delay_s)
                settled = self._schedule(unit, keys.RETRY, data, delay_s, status, "retry", payload)
                if delay_s < self._retry_soon_s:
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
        status: StatusWrite | None,
        moved_to: MovedTo,
        payload: Payload | None = None,
    ) -> SettleResult:
        resources = unit.resources.on_delay(delay_s) if unit.resources is not None else ""
        moved: Any = self._run_move(SCHEDULE, unit, target, [data, f"{delay_s:.6f}"], status, resources)
        if not moved and self._already_moved(unit, target, data):
            moved = 1
        self._in_doubt.discard(unit.data)
        return SettleResult(moved_to if moved else "lost", payload, delay_s)

    def _kill(
        self, unit: UnitOfWork, data: bytes, decision: Kill | None, error: BaseException, tracked: TrackedJob | None
    ) -> SettleResult:
        business = decision is not None and decision.business
        trimmed = self._move_to_set(unit, keys.DEAD, data, self._dead_set, tracked, business=business)
        # Before the capacity is free: a slow handler must not delay a job that starts instead of this one.
        if trimmed >= 0 and decision is not None:
            self._handlers.call_death_handlers(job_for_hooks(decision.payload, decision.args), error)
        self._in_doubt.discard(unit.data)
        if trimmed > 0:
            self._events.trimmed(trimmed, keys.DEAD)
        return SettleResult("lost" if trimmed < 0 else "dead", decision.payload if decision is not None else None)

    def _delay(self, unit: UnitOfWork, outcome: DelayedOutcome, tracked: TrackedJob | None) -> SettleResult:
        """Move a job that runs later, or in another process, to where it waits."""
        if isinstance(outcome, ForeignClass) and outcome.delay_s == 0:
            return self._return_foreign(unit, outcome.count)
        if isinstance(outcome, UnknownClass) and outcome.gives_up:
            return self._give_up_unknown(unit, outcome, tracked)
        delay_s = outcome.delay_s
        status = status_write(tracked, ending_of(outcome, None).state, delay_s)
        return self._schedule(unit, keys.SCHEDULE, delayed_payload(unit, outcome), delay_s, status, "scheduled")

    def _yield(self, unit: UnitOfWork, outcome: Yielded, tracked: TrackedJob | None) -> SettleResult:
        """Put an iterating job back into its queue; behind the others if its turn is over."""
        place = "last" if outcome.reason == "max_runtime" else "next"
        if unit.resources is not None and unit.resources.lock is not None:
            # As its payload: it has begun in time.
            unit.resources.lock = unit.resources.lock._replace(expiry=0.0)
        names = [self._working, keys.queue(queue := return_queue(unit.queue, unit.data)), keys.QUEUES]
        arguments = [unit.data, yielded_payload(unit, outcome), queue, place, unit.resources_on_requeue(ran=tracked)]
        moved = bool(self._run_tracked(unit, YIELD_JOB, names, arguments)) or unit.data in self._in_doubt
        self._in_doubt.discard(unit.data)
        return SettleResult("queued" if moved else "lost")

    def _return_foreign(self, unit: UnitOfWork, count: int) -> SettleResult:
        """Return a job of another application to the head of its queue, with its count, in one step."""
        payload = decode(unit.data, None)
        payload[UNKNOWN_COUNT] = count
        data = rewrite(unit.data, payload)
        names = [self._working, keys.QUEUES, keys.queue(unit.queue)]
        returned: list[int] = self._run_tracked(
            unit, REQUEUE, names, [1, unit.data, data, unit.queue, unit.resources_on_requeue()]
        )
        if not returned[0] and unit.data not in self._in_doubt:
            # Another process owns the job, or the key of its queue is no list. Then the job moves to the schedule set.
            return self._schedule(
                unit, keys.SCHEDULE, delayed_payload(unit, ForeignClass(1.0, count)), 1.0, None, "scheduled"
            )
        self._in_doubt.discard(unit.data)
        return SettleResult("acknowledged")

    def _give_up_unknown(self, unit: UnitOfWork, outcome: UnknownClass, tracked: TrackedJob | None) -> SettleResult:
        """Move a job whose class no process has to the ``interrupted`` set, and release its resources, in one step."""
        data = delayed_payload(unit, outcome)
        unit.own_resources().counter = quarantine_counter(decode(unit.data, None).get("class"), "unknown_class")
        trimmed = self._move_to_set(unit, keys.INTERRUPTED, data, INTERRUPTED_SET_LIMITS, tracked)
        self._in_doubt.discard(unit.data)
        if trimmed > 0:
            self._events.trimmed(trimmed, keys.INTERRUPTED)
        return SettleResult("lost" if trimmed < 0 else "interrupted")

    def _move_to_set(
        self,
        unit: UnitOfWork,
        target: str,
        data: bytes,
        limits: SetLimits,
        tracked: TrackedJob | None,
        *,
        business: bool = False,
    ) -> int:
        """Move a job that has failed and is not retried to ``target``, in one step.

        Return how many older jobs were trimmed from that set, -1 if another process owns the job.
        """
        arguments = [data, *limits.arguments, limits.max_business_jobs if business else ""]
        status = status_write(tracked, KILLED.state)
        resources = unit.resources.on_dead() if unit.resources is not None else ""
        trimmed: Any = self._run_move(KILL, unit, target, arguments, status, resources)
        return 0 if trimmed < 0 and self._already_moved(unit, target, data) else int(trimmed)

    def _remove_retired(self, unit: UnitOfWork, name: str, tracked: TrackedJob | None) -> SettleResult:
        # The script counts only a job that it removed. So the count is right even if a reply is lost and it runs twice.
        dropped: Any = self._run_move(
            DROP_RETIRED, unit, keys.RETIRED, [name], status_write(tracked, RETIRED.state), _resources_on_end(unit)
        )
        removed = bool(dropped) or unit.data in self._in_doubt
        self._in_doubt.discard(unit.data)
        return SettleResult("deleted" if removed else "lost")

    def _run_move(
        self,
        script: Script,
        unit: UnitOfWork,
        target: str,
        more: list[Any],
        status: StatusWrite | None,
        resources: str,
    ) -> Any:
        """Run one script that moves the job and releases ``resources``; remember the job if the reply is lost."""
        names, arguments = [self._working, target], [unit.data, *more]
        if status is not None:
            names.append(keys.status(status.tracked.jid))
            arguments += [status.state, status.lifetime_s]
        elif resources:
            arguments += ["", 0]
        if resources:
            arguments.append(resources)
        try:
            return self._run_tracked(unit, script, names, arguments)
        except exceptions.NoPermissionError as error:
            # Redis refuses a script before it runs. The right to the status key may be missing: move the job without its state.
            if status is None:
                raise
            self._status_writer.on_write_failed(status.tracked, status.state, error)
            return self._run_move(script, unit, target, more, None, resources)

    def _run_tracked(self, unit: UnitOfWork, script: Script, names: list[str], arguments: list[Any]) -> Any:
        """Run a script; remember the job if the reply is lost: the script may have run."""
        try:
            return script(self._client, names, arguments)
        except (exceptions.ConnectionError, exceptions.TimeoutError, OSError):
            self._in_doubt.add(unit.data)
            raise

    def _already_moved(self, unit: UnitOfWork, target: str, data: bytes) -> bool:
        """Return whether an earlier try of this process, with a lost reply, moved the job: ``target`` holds the same bytes."""
        if unit.data not in self._in_doubt:
            return False
        score: Any = self._client.zscore(target, data)
        return score is not None


def _exhausted(decision: RetryDecision) -> bool:
    match decision:
        case Kill():
            return True
        case Delete(exhausted=exhausted):
            return exhausted
        case Retry():
            return False


def _last_status(tracked: TrackedJob | None, state: JobState | None) -> LastStatus | None:
    """Return the status that the end of a job writes; ``None`` for an untracked job, or no state."""
    return None if tracked is None or state is None else tracked.last_status(state)


def _resources_on_end(unit: UnitOfWork, status: LastStatus | None = None) -> str:
    """Return the script argument that releases the resources of a job that does not run again; empty for none."""
    return unit.resources.end_argument(status) if unit.resources is not None else ""


def delayed_payload(unit: UnitOfWork, outcome: DelayedOutcome) -> bytes:
    """Return the payload for the schedule set, with the fields that say why the job waits."""
    payload = payload_leaving_queue(unit)
    # Sidekiq's form of a job outside of queues.
    payload.pop("enqueued_at", None)
    match outcome:
        case Snoozed():
            pass
        # GitLab's fields.
        case Deferred(reason=reason):
            payload.update({DEFERRED: True, DEFERRED_COUNT: deferral_count(payload, reason) + 1, DEFERRED_BY: reason})
        case ForeignClass(count=count):
            payload[UNKNOWN_COUNT] = count
        case UnknownClass(error, count=count, since=since):
            # An old backtrace would belong to another error.
            clear_error(payload)
            payload.update({"error_class": error_class(error), "error_message": error_message(error, MAX_MESSAGE)})
            payload.update({UNKNOWN_COUNT: count, UNKNOWN_SINCE: wire_timestamp(since)})
    return rewrite(unit.data, payload)


def payload_leaving_queue(unit: UnitOfWork) -> Payload:
    """Return the payload with its queue, without the fields that say how it came there or why it waited."""
    payload = decode(unit.data, None)
    clear_unknown_class(payload)
    # Before the time of its enqueue is gone.
    fix_expiry(payload)
    # Some producers omit it, and a retry from the set needs it.
    payload["queue"] = unit.queue
    # A Ruby poller may have enqueued the job during a transfer between shards.
    payload.pop(TRANSFER, None)
    # The job has had its slot.
    payload.pop(BUFFERED_AT, None)
    payload.update(unit.extra_fields or {})
    return payload


def yielded_payload(unit: UnitOfWork, outcome: Yielded) -> bytes:
    """Return the payload of an iterating job that goes back to its queue.

    The job has begun in time, so it no longer expires. Finished items show that it does not kill its process: earlier stops and
    deaths are no longer counted.
    """
    payload = payload_leaving_queue(unit)
    for name in (EXPIRES_IN, EXPIRY):
        payload.pop(name, None)
    if outcome.made_progress:
        for name in (INTERRUPTED_COUNT, DEATH_COUNT, SUSPECT_FIELD):
            payload.pop(name, None)
    payload["enqueued_at"] = wire_timestamp(process_clock.now())
    return rewrite(unit.data, payload)
