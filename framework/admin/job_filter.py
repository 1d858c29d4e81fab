"""Select jobs by what their payloads say: class, queue, error, tag, context, age, or any text."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from framework.admin.job_record import JobRecord
from framework.telemetry.context import CORRELATION_ID, META_PREFIX
from framework.typeguards import short_repr
from framework.types import Jid, Payload
from framework.wire.json import dumps

_ESCAPED = frozenset(b"\"\\/<>&'")
"""Characters that some JSON writers escape."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """The jobs that match every criterion that is not empty."""

    cls: str = ""
    """The wire name, or the class that a job of Ruby's ActiveJob wraps."""
    queue: str = ""
    error: str = ""
    """The class of the error, with or without its module, or a part of its message."""
    tag: str = ""
    context: Mapping[str, str] = field(default_factory=dict[str, str])
    """Fields ``meta.NAME`` by name (``user``, ``project``), or ``correlation_id``, as texts."""
    older_than_s: float = 0.0
    text: str = ""
    """A part of the payload as it is stored; ``*`` stands for any characters."""
    jids: frozenset[Jid] = frozenset()
    """The ids of the jobs; any for none."""

    def __bool__(self) -> bool:
        return self != JobFilter()

    def __str__(self) -> str:
        named = {"class": self.cls, "queue": self.queue, "error": self.error, "tag": self.tag, "text": self.text}
        facts = [f"{name}={value}" for name, value in named.items() if value]
        facts += [f"{name}={value}" for name, value in self.context.items()]
        return ", ".join([*facts, *([f"older than {self.older_than_s:g} s"] if self.older_than_s else [])])

    @property
    def needle(self) -> bytes | None:
        """The longest text that stands in each matching payload exactly as it is written: Redis filters by it."""
        # Of several ids, Redis could filter by one only.
        texts = [
            *(self.jids if len(self.jids) == 1 else ()),
            self.cls,
            self.queue,
            self.error,
            self.tag,
            *self.context.values(),
        ]
        plain = [text.encode() for text in texts if text.isascii() and text.isprintable()]
        plain = [text for text in plain if not _ESCAPED.intersection(text)]
        # The text is matched with the stored bytes, so no character of it is escaped.
        plain += [part.encode(errors="surrogateescape") for part in self.text.split("*")]
        return max(plain, key=len, default=b"") or None

    def matches(self, record: JobRecord, since: float | None, now: float) -> bool:
        """Return whether the job matches; ``since`` is when it came to its place."""
        payload = record.payload
        return (
            (not self.cls or self.cls in (record.worker, record.display_class))
            and (not self.jids or record.jid in self.jids)
            and (not self.queue or record.queue == self.queue)
            and (not self.error or self._matches_error(record))
            and (not self.tag or self.tag in record.tags)
            and all(_fact(payload, name) == value for name, value in self.context.items())
            and (not self.older_than_s or (since is not None and now - since > self.older_than_s))
            and (not self.text or self._matches_text(record.data))
        )

    def _matches_error(self, record: JobRecord) -> bool:
        name = record.error_class
        return self.error == name or self.error == re.split(r"::|\.", name)[-1] or self.error in record.error_message

    def _matches_text(self, data: bytes) -> bool:
        at = 0
        for part in self.text.split("*"):
            found = data.find(part.encode(errors="surrogateescape"), at)
            if found < 0:
                return False
            at = found + len(part)
        return True


def job_filter(
    *,
    cls: str | type | None = None,
    queue: str | None = None,
    error: str | type | None = None,
    tag: str | None = None,
    context: Mapping[str, object] | None = None,
    older_than: timedelta | float | None = None,
) -> JobFilter:
    """Return the filter of these criteria.

    Raises:
        TypeError, ValueError: a criterion is empty, or of a wrong type.
    """
    if isinstance(older_than, timedelta):
        older_than = older_than.total_seconds()
    if older_than is not None and not older_than > 0:
        raise ValueError(f"older_than={short_repr(older_than)}: give a timedelta or a number of seconds above 0")
    return JobFilter(
        _name("cls", cls),
        _name("queue", queue),
        _name("error", error),
        _name("tag", tag),
        {_name("context", name): _as_text(value) for name, value in (context or {}).items()},
        older_than or 0.0,
    )


def _name(criterion: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, type):
        declaration: Any = getattr(value, "declaration", None)
        value = str(declaration().wire_name if declaration is not None else value.__name__)
    if not isinstance(value, str):
        raise TypeError(f"{criterion}={short_repr(value)}: give a text")
    if not value:
        raise ValueError(f"{criterion} is empty: leave it out, or give a text")
    return value


def _fact(payload: Payload, name: str) -> str | None:
    field_name = name if name == CORRELATION_ID else META_PREFIX + name.removeprefix(META_PREFIX)
    return _as_text(payload[field_name]) if field_name in payload else None


def _as_text(value: object) -> str:
    """Return the value as operators write it: a number as in JSON."""
    return value if isinstance(value, str) else dumps(value).decode()
