"""Show one job of a queue or a set, whichever program wrote it, malformed payloads too; and select jobs by their payloads."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from itertools import islice
from typing import Any, TypedDict, TypeVar, Unpack, cast

from framework.errors import PayloadError
from framework.settings.model import SizeLimitSettings
from framework.telemetry.context import CORRELATION_ID, META_PREFIX
from framework.text import decode_escaped, did_you_mean
from framework.typeguards import short_repr
from framework.types import Jid, Payload
from framework.wire.compress import decompress_arguments, unpack_backtrace
from framework.wire.job import decode, timestamp, whole_number
from framework.wire.json import dumps, loads_object
from framework.wire.protected import ENCRYPTED, HIDDEN, hidden_arguments, is_protected

T = TypeVar("T")

_ACTIVE_JOB_WRAPPERS = (
    "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper",
    "Sidekiq::ActiveJob::Wrapper",
)


class JobRecord:
    """A job as it is stored on a shard. No property raises for what another program wrote there.

    ``data`` are its bytes, by which an action finds it. ``problem`` says what is wrong with a malformed job, whose other
    properties are empty as far as they cannot be read.
    """

    def __init__(self, shard: str, data: bytes, sizes: SizeLimitSettings) -> None:
        self.shard = shard
        self.data = data
        self._sizes = sizes

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.jid or '(no jid)'} {self.display_class or '(malformed)'} on {self.shard}>"

    @cached_property
    def payload(self) -> Payload:
        """The payload as it is stored, with compressed arguments; empty if it is no JSON object."""
        return loads_object(self.data, self._sizes.decoded_limit)

    @cached_property
    def problem(self) -> str | None:
        """The fault of the job, such as bytes that are no JSON, or damaged compressed arguments; else ``None``."""
        return self._decoded[1]

    @property
    def jid(self) -> str:
        """The job's id, empty if it has none."""
        return _text(self.payload.get("jid"))

    @property
    def worker(self) -> str:
        """The wire name of its class, empty if it has none."""
        return _text(self.payload.get("class"))

    @property
    def display_class(self) -> str:
        """The class that runs: for a job of Ruby's ActiveJob the wrapped one, else ``worker``."""
        return _text(self.payload.get("wrapped")) if self._is_wrapped and self.payload.get("wrapped") else self.worker

    @property
    def queue(self) -> str:
        """The name of the queue that it was written for, empty if it has none."""
        return _text(self.payload.get("queue"))

    @property
    def args(self) -> list[Any]:
        """The arguments, decompressed at the first use; as they are stored if they cannot be decompressed, or are encrypted."""
        return self._decoded[0]

    @property
    def display_args(self) -> list[Any]:
        """The arguments that the class receives: for a job of Ruby's ActiveJob those of the wrapped one, else ``args``.

        Encrypted arguments are hidden: all of them, or the last one of a job that Sidekiq Enterprise encrypts.
        """
        first: Any = self.args[0] if self._is_wrapped and self.args else None
        if isinstance(first, dict) and isinstance(cast("Payload", first).get("arguments"), list):
            return cast("list[Any]", first["arguments"])
        if is_protected(self.payload):
            return [hidden_arguments(self.payload)]
        return [*self.args[:-1], HIDDEN] if self.args and self.payload.get(ENCRYPTED) else self.args

    @property
    def created_at(self) -> float | None:
        """When it was pushed first, in epoch seconds."""
        return timestamp(self.payload.get("created_at"))

    @property
    def enqueued_at(self) -> float | None:
        """When it entered its queue last, in epoch seconds."""
        return timestamp(self.payload.get("enqueued_at"))

    @property
    def failed_at(self) -> float | None:
        """When it failed first, in epoch seconds; ``None`` if it has not failed."""
        return timestamp(self.payload.get("failed_at"))

    @property
    def retried_at(self) -> float | None:
        """When it failed last, in epoch seconds; ``None`` before its second failure."""
        return timestamp(self.payload.get("retried_at"))

    @property
    def retry_count(self) -> int | None:
        """The number of failures minus one; ``None`` before the first failure."""
        return whole_number(self.payload.get("retry_count"))

    @property
    def error_class(self) -> str:
        """The class of its last error, empty without one."""
        return _text(self.payload.get("error_class"))

    @property
    def error_message(self) -> str:
        """The message of its last error, empty without one."""
        return _text(self.payload.get("error_message"))

    @property
    def error_backtrace(self) -> list[str]:
        """The lines of its last error's traceback, as far as its class keeps them (``backtrace``)."""
        return unpack_backtrace(self.payload.get("error_backtrace"))

    @property
    def tags(self) -> list[str]:
        """Its tags."""
        found = self.payload.get("tags")
        return [_text(one) for one in cast("list[Any]", found)] if isinstance(found, list) else []

    @property
    def context(self) -> dict[str, Any]:
        """The facts about the request or job that pushed it: its fields ``meta.*`` without the prefix, such as ``user``."""
        return {
            name.removeprefix(META_PREFIX): value
            for name, value in self.payload.items()
            if name.startswith(META_PREFIX)
        }

    def fact(self, name: str) -> str | None:
        """Return one field of ``context``, or ``correlation_id``, as a text: a number as in JSON; ``None`` if the job has none."""
        field_name = name if name == CORRELATION_ID else META_PREFIX + name.removeprefix(META_PREFIX)
        return _as_text(self.payload[field_name]) if field_name in self.payload else None

    @property
    def text(self) -> str:
        """The stored bytes as text; bytes that are no UTF-8 as escapes."""
        return decode_escaped(self.data)

    @property
    def _is_wrapped(self) -> bool:
        return self.worker in _ACTIVE_JOB_WRAPPERS

    @cached_property
    def _decoded(self) -> tuple[list[Any], str | None]:
        stored = self.payload.get("args")
        raw = cast("list[Any]", stored) if isinstance(stored, list) else []
        try:
            fields = decode(self.data, self._sizes.decoded_limit)
            if is_protected(fields):
                return raw, None
            decompress_arguments(fields, self._sizes.decompressed_limit, self._sizes.decoded_limit)
        except PayloadError as error:
            return raw, error.reason
        return cast("list[Any]", fields["args"]), None


def _text(value: object) -> str:
    return "" if value is None else str(value)


_ESCAPED = frozenset(b"\"\\/<>&'")
"""Characters that some JSON writers escape."""


def exact_needle(texts: Iterable[str]) -> bytes:
    """Return the longest of these texts that stands in a payload exactly as it is written; empty for none."""
    plain = (text.encode() for text in texts if text.isascii() and text.isprintable())
    return max((text for text in plain if not _ESCAPED.intersection(text)), key=len, default=b"")


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
    excluded: tuple["JobFilter", ...] = ()
    """A job that matches one of these does not match."""
    percent: float = 100.0
    """The share of the jobs that match, by their ids: the same jobs at every call, and more of them for a larger share."""
    count: int = 0
    """The most jobs of one call, on all its shards together; 0 for any number. A ``JobQuota`` counts them."""

    def __bool__(self) -> bool:
        return self != JobFilter()

    def __str__(self) -> str:
        named = {"class": self.cls, "queue": self.queue, "error": self.error, "tag": self.tag, "text": self.text}
        facts = [f"{name}={value}" for name, value in named.items() if value]
        facts += [f"{name}={value}" for name, value in self.context.items()]
        facts += [f"older than {self.older_than_s:g} s"] if self.older_than_s else []
        facts += [f"not {one}" for one in self.excluded]
        facts += [f"{self.percent:g} % of the ids"] if self.percent < 100 else []
        return ", ".join([*facts, *([f"at most {self.count:,}"] if self.count else [])])

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
        # The text is matched with the stored bytes, so no character of it is escaped.
        plain = [exact_needle(texts), *(part.encode(errors="surrogateescape") for part in self.text.split("*"))]
        return max(plain, key=len) or None

    def matches(self, record: JobRecord, since: float | None, now: float) -> bool:
        """Return whether the job matches; ``since`` is when it came to its place."""
        return (
            (not self.cls or self.cls in (record.worker, record.display_class))
            and (not self.jids or record.jid in self.jids)
            and (not self.queue or record.queue == self.queue)
            and (not self.error or self._matches_error(record))
            and (not self.tag or self.tag in record.tags)
            and all(record.fact(name) == value for name, value in self.context.items())
            and (not self.older_than_s or (since is not None and now - since > self.older_than_s))
            and (not self.text or self._matches_text(record.data))
            and not any(one.matches(record, since, now) for one in self.excluded)
            and (self.percent >= 100 or self._has_share(record))
        )

    def _matches_error(self, record: JobRecord) -> bool:
        name = record.error_class
        return self.error == name or self.error == re.split(r"::|\.", name)[-1] or self.error in record.error_message

    def _has_share(self, record: JobRecord) -> bool:
        name = record.jid.encode(errors="surrogatepass") or record.data
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()) / 2**64 * 100 < self.percent

    def _matches_text(self, data: bytes) -> bool:
        at = 0
        for part in self.text.split("*"):
            found = data.find(part.encode(errors="surrogateescape"), at)
            if found < 0:
                return False
            at = found + len(part)
        return True


class JobQuota:
    """The jobs that a call may still take, on all its shards together."""

    def __init__(self, wanted: JobFilter) -> None:
        self._left = wanted.count or None

    @property
    def is_used_up(self) -> bool:
        """Whether the call has taken as many jobs as it may."""
        return self._left == 0

    def take(self) -> bool:
        """Take one job; return whether the call might."""
        return next(self.of((True,)), False)

    def of(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items that may be taken; it reads no further one."""
        for item in islice(items, self._left):
            self._left = None if self._left is None else self._left - 1
            yield item


class JobCriteria(TypedDict, total=False):
    """The criteria of ``where``: a job matches if it matches all of them."""

    cls: str | type | None
    """A wire name, or a worker class."""
    queue: str | None
    error: str | type | None
    """The class of an error, or a part of its message."""
    tag: str | None
    context: Mapping[str, object] | None
    """Fields of the context, as ``{"user": "ann"}``."""
    older_than: timedelta | float | None
    """The time since the end of a dead or interrupted job, the last failure of a failed one, the push of a scheduled one, or the
    start of the hold of a held one. A number is seconds.
    """
    not_cls: str | type | Sequence[str | type] | None
    """Classes whose jobs do not match; the other criteria with ``not_`` are like it."""
    not_queue: str | Sequence[str] | None
    not_error: str | type | Sequence[str | type] | None
    not_tag: str | Sequence[str] | None
    percent: float | None
    """The share of the matching jobs, chosen by their ids: the same jobs at every call, and more of them for a larger share."""
    count: int | None
    """The most jobs of one call, in no order."""


_CRITERIA = frozenset(JobCriteria.__annotations__)


def job_filter(**criteria: Unpack[JobCriteria]) -> JobFilter:
    """Return the filter of these criteria; ``None`` is no criterion.

    Raises:
        TypeError, ValueError: a criterion is unknown, empty, or of a wrong type.
    """
    for name in criteria.keys() - _CRITERIA:
        raise TypeError(
            f"{name} is no criterion{did_you_mean(name, _CRITERIA)}: there are {', '.join(sorted(_CRITERIA))}"
        )
    older_than, percent, count = criteria.get("older_than"), criteria.get("percent"), criteria.get("count")
    if isinstance(older_than, timedelta):
        older_than = older_than.total_seconds()
    if older_than is not None and not older_than > 0:
        raise ValueError(f"older_than={short_repr(older_than)}: give a timedelta or a number of seconds above 0")
    if percent is not None and not 0 < percent <= 100:
        raise ValueError(f"percent={short_repr(percent)}: give a number above 0, at most 100")
    if count is not None and not count > 0:
        raise ValueError(f"count={short_repr(count)}: give a whole number above 0")
    return JobFilter(
        _name("cls", criteria.get("cls")),
        _name("queue", criteria.get("queue")),
        _name("error", criteria.get("error")),
        _name("tag", criteria.get("tag")),
        {_name("context", name): _as_text(value) for name, value in (criteria.get("context") or {}).items()},
        older_than or 0.0,
        excluded=(
            *(JobFilter(cls=one) for one in _names("not_cls", criteria.get("not_cls"))),
            *(JobFilter(queue=one) for one in _names("not_queue", criteria.get("not_queue"))),
            *(JobFilter(error=one) for one in _names("not_error", criteria.get("not_error"))),
            *(JobFilter(tag=one) for one in _names("not_tag", criteria.get("not_tag"))),
        ),
        percent=100.0 if percent is None else percent,
        count=count or 0,
    )


def _names(criterion: str, value: object) -> Iterator[str]:
    several = isinstance(value, list | tuple | set | frozenset)
    values: Iterable[object] = cast("Iterable[object]", value) if several else (value,)
    return filter(None, (_name(criterion, one) for one in values))


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


def _as_text(value: object) -> str:
    """Return the value as operators write it: a number as in JSON."""
    return value if isinstance(value, str) else dumps(value).decode()
