"""Move a job out of the working list by its outcome: one case per outcome, one atomic script per case."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, assert_never

import redis
from redis import exceptions

from framework.errors import PayloadError, StoredBlocksError
from framework.fetch.blocks import dead_block, return_jobs
from framework.fetch.unit_of_work import Move, UnitOfWork
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
from framework.finish.retry import (
    MAX_DELAY_S,
    MAX_MESSAGE,
    Delete,
    Kill,
    Retry,
    RetryDecision,
    RetryPolicy,
    job_for_hooks,
)
from framework.finish.status_writer import StatusWrite, StatusWriter, status_write
from framework.process_clock import process_clock
from framework.recover.suspects import SUSPECT_FIELD, quarantine_counter
from framework.store.script import (
    DROP_RETIRED,
    FETCH,
    FINISH,
    FINISH_UNLESS_DUPLICATED,
    KILL,
    REQUEUE,
    SCHEDULE,
    YIELD_JOB,
    Script,
)
from framework.telemetry.job_events import JobDied, job_events
from framework.text import decode_escaped, error_class, error_message
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
    Job,
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
    """Whether the job is still in the working list, until the next call of ``fetch.lua`` acknowledges or moves it."""


class MoveToSet(Move):
    """The move of an ended job to a sorted set: it waits there to run again, or is dead."""

    def __init__(
        self, settler: "Settler", target: str, script: Script, shared: tuple[int | float, ...], *arguments: Any
    ) -> None:
        super().__init__(script, (settler.working, target), shared, arguments)
        self._settler = settler
        self.target = target
        self.due_soon = False
        """Whether the job may be due before the next look at the set."""
        self.died: Job | None = None

    def moved(self) -> None:
        self._settler.on_moved(self)

    def noted(self, number: int) -> None:
        if number:
            self._settler.on_trimmed(number, self.target)


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
        self.working = keys.working(identity)
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
        with_others: bool = False,
    ) -> SettleResult:
        """Move the job out of the working list, and return where the job is; its capacity in this process is then free.

        ``confirmed``: wait until Redis has confirmed the acknowledgement (``ack = "sync"``). ``with_others``: a job that waits for
        another run, is dead, or may run once more, may be moved by the next call of the fetcher, with those that end meanwhile
        (``UnitOfWork.move``).
        The script that moves a ``tracked`` job writes its state too. Only a job with a confirmed acknowledgement and no resources
        gets its last state earlier: if the process is killed in between, the job runs again and is ``running`` again.
        """
        if unit.resources is not None and unit.resources.awaited is not None:
            self._note_end(unit.resources, outcome, decision)
        # What a lost reply has perhaps done is asked alone.
        with_others = with_others and not confirmed and unit.data not in self._in_doubt
        match outcome:
            case Succeeded() | Discarded() | Expired() | Cancelled():
                if isinstance(outcome, Cancelled):
                    # Its mark goes in the same step.
                    unit.own_resources().cancelled = outcome.jid
                state = ending_of(outcome, None).state
                return self._acknowledge(unit, tracked, state, confirmed=confirmed, with_others=with_others)
            case Failed(error):
                assert decision is not None, "a failure is settled after decide_retry"  # noqa: S101
                return self._fail(unit, error, decision, tracked, with_others=with_others)
            case Snoozed() | Deferred() | ForeignClass() | UnknownClass():
                return self._delay(unit, outcome, tracked, with_others=with_others)
            case Yielded():
                return self._yield(unit, outcome, tracked)
            # The policy's script has moved the job.
            case Held():
                return SettleResult("held")
            case Retired(name):
                return self._remove_retired(unit, name, tracked)
            case Malformed(error, stored):
                return self._kill_malformed(unit, stored, error, tracked, with_others=with_others)
            case _:
                assert_never(outcome)

    def _kill_malformed(
        self,
        unit: UnitOfWork,
        stored: bytes,
        error: PayloadError,
        tracked: TrackedJob | None,
        *,
        with_others: bool = False,
    ) -> SettleResult:
        worker = loads_object(unit.data).get("class")
        unit.own_resources().counter = quarantine_counter(worker, "malformed")
        return self._kill(unit, stored, None, error, tracked, with_others=with_others)

    def call_hook(self, name: str, hook: Callable[[], object]) -> None:
        """Call a hook of a job that has left Redis: its error is reported, and changes nothing."""
        self._handlers.guard(name, hook)

    def _note_end(self, resources: JobResources, outcome: RunOutcome, decision: RetryDecision | None) -> None:
        note_end(resources, outcome, decision)
        if self._signs:
            sign_answer(resources, self._signatures)

    def _acknowledge(
        self,
        unit: UnitOfWork,
        tracked: TrackedJob | None,
        state: JobState | None,
        *,
        confirmed: bool,
        with_others: bool,
    ) -> SettleResult:
        """End a job that is kept nowhere: acknowledge it with other jobs, or else remove it by a call of its own."""
        if not confirmed and unit.acknowledged_with_others:
            self.acknowledge_with_others(unit, tracked, state)
            return SettleResult("acknowledged", acknowledge=True)
        if with_others and (lock := unit.lock_with_rerun) is not None:
            held = _resources_on_end(unit, _last_status(tracked, state))
            names, arguments = (self.working,), (held, lock.key, lock.owner)
            unit.move = Move(FINISH_UNLESS_DUPLICATED, names, (), arguments)
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
        names, arguments = [self.working], [unit.data, _resources_on_end(unit, status)]
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
        reply: Any = self._run_tracked(unit, FETCH, [self._lease, self.working], [self._lease_ms, 0, 1, unit.data])
        _, fenced, _ = reply
        removed = not fenced or unit.data in self._in_doubt
        self._in_doubt.discard(unit.data)
        return SettleResult("acknowledged" if removed else "lost")

    def _fail(
        self,
        unit: UnitOfWork,
        error: BaseException,
        decision: RetryDecision,
        tracked: TrackedJob | None,
        *,
        with_others: bool,
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
                move = self._delayed(unit, keys.RETRY, rewrite(unit.data, payload), delay_s, tracked, RETRIED.state)
                return self._move(unit, move, "retry", payload, delay_s, with_others=with_others)
            case Kill(payload):
                return self._kill(unit, rewrite(unit.data, payload), decision, error, tracked, with_others=with_others)
            case _:
                assert_never(decision)

    def _delayed(
        self,
        unit: UnitOfWork,
        target: str,
        data: bytes,
        delay_s: float,
        tracked: TrackedJob | None,
        state: JobState | None,
    ) -> MoveToSet:
        """Return the move of a job that runs again in ``delay_s``."""
        status = None if tracked is None or state is None else tracked.command(state, delay_s=delay_s)
        held = "" if unit.resources is None and status is None else _resources(unit).on_delay(delay_s, status)
        move = MoveToSet(self, target, SCHEDULE, (), data, f"{min(delay_s, MAX_DELAY_S):.6f}", held)
        move.due_soon = target == keys.RETRY and delay_s < self._retry_soon_s
        return move

    def _move(
        self,
        unit: UnitOfWork,
        move: MoveToSet,
        moved_to: MovedTo,
        payload: Payload | None = None,
        delay_s: float | None = None,
        *,
        with_others: bool = False,
    ) -> SettleResult:
        """Move a job now, or let the next call of the fetcher move it."""
        if with_others:
            unit.move = move
            return SettleResult(moved_to, payload, delay_s, acknowledge=True)
        names, arguments = list(move.names), [*move.shared, unit.data, *move.arguments]
        words: list[Any] = self._run_tracked(unit, move.script, names, arguments)
        is_gone = False
        for position, word in zip(words[::2], words[1::2], strict=True):
            if not position:
                move.noted(word)
            elif position < 0:
                self._events.release_failed(decode_escaped(word))
            else:
                is_gone = not self._already_moved(unit, move)
        if not is_gone:
            move.moved()
        self._in_doubt.discard(unit.data)
        return SettleResult("lost" if is_gone else moved_to, payload, delay_s)

    def on_moved(self, move: MoveToSet) -> None:
        """Note that Redis has moved a job. Called between two calls of the fetcher, so it waits for nothing."""
        if move.died is not None:
            job_events.emit(JobDied(move.died.worker, queue=str(move.died.get("queue") or "")))
        if move.due_soon:
            self._on_retry_soon()

    def on_trimmed(self, count: int, source: str) -> None:
        """Note that older jobs were removed from a full set."""
        self._events.trimmed(count, source)

    def _kill(
        self,
        unit: UnitOfWork,
        data: bytes,
        decision: Kill | None,
        error: BaseException,
        tracked: TrackedJob | None,
        *,
        with_others: bool,
    ) -> SettleResult:
        move = self._dead(unit, keys.DEAD, data, self._dead_set, tracked)
        if decision is None:
            return self._move(unit, move, "dead", with_others=with_others)
        if decision.business:
            move.arguments = (data, "1", *move.arguments[2:])
        job = job_for_hooks(decision.payload, decision.args)
        # A handler is called once the job is dead, and before the capacity is free: a slow handler must not delay a job that starts
        # instead of this one.
        if with_others and not self._handlers.has_death_handlers:
            move.died = job
            return self._move(unit, move, "dead", decision.payload, with_others=True)
        settled = self._move(unit, move, "dead", decision.payload)
        if settled.moved_to != "lost":
            self._handlers.call_death_handlers(job, error)
        return settled

    def _delay(
        self, unit: UnitOfWork, outcome: DelayedOutcome, tracked: TrackedJob | None, *, with_others: bool
    ) -> SettleResult:
        """Move a job that runs later, or in another process, to where it waits."""
        if isinstance(outcome, ForeignClass) and outcome.delay_s == 0:
            return self._return_foreign(unit, outcome.count)
        if isinstance(outcome, UnknownClass) and outcome.gives_up:
            return self._give_up_unknown(unit, outcome, tracked)
        delay_s, state = outcome.delay_s, ending_of(outcome, None).state
        move = self._delayed(unit, keys.SCHEDULE, delayed_payload(unit, outcome), delay_s, tracked, state)
        return self._move(unit, move, "scheduled", None, delay_s, with_others=with_others)

    def _yield(self, unit: UnitOfWork, outcome: Yielded, tracked: TrackedJob | None) -> SettleResult:
        """Put an iterating job back into its queue; behind the others if its turn is over."""
        place = "last" if outcome.reason == "max_runtime" else "next"
        if unit.resources is not None and unit.resources.lock is not None:
            # As its payload: it has begun in time.
            unit.resources.lock = unit.resources.lock._replace(expiry=0.0)
        names = [self.working, keys.queue(queue := return_queue(unit.queue, unit.data)), keys.QUEUES]
        arguments = [unit.data, yielded_payload(unit, outcome), queue, place, unit.resources_on_requeue(ran=tracked)]
        moved = bool(self._run_tracked(unit, YIELD_JOB, names, arguments)) or unit.data in self._in_doubt
        self._in_doubt.discard(unit.data)
        return SettleResult("queued" if moved else "lost")

    def _return_foreign(self, unit: UnitOfWork, count: int) -> SettleResult:
        """Return a job of another application to the head of its queue, with its count, in one step. Of a block, its jobs."""
        # A block whose payload store cannot be read waits as the job of another application does.
        try:
            if (jobs_returned := return_jobs(self._client, self.working, unit.queue, unit.data)) is not None:
                return SettleResult("queued" if jobs_returned else "lost")
        except StoredBlocksError:
            pass
        except PayloadError as error:
            return self._kill_malformed(unit, dead_block(unit.data, error, unit.queue), error, tracked=None)
        payload = decode(unit.data, None)
        payload[UNKNOWN_COUNT] = count
        data = rewrite(unit.data, payload)
        names = [self.working, keys.QUEUES, keys.queue(unit.queue)]
        returned: list[int] = self._run_tracked(
            unit, REQUEUE, names, [1, unit.data, data, unit.queue, unit.resources_on_requeue()]
        )
        if not returned[0] and unit.data not in self._in_doubt:
            # Another process owns the job, or the key of its queue is no list. Then the job moves to the schedule set.
            data = delayed_payload(unit, ForeignClass(1.0, count))
            move = self._delayed(unit, keys.SCHEDULE, data, 1.0, None, None)
            return self._move(unit, move, "scheduled", None, 1.0)
        self._in_doubt.discard(unit.data)
        return SettleResult("acknowledged")

    def _give_up_unknown(self, unit: UnitOfWork, outcome: UnknownClass, tracked: TrackedJob | None) -> SettleResult:
        """Move a job whose class no process has to the ``interrupted`` set, and release its resources, in one step."""
        data = delayed_payload(unit, outcome)
        unit.own_resources().counter = quarantine_counter(decode(unit.data, None).get("class"), "unknown_class")
        move = self._dead(unit, keys.INTERRUPTED, data, INTERRUPTED_SET_LIMITS, tracked)
        return self._move(unit, move, "interrupted")

    def _dead(
        self, unit: UnitOfWork, target: str, data: bytes, limits: SetLimits, tracked: TrackedJob | None
    ) -> MoveToSet:
        """Return the move of a job that does not run again."""
        status = None if tracked is None or KILLED.state is None else tracked.command(KILLED.state)
        held = "" if unit.resources is None and status is None else _resources(unit).on_dead(status)
        return MoveToSet(self, target, KILL, (*limits.arguments, limits.max_business_jobs), data, "", held)

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
        names, arguments = [self.working, target], [unit.data, *more]
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

    def _already_moved(self, unit: UnitOfWork, move: MoveToSet) -> bool:
        """Return whether an earlier try of this process, with a lost reply, moved the job: its set holds the same bytes."""
        if unit.data not in self._in_doubt:
            return False
        score: Any = self._client.zscore(move.target, move.arguments[0])
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


def _resources(unit: UnitOfWork) -> JobResources:
    return unit.resources or JobResources()


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
