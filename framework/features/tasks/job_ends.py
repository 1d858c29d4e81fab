"""The table from the ends and waiting places of a job to the status and the state of its event. Pure.

``framework/finish/endings.py`` has the endings. A test compares both; docs/guides/tasks.md shows the table.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from framework.errors import BusinessError
from framework.features.tasks.change import Status
from framework.finish import endings
from framework.finish.endings import Ending
from framework.finish.outcome import (
    Deferred,
    Discarded,
    Failed,
    ForeignClass,
    Held,
    Malformed,
    Retired,
    RunOutcome,
    Snoozed,
    UnknownClass,
    Yielded,
)
from framework.finish.retry import Retry, RetryDecision
from framework.text import error_class, error_message
from framework.typeguards import has_type

MAX_ERROR = 10_000


class EventEnd(NamedTuple):
    """The status and the state of an event."""

    status: Status
    state: str


class EventText(NamedTuple):
    """Why an event has its state, and the class of the error if there was one."""

    reason: str | None
    error_class: str | None = None


BUSINESS_FAILURE = EventEnd("failed", "failed")
DROPPED = EventEnd("failed", "dropped")
HELD = EventEnd("enqueue", "held")
INTERRUPTED = EventEnd("enqueue", "interrupted")
QUARANTINED = EventEnd("error", "quarantined")
DUPLICATE = EventEnd("enqueue", "duplicate")
NOT_PUSHED = EventEnd("error", "not_pushed")
LOST = EventEnd("error", "deleted")
DEAD = EventEnd("error", "dead")

EVENT_ENDS: Mapping[Ending, EventEnd | None] = {
    endings.SUCCEEDED: EventEnd("finish", "completed"),
    endings.RETRIED: EventEnd("enqueue", "retrying"),
    endings.KILLED: DEAD,
    endings.DELETED: EventEnd("error", "not_retried"),
    endings.SNOOZED: EventEnd("enqueue", "snoozed"),
    endings.SNOOZED_BY_LIMITER: EventEnd("enqueue", "snoozed"),
    endings.YIELDED: EventEnd("enqueue", "yielded"),
    endings.DISCARDED: EventEnd("finish", "discarded"),
    endings.DROPPED_BY_FLAG: DROPPED,
    endings.DROPPED_BY_CAPACITY: DROPPED,
    endings.EXPIRED: EventEnd("failed", "expired"),
    endings.CANCELLED: EventEnd("failed", "cancelled"),
    endings.CANCELLED_RUN: EventEnd("failed", "cancelled"),
    endings.RETIRED: EventEnd("failed", "retired"),
    endings.MALFORMED: EventEnd("error", "malformed"),
    endings.DEFERRED: EventEnd("enqueue", "deferred"),
    endings.DEFERRED_REFUSED: EventEnd("enqueue", "deferred"),
    endings.DEFERRED_NO_KEY: EventEnd("enqueue", "deferred"),
    endings.DEFERRED_NO_STORE: EventEnd("enqueue", "deferred"),
    endings.UNKNOWN_CLASS: EventEnd("enqueue", "deferred"),
    endings.FOREIGN_RETURNED: EventEnd("enqueue", "deferred"),
    endings.FOREIGN_DELAYED: EventEnd("enqueue", "deferred"),
    endings.HELD_BY_LIMIT: HELD,
    endings.HELD_BY_PAUSE: HELD,
    endings.RETURNED: INTERRUPTED,
    endings.INTERRUPTED_TOO_OFTEN: QUARANTINED,
    endings.RECOVERED: INTERRUPTED,
    endings.QUARANTINED: QUARANTINED,
    endings.CLASS_NOT_FOUND: QUARANTINED,
    # The process that owns the job writes its end.
    endings.LOST_AT_END: None,
    endings.LOST_BEFORE_RUN: None,
}
"""The event of each ending; a failure by a ``BusinessError`` is ``BUSINESS_FAILURE``, a job dropped by a middleware ``DROPPED``."""


def event_end(ending: Ending, outcome: RunOutcome) -> EventEnd | None:
    """Return the status and the state of the event of a job with this end; ``None`` leaves it to another process."""
    if ending in (endings.KILLED, endings.DELETED) and is_business(outcome):
        return BUSINESS_FAILURE
    if isinstance(outcome, Discarded) and outcome.by == "middleware":
        return DROPPED
    return EVENT_ENDS[ending]


def is_business(outcome: RunOutcome) -> bool:
    """Return whether the job failed by a rule of the business."""
    return isinstance(outcome, Failed) and has_type(outcome.error, BusinessError)


def event_text(outcome: RunOutcome, decision: RetryDecision | None) -> EventText:
    """Return why the job ended or waits, for people."""
    match outcome:
        case Failed(error):
            text = error_message(error, MAX_ERROR)
            if isinstance(decision, Retry):
                text = f"waiting for retry in {decision.delay_s:.0f} s: {text}"
            return EventText(text, error_class(error))
        case Malformed(error) | UnknownClass(error):
            return EventText(error_message(error, MAX_ERROR), error_class(error))
        case Discarded(reason, by):
            return EventText(reason if by == "job" else f"{by}: {reason}")
        case Held(status):
            return EventText(status)
        case ForeignClass():
            return EventText("the class belongs to another application")
        case Deferred(reason=reason) | Snoozed(reason=reason) | Retired(reason=reason) | Yielded(reason=reason):
            return EventText(reason or None)
        case _:
            return EventText(None)


def failure_fields(text: EventText) -> dict[str, Any]:
    """Return the fields of the message about a failed run."""
    return {} if text.error_class is None else {"error_class": text.error_class}
