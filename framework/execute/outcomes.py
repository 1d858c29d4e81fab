"""Decide the outcomes of jobs that do not run, or whose code asks for one.

A job ends early if it was cancelled or is too old; that is asked before its policies, so it takes no slot. A job whose class this
process lacks is deferred, so that a process with the class runs it later. A running job requests an outcome by its error; the policy
of the limiter decides about ``OverLimit``.
"""

import fnmatch
import math
import random
import re
from asyncio import current_task
from collections.abc import Container, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import (
    BatchCancelledError,
    Discard,
    JobStoppedError,
    MissingKeyError,
    NewerVersionError,
    OffloadedArgumentsError,
    OverLimit,
    PayloadError,
    RetryLater,
    UnknownWorkerError,
)
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.endings import NO_KEY, NO_STORE, OVER_LIMIT_JOBS
from framework.finish.outcome import (
    SUCCEEDED,
    Cancelled,
    Deferred,
    Discarded,
    Expired,
    Failed,
    ForeignClass,
    JobStop,
    Malformed,
    RunOutcome,
    Snoozed,
    UnknownClass,
    Yielded,
)
from framework.finish.retry import MAX_DELAY_S
from framework.known_secrets import known_secrets
from framework.process_clock import process_clock
from framework.telemetry.job_events import CountedEnd, job_events
from framework.telemetry.logs import error_fields
from framework.typeguards import has_type
from framework.types import Jid, Payload
from framework.wire.blocks import PACKED
from framework.wire.job import (
    OVER_LIMIT_BY,
    OVER_LIMIT_COUNT,
    UNKNOWN_COUNT,
    UNKNOWN_SINCE,
    bid_of,
    count_of,
    expiry_of,
    timestamp,
    version_of,
)
from framework.wire.malformed import batch_resources_of, dead_set_entry
from framework.wire.resources import slot_id


def early_end(
    unit: UnitOfWork, payload: Payload, declaration: Declaration | None, cancelled: Container[Jid]
) -> Cancelled | Expired | None:
    """Return the outcome of a job that ends now, ``None`` if it may run."""
    # A policy has moved the job, together with others: this process does not own it any more.
    if unit.has_moved:
        return None
    if (jid := cancelled_jid(payload, cancelled)) is not None:
        forget_cursor(unit, payload, declaration)
        return Cancelled(jid, ran=False)
    # A class of another application has rules of its own.
    expiry = None if declaration is None else expiry_of(payload)
    if expiry is None:
        return None
    late_s = process_clock.now() - expiry
    if late_s <= 0:
        return None
    forget_cursor(unit, payload, declaration)
    return Expired(expiry, late_s)


def forget_cursor(unit: UnitOfWork, payload: Payload, declaration: Declaration | None) -> None:
    """Let the script that ends an iterable job, which does not run, remove the cursor of an earlier run."""
    if declaration is not None and declaration.is_iterable:
        unit.own_resources().iteration = slot_id(payload, unit.data)


def cancelled_jid(payload: Payload, cancelled: Container[Jid]) -> Jid | None:
    """Return the id of a job if it, or its batch, is among the cancelled ones. Other writers' ids may have any type."""
    jid = payload.get("jid")
    if not isinstance(jid, str):
        return None
    return jid if jid in cancelled or bid_of(payload) in cancelled else None


def outcome_of_stop(instance: Any) -> RunOutcome:
    """Return the outcome of a job that has read whether it was cancelled, and has returned: it has ended, or yields."""
    if instance._aw_stop is not None:
        reason, made_progress = instance._aw_stop
        return Yielded(reason, made_progress=made_progress)
    return Cancelled(instance.jid, ran=True) if instance._aw_cancellation.seen else SUCCEEDED


def outcome_of_order(jid: Jid, stop: JobStop) -> RunOutcome:
    """Return the outcome of a run that an operator has stopped."""
    match stop.fate:
        case "cancel":
            return Cancelled(jid, ran=True)
        case "requeue":
            # By the schedule set, in one step with the release of its slots, as a job that asks to run later.
            return Snoozed(0.0, f"stopped by {stop.by}")
        case "kill":
            return Failed(JobStoppedError(f"{stop.by} stopped the job (jobs stop --kill)"))


def task_cancelled() -> bool:
    return (task := current_task()) is not None and task.cancelling() > 0


# Sidekiq Enterprise's back-off: five minutes more each time, spread over five minutes. A concurrent limiter does not know when a
# holder ends, and an error of the application has no turn.
_STEP_S = 300.0


def over_limit_outcome(unit: UnitOfWork, payload: Payload, error: OverLimit) -> Snoozed | Failed | Discarded:
    """Return the outcome of the job. After the most reschedules it fails as by any error.

    Each outcome counts in ``OVER_LIMIT_JOBS``: a reschedule by its ending, the others here, whose endings have other causes too.
    """
    count = count_of(payload, OVER_LIMIT_COUNT) + 1
    ended: Failed | Discarded | None = None
    if error.policy == "skip":
        ended = Discarded(f"limiter {error.limiter} is at its limit", "limiter")
    elif error.policy == "raise" or count > error.reschedules:
        ended = Failed(error)
    if ended is not None:
        job_events.emit(CountedEnd(str(payload.get("class")), counted_as=OVER_LIMIT_JOBS))
        return ended
    unit.add_fields({**(unit.extra_fields or {}), OVER_LIMIT_COUNT: count, OVER_LIMIT_BY: error.limiter})
    fields = {"snoozed_by": "limiter", "limiter": error.limiter, "over_limit_count": count}
    delay_s = error.turn_s
    if delay_s is None:
        delay_s = _backoff_s(error, count)
        if error.retry_after_s is not None and error.retry_after_s > delay_s:
            # Jobs that were refused together must not come back together.
            delay_s = error.retry_after_s + random.random() * delay_s
    return Snoozed(min(delay_s, MAX_DELAY_S), str(error), fields)


def call_backoff(payload: Payload, error: OverLimit) -> None:
    """Call the limiter's own function of the delay now: an error that is sent to another process cannot have it."""
    error.backoff_s = _own_backoff_s(error, count_of(payload, OVER_LIMIT_COUNT) + 1)


def _backoff_s(error: OverLimit, count: int) -> float:
    """Return the delay of the limiter's own function, or Sidekiq's if there is none, or it raises or returns no valid delay."""
    own_s = error.backoff_s if error.backoff is None else _own_backoff_s(error, count)
    return _STEP_S * count + _STEP_S * random.random() + 1 if own_s is None else own_s


def _own_backoff_s(error: OverLimit, count: int) -> float | None:
    if error.backoff is not None:
        with suppress(Exception):
            chosen = error.backoff(count)
            seconds = chosen.total_seconds() if isinstance(chosen, timedelta) else float(chosen)
            if math.isfinite(seconds) and seconds >= 0:
                return seconds
    return None


_NO_KEY_DELAY_S = _NO_STORE_DELAY_S = 60.0


def requested_outcome(unit: UnitOfWork, payload: Payload | None, error: BaseException) -> RunOutcome | None:
    """Return the outcome that a job requests by its error, ``None`` for a failure. Attributes of a subclass may raise."""
    if has_type(error, PayloadError):
        return malformed_outcome(unit, error)
    if has_type(error, MissingKeyError):
        # Not a failure: a deploy that brings the new key to the pushing processes first must cost no retry.
        return Deferred(_NO_KEY_DELAY_S, NO_KEY, error_fields(error))
    if has_type(error, OffloadedArgumentsError):
        # Nor is this: a store that is down for hours must not send thousands of jobs to the dead set.
        return Deferred(_NO_STORE_DELAY_S, NO_STORE, error_fields(error))
    if has_type(error, RetryLater):
        # A new instance checks the delay of a subclass too.
        return Snoozed(RetryLater(error.delay_s).delay_s, _shown(error.reason))
    if has_type(error, Discard):
        return Discarded(_shown(error.reason))
    if has_type(error, BatchCancelledError):
        # Its batch, or the one that it writes, was cancelled: so was the work of the job.
        return Cancelled(slot_id(payload or {}, unit.data), ran=True)
    if has_type(error, OverLimit):
        return over_limit_outcome(unit, payload or {}, error)
    return None


def malformed_outcome(unit: UnitOfWork, error: PayloadError) -> Malformed:
    """Build the member of the dead set once: a settlement that is repeated after a lost reply looks for the same bytes."""
    if unit.resources is None:
        unit.note_resources(batch_resources_of(unit.data))
    return Malformed(error, dead_set_entry(unit.data, error, process_clock.now(), unit.queue))


DAY_S = 86_400.0
_MAX_DELAY_S = 60.0
_MAX_FOREIGN_DELAY_S = 5.0
"""Longest delay of another application's job: the processes of that application may be idle meanwhile."""

# Names come from the wire, so their number has no bound.
_MAX_NAMES = 1_000


# A job of an unknown class spends no retry: a rolling deploy, or a queue shared with Ruby, would use them up. Its lock stays.
class UnknownClassDelays:
    """Decide how long such a job waits. Safe from any thread.

    ``foreign`` are patterns of wire names that belong to other applications (setting ``foreign_classes``). Any other job is
    given up ``max_wait_s`` after its first deferral.
    """

    def __init__(
        self,
        foreign: Sequence[str] = (),
        max_wait_s: float = DAY_S,
    ) -> None:
        patterns = "|".join(fnmatch.translate(pattern) for pattern in foreign)
        self._is_foreign = re.compile(patterns).match if patterns else None
        self._max_wait_s = max_wait_s
        self._nearest: dict[str, str | None] = {}

    def outcome_if_unknown(
        self, payload: Payload, declaration: Declaration | None, retired: Container[str]
    ) -> UnknownClass | ForeignClass | None:
        """Return the outcome of a job whose class or version this process lacks; ``None`` if it has it, or it is retired."""
        if declaration is None:
            return None if payload["class"] in retired else self.outcome(payload)
        version = version_of(payload)
        return self.outcome_of_version(payload, declaration, version) if version > declaration.version else None

    def outcome(self, payload: Payload) -> UnknownClass | ForeignClass:
        name, count = payload["class"], count_of(payload, UNKNOWN_COUNT)
        # A Ruby process had taken a block, or an operator has retried one. While the payload store is away it comes again.
        if name == PACKED or (self._is_foreign is not None and self._is_foreign(name)):
            return ForeignClass(self._foreign_delay_s(count), count + 1)
        return self._delayed(payload, UnknownWorkerError(name, self._nearest_to(name)))

    def outcome_of_version(self, payload: Payload, declaration: Declaration, version: int) -> UnknownClass:
        """Return the outcome of a job of a higher ``version`` than its class has in this process."""
        return self._delayed(payload, NewerVersionError(declaration.wire_name, version, declaration.version))

    def _foreign_delay_s(self, count: int) -> float:
        """Return how long a job of another application stays out of its queue: 0 every other time.

        A job that returns at once goes to a waiting process of its application: Redis serves the client that has waited the
        longest, which is not the process that has just fetched. If no such process waits, this process fetches the job again; so
        it stays out of the queue the next time.
        """
        if count % 2 == 0:
            return 0.0
        return min(_MAX_FOREIGN_DELAY_S, (1.0 + min(count, 9)) / 2) * (0.8 + 0.2 * random.random())

    def _delayed(self, payload: Payload, error: UnknownWorkerError | NewerVersionError) -> UnknownClass:
        now = process_clock.now()
        first = timestamp(payload.get(UNKNOWN_SINCE))
        if first is None or _ran_since(payload, first):
            first, count = now, 0
        else:
            count = count_of(payload, UNKNOWN_COUNT)
        # The clock of another host may be ahead: a time in the future would delay the end of the wait by as much.
        since = min(first, now)
        # Jitter, so that a thousand jobs of a new class do not return at the same moment.
        # The sixth power exceeds the maximum: a higher one, from a count of the wire, could overflow.
        delay_s = min(_MAX_DELAY_S, 2.0 ** min(count, 6) * (1.0 + random.random() / 2))
        return UnknownClass(error, delay_s, count + 1, since, gives_up=now - since >= self._max_wait_s)

    def _nearest_to(self, name: str) -> str | None:
        """Return the registered name closest to ``name``; cached, since the search takes milliseconds with many classes."""
        if name not in self._nearest:
            if len(self._nearest) >= _MAX_NAMES:
                self._nearest.clear()
            self._nearest[name] = registry.nearest_name(name)
        # Another thread may have cleared the cache: the message then has no hint.
        return self._nearest.get(name)


def _ran_since(payload: Payload, first: float) -> bool:
    """Return whether a process with the class has run the job meanwhile: a Ruby process keeps the fields of the deferral."""
    failures = (timestamp(payload.get(name)) for name in ("failed_at", "retried_at"))
    return any(failed is not None and failed > first for failed in failures)


def _shown(reason: Any) -> Any:
    """Return the reason that a job gives, without secrets. Untyped code may give anything."""
    return known_secrets.masked(reason) if isinstance(reason, str) else reason
