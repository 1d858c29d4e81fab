"""Build the payload of a job that moves to the schedule, retry or dead set."""

from typing import TypeAlias

from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import Deferred, ForeignClass, Snoozed, UnknownClass
from framework.finish.retry import MAX_MESSAGE
from framework.text import error_class, error_message
from framework.types import Payload
from framework.wire.job import (
    BUFFERED_AT,
    DEFERRED,
    DEFERRED_BY,
    DEFERRED_COUNT,
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

DelayedOutcome: TypeAlias = Snoozed | Deferred | ForeignClass | UnknownClass
"""The outcomes of jobs that run later, or in another process."""


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
