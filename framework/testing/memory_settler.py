"""Move a job that has ended by its outcome, in memory: the counterpart of ``framework/finish/settle.py``.

The end of a job is decided by the product's own code (``decide_retry``, the table of endings, the resources of a job).
"""

from collections.abc import Callable
from typing import Any, assert_never

import redis

from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.answers import note_end
from framework.finish.delayed_payload import delayed_payload
from framework.finish.endings import Ending, ending_of
from framework.finish.handlers import Handlers
from framework.finish.outcome import (
    Cancelled,
    Deferred,
    Discarded,
    Expired,
    Failed,
    ForeignClass,
    Held,
    Interrupted,
    Malformed,
    Retired,
    RunOutcome,
    Snoozed,
    Succeeded,
    UnknownClass,
    Yielded,
)
from framework.finish.retry import Delete, Kill, Retry, RetryDecision, RetryPolicy, job_for_hooks
from framework.finish.settle import Settler
from framework.finish.status_writer import StatusWriter
from framework.finish.yielded_payload import yielded_payload
from framework.testing.memory import JobMemory, Place
from framework.testing.memory_policies import IDENTITY
from framework.wire.payload_edit import rewrite
from framework.wire.resources import Lock, NextRun
from framework.wire.set_limits import SetLimits
from framework.wire.status_key import TrackedJob


class MemorySettler:
    """Settle the jobs of one faked shard."""

    def __init__(
        self,
        memory: JobMemory,
        client: "redis.Redis",
        handlers: Handlers,
        policy: RetryPolicy,
        states: StatusWriter,
        clock: Callable[[], float],
    ) -> None:
        self._memory = memory
        self._handlers = handlers
        self._states = states
        self._clock = clock
        # Of the real settler only the decisions are used, never a move.
        self._decider = Settler(client, IDENTITY, handlers, policy, SetLimits(), _ignore, _ignore, states)

    def decide(
        self, unit: UnitOfWork, worker: Any | None, outcome: RunOutcome, args: list[Any] | None
    ) -> tuple[Ending, RetryDecision | None]:
        """Return the row of the table of endings, and for a failure the decision about a retry."""
        decision = self._decider.decide_retry(unit, worker, outcome, args)
        return ending_of(outcome, decision), decision

    def settle(
        self,
        unit: UnitOfWork,
        outcome: RunOutcome,
        ending: Ending,
        decision: RetryDecision | None,
        tracked: TrackedJob | None,
    ) -> None:
        """Move the job to where it belongs, with its lock, slots and state."""
        delay_s = 0.0
        note_end(unit.own_resources(), outcome, decision)
        match outcome:
            case Succeeded() | Discarded() | Retired() | Expired() | Cancelled():
                if isinstance(outcome, Cancelled):
                    unit.own_resources().cancelled = outcome.jid
                    self._memory.cancelled.discard(outcome.jid)
                self._end(unit)
            case Failed(error):
                assert decision is not None, "a failure is settled after decide"  # noqa: S101
                delay_s = self._settle_failure(unit, error, decision)
            case Snoozed() | Deferred() | ForeignClass() | UnknownClass(gives_up=False):
                delay_s = outcome.delay_s
                self._delay(unit, "schedule", delayed_payload(unit, outcome), delay_s)
            case UnknownClass():
                self._bury(unit, "interrupted", delayed_payload(unit, outcome))
            case Malformed(_, stored):
                self._bury(unit, "dead", stored)
            case Interrupted() | Yielded():
                self._requeue(unit, outcome)
            case Held():
                # The policy has moved it.
                pass
            case _:
                assert_never(outcome)
        if tracked is not None and ending.state is not None:
            lives_s = tracked.lifetime_s(delay_s) if ending.state in ("queued", "retrying") else tracked.ttl_s
            self._states.write(TrackedJob(tracked.jid, lives_s), ending.state)

    def _settle_failure(self, unit: UnitOfWork, error: BaseException, decision: RetryDecision) -> float:
        """Settle a failed job; return its delay in seconds."""
        match decision:
            case Retry(payload, delay_s):
                self._delay(unit, "retry", rewrite(unit.data, payload), delay_s)
                return delay_s
            case Kill(payload):
                self._bury(unit, "dead", rewrite(unit.data, payload))
            case Delete():
                self._remove(unit)
            case _:
                assert_never(decision)
        self._handlers.call_death_handlers(job_for_hooks(decision.payload, decision.args), error)
        return 0.0

    def _requeue(self, unit: UnitOfWork, outcome: Interrupted | Yielded) -> None:
        data = yielded_payload(unit, outcome) if isinstance(outcome, Yielded) else unit.data
        self._memory.release(unit.resources_on_requeue())
        self._memory.add("queue", data, unit.queue)

    def _delay(self, unit: UnitOfWork, place: Place, data: bytes, delay_s: float) -> None:
        if unit.resources is not None:
            self._memory.release(unit.resources.on_delay(delay_s))
        self._memory.add(place, data, due=self._clock() + delay_s)

    def _bury(self, unit: UnitOfWork, place: Place, data: bytes) -> None:
        self._release(unit)
        self._memory.add(place, data)

    def _end(self, unit: UnitOfWork) -> None:
        """Release the resources; if a duplicate came during the run, enqueue the one further run (``finish.lua``)."""
        resources = unit.resources
        if resources is not None and resources.next_run is not None and resources.lock is not None:
            found = self._memory.lock(resources.lock.key)
            if found is not None and found.owner == resources.lock.owner and found.has_duplicates:
                self._run_again(resources.lock, resources.next_run())
        self._remove(unit)

    def _remove(self, unit: UnitOfWork) -> None:
        self._release(unit)
        if unit.resources is not None and unit.resources.on_removed is not None:
            unit.resources.on_removed()

    def _run_again(self, lock: Lock, run: NextRun) -> None:
        self._memory.start_lock(lock.key, lock.owner, 0)
        self._memory.take_lock(lock.key, run.jid, lock.ttl_ms, {"expiry": run.expiry})
        self._memory.add("queue", run.data, run.queue)
        if run.state is not None:
            key, state, seconds = run.state
            self._memory.set_state(key, state, "EX", seconds)
        run.on_written()

    def _release(self, unit: UnitOfWork) -> None:
        if unit.resources is not None:
            self._memory.release(unit.resources.on_end())


def _ignore(*facts: object) -> None:
    del facts
