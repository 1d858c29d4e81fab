"""Return the outcome that a job requests by its error."""

import time

from framework.errors import Discard, OverLimit, PayloadError, RetryLater
from framework.execute.over_limit import over_limit_outcome
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import Discarded, Malformed, RunOutcome, Snoozed
from framework.typeguards import has_type
from framework.types import Payload
from framework.wire.malformed import batch_resources_of, dead_set_entry


def requested_outcome(unit: UnitOfWork, payload: Payload | None, error: BaseException) -> RunOutcome | None:
    """Return the outcome that a job requests by its error, ``None`` for a failure. Attributes of a subclass may raise."""
    if has_type(error, PayloadError):
        return malformed_outcome(unit, error)
    if has_type(error, RetryLater):
        # A new instance checks the delay of a subclass too.
        return Snoozed(RetryLater(error.delay_s).delay_s, error.reason)
    if has_type(error, Discard):
        return Discarded(error.reason)
    if has_type(error, OverLimit):
        return over_limit_outcome(unit, payload or {}, error)
    return None


def malformed_outcome(unit: UnitOfWork, error: PayloadError) -> Malformed:
    """Build the member of the dead set once: a settlement that is repeated after a lost reply looks for the same bytes."""
    if unit.resources is None:
        unit.resources = batch_resources_of(unit.data)
    return Malformed(error, dead_set_entry(unit.data, error, time.time(), unit.queue))
