"""Return the outcome that a job requests by its error."""

from framework.errors import (
    BatchCancelledError,
    Discard,
    MissingKeyError,
    OffloadedArgumentsError,
    OverLimit,
    PayloadError,
    RetryLater,
)
from framework.execute.over_limit import over_limit_outcome
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.endings import NO_KEY, NO_STORE
from framework.finish.outcome import Cancelled, Deferred, Discarded, Malformed, RunOutcome, Snoozed
from framework.process_clock import process_clock
from framework.telemetry.logs import error_fields
from framework.typeguards import has_type
from framework.types import Payload
from framework.wire.malformed import batch_resources_of, dead_set_entry
from framework.wire.resources import slot_id

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
        return Snoozed(RetryLater(error.delay_s).delay_s, error.reason)
    if has_type(error, Discard):
        return Discarded(error.reason)
    if has_type(error, BatchCancelledError):
        # Its batch, or the one that it writes, was cancelled: so was the work of the job.
        return Cancelled(slot_id(payload or {}, unit.data), ran=True)
    if has_type(error, OverLimit):
        return over_limit_outcome(unit, payload or {}, error)
    return None


def malformed_outcome(unit: UnitOfWork, error: PayloadError) -> Malformed:
    """Build the member of the dead set once: a settlement that is repeated after a lost reply looks for the same bytes."""
    if unit.resources is None:
        unit.resources = batch_resources_of(unit.data)
    return Malformed(error, dead_set_entry(unit.data, error, process_clock.now(), unit.queue))
