"""The payload of a job that waits in the schedule set, whatever sent it there."""

from typing import TypeAlias

from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import Deferred, ForeignClass, Postponed, UnknownClass
from framework.finish.retry import MAX_MESSAGE
from framework.types import Payload
from framework.wire.error_text import error_class, error_message
from framework.wire.job import (
    BUFFERED_AT,
    DEFERRED,
    DEFERRED_BY,
    DEFERRED_COUNT,
    TRANSIT,
    UNKNOWN_COUNT,
    UNKNOWN_SINCE,
    decode,
    deferrals,
    forget_error,
    forget_unknown,
    stamp,
)
from framework.wire.splice import rewrite

Waits: TypeAlias = Postponed | Deferred | ForeignClass | UnknownClass
"""The outcomes of jobs that run another time, or elsewhere."""


def waiting(unit: UnitOfWork, outcome: Waits) -> bytes:
    """Return the payload as the schedule set has it, with what its next reader is to know of the wait."""
    payload = _due_later(unit)
    match outcome:
        case Postponed():
            pass
        case Deferred(reason=reason):  # GitLab's fields
            payload.update({DEFERRED: True, DEFERRED_COUNT: deferrals(payload, reason) + 1, DEFERRED_BY: reason})
        case ForeignClass(count=count):
            payload[UNKNOWN_COUNT] = count
        case UnknownClass(error, count=count, since=since):
            forget_error(payload)  # a backtrace that stayed would be another error's
            payload.update({"error_class": error_class(error), "error_message": error_message(error, MAX_MESSAGE)})
            payload.update({UNKNOWN_COUNT: count, UNKNOWN_SINCE: stamp(since)})
    return rewrite(unit.data, payload)


def _due_later(unit: UnitOfWork) -> Payload:
    """Return the payload of a job that is in no queue and knows its queue (Sidekiq's form)."""
    payload = decode(unit.data, None)
    forget_unknown(payload)
    payload["queue"] = unit.queue
    payload.pop("enqueued_at", None)
    payload.pop(TRANSIT, None)
    payload.pop(BUFFERED_AT, None)
    payload.update(unit.found or {})
    return payload
