"""Describe changes of events: the move of a job, the process that saw it, and its messages. Pure."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from framework.types import Jid
from framework.wire.job import generate_jid
from framework.wire.json import dumps, loads

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
        """Return the change as JSON."""
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
