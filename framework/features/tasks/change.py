"""Describe changes of events: the move of a job, its shown arguments, and the status and state of the event. Pure.

``framework/finish/endings.py`` has the ends of jobs. A test compares them with the table here; docs/guides/tasks.md shows it.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from framework.declare.declaration import Declaration
from framework.errors import BusinessError
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
from framework.types import Jid, Payload
from framework.wire.job import generate_jid, version_of
from framework.wire.json import dumps, dumps_parsed, loads

Status: TypeAlias = Literal["enqueue", "working", "finish", "failed", "error"]

ChangeKind: TypeAlias = Literal["push", "start", "end", "note", "mend"]
"""A push makes an event, a start and an end are those of a run, a note only adds messages, a mend corrects an event."""

MAX_TEXT = 65_536
"""Characters of a message or a reason that are kept."""

MAX_JID = 255


@dataclass(slots=True)
class Message:
    """One message of a job. ``key`` is unique, so that a repeated write adds no second one."""

    text: str
    at: float
    fields: str | None = None
    """JSON."""
    key: str = field(default_factory=generate_jid)


@dataclass(slots=True)
class EventChange:
    """A change of one job, as one process saw it at the time ``at``."""

    jid: Jid
    kind: ChangeKind
    at: float
    status: Status = "enqueue"
    state: str = "queued"
    reason: str | None = None
    error_class: str | None = None
    worker: str = ""
    queue: str = ""
    shard: str = ""
    task_id: str | None = None
    params: str | None = None
    whole: bool = False
    items: int = 1
    stands_for: str | None = None
    seen_at: float | None = None
    """The last change of the event that a mend has read: it corrects no other state of it."""
    payload: str | None = None
    """The job as it is pushed, for the ledger (setting ``tasks.ledger``)."""
    params_later: Callable[[], tuple[str, bool]] | None = None
    """Returns ``params`` and ``whole``, if they are not known yet: see ``fill_params``."""
    due_at: float | None = None
    """When a scheduled job is due."""
    messages: list[Message] = field(default_factory=list[Message])

    def fill_params(self) -> None:
        """Set ``params`` and ``whole``. Only a new event has them, and the start of a run seldom makes one."""
        if self.params_later is not None:
            self.params, self.whole = self.params_later()
            self.params_later = None

    def encode(self) -> bytes:
        self.fill_params()
        return dumps(asdict(self))


def decode_change(data: bytes) -> EventChange:
    """Return the change that ``encode`` wrote. Raises PayloadError, TypeError or KeyError for other data."""
    fields: dict[str, Any] = loads(data, None)
    messages = [Message(**one) for one in fields.pop("messages")]
    return EventChange(**fields, messages=messages)


def clean_text(text: str, limit: int = MAX_TEXT) -> str:
    """Return a text that every database stores: without NUL and lone surrogates, cut to ``limit`` characters with a note."""
    if len(text) > limit:
        text = f"{text[:limit]}... ({len(text) - limit:,} characters more)"
    if "\x00" in text:
        text = text.replace("\x00", "�")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def has_valid_jid(jid: object) -> bool:
    """Return whether the id of a job can be stored: other programs may use any text."""
    return isinstance(jid, str) and 0 < len(jid) <= MAX_JID and clean_text(jid) == jid


MAX_ERROR = 10_000


class EventEnd(NamedTuple):
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


FILTERED = "[FILTERED]"
COMPRESSED = "[COMPRESSED]"
MAX_PARAMS = 10_240
"""Characters of shown arguments that are kept, unless the setting ``tasks.params`` is ``whole``."""

_UNCHANGEABLE = frozenset((int, float, bool, str, type(None)))


def params_of(payload: Payload, declaration: Declaration | None, *, whole: bool) -> tuple[str, bool]:
    """Return the arguments as JSON, and whether they are complete: then the job can be pushed again from its event."""
    args: Any = payload.get("args", [])
    if payload.get("compressed"):
        return f'["{COMPRESSED}"]', False
    if whole:
        return _encode(args), True
    allowed = frozenset[int]() if declaration is None else declaration.loggable_positions_for(version_of(payload))
    shown = [value if _is_number(value) or place in allowed else FILTERED for place, value in enumerate(args)]
    text = _encode(shown)
    if len(text) > MAX_PARAMS:
        return f'["{FILTERED}"]', False
    return text, all(value is not FILTERED for value in shown)


def params_later(payload: Payload, declaration: Declaration | None, *, whole: bool) -> Callable[[], tuple[str, bool]]:
    """Return a function that returns ``params_of`` for the payload as it is now."""
    args: Any = payload.get("args")
    # The job may change a list or an object of its arguments, and middlewares the payload.
    if type(args) is list and not payload.get("compressed"):
        values = cast("list[Any]", args)
        if _UNCHANGEABLE.issuperset(map(type, values)):
            copied: Payload = {"args": list(values), "version": payload.get("version")}
            return partial(params_of, copied, declaration, whole=whole)
    found = params_of(payload, declaration, whole=whole)
    return lambda: found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _encode(values: list[Any]) -> str:
    # JSON has a NUL as an escape, which PostgreSQL's TEXT takes, and no lone surrogate.
    return dumps_parsed(values).decode()
