"""Make the id of a job; read its fields, whichever writer wrote them, and change them; define the view of a job for hooks."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

from framework.errors import PayloadError
from framework.text import with_article
from framework.typeguards import is_text, short_repr
from framework.types import Jid, Payload
from framework.wire.footprint import DECODED_LIMIT
from framework.wire.json import dumps, loads

BID = "bid"
"""Field of a job: the id of its batch (Sidekiq Pro's). Other writers' batches have ids of another form, and are left alone."""

BATCH_EVENT = "aw_batch_event"
"""Field of a callback: the batch and the event that enqueued it, ``[BID, EVENT]``."""

BID_PREFIX = "aw-"

TRANSFER = "aw_transfer"
"""Field of a due job in transfer to another shard: the token under which it is written there once, with the shard's name."""

CHOSEN_SHARD = "aw_shard"
"""Field of a job whose push chose its shard (``set(shard=...)``): routing rules do not change it."""

CHOSEN_QUEUE = "aw_queue"
"""Field of a job whose push chose its queue (``set(queue=...)``): routing rules do not change it."""

EXPIRES_IN, EXPIRY = "expires_in", "expiry"
"""Fields of a job that is not to begin late (Sidekiq Pro): the seconds that it may wait, and the moment in epoch seconds.

The moment is written when the job moves to the schedule or the retry set, so that no later enqueue extends it. A job without it may
wait from its enqueue on.
"""

DEFERRED, DEFERRED_BY, DEFERRED_COUNT = "deferred", "deferred_by", "deferred_count"
"""Fields of a deferred job (GitLab): the mark, the reason, and the number of deferrals in a row for that reason."""

BY_FLAG: Final = "feature_flag"
"""Value of ``deferred_by`` for a job that the flag of its class defers."""

LOAD_BALANCING_STRATEGY = "load_balancing_strategy"
"""Field of a running job's payload and log lines: the database server it reads from, and why (GitLab)."""

SCHEDULED_AT = "scheduled_at"
"""Field of a job that came from the schedule set: when it was due there, in epoch seconds (GitLab)."""

BUFFERED_AT = "concurrency_limit_buffered_at"
"""Field of a job that waited for a slot of a limit: the start of the wait in epoch seconds of Redis's clock (GitLab)."""

MALFORMED = "aw.Malformed"
"""Value of the field ``class`` in an object that wraps malformed bytes (``wire/malformed.py``)."""

MALFORMED_RAW = "aw_raw"
"""Field of such an object: the malformed bytes in base64."""

TRACK = "track"
"""Field of a payload: whether the life of the job is recorded in the database of tasks."""

TASK = "aw_task"
"""Field of a payload: the task to which the job belongs."""

TASK_ITEMS = "aw_items"
"""Field of a payload: how many items of a split task the job has; 1 without it."""

PROFILE = "aw_profile"
"""Field of a payload: whether the runs of the job are profiled. Sidekiq's ``profile`` asks for a profiler of Ruby."""

TIMEOUT = "timeout"
"""Field of a payload: the most seconds of one run, instead of the class's (``set(timeout=...)``)."""

INTERRUPTED_COUNT = "interrupted_count"
"""Field of a job: how often it was still running when its process had to stop (GitLab counts deaths here too)."""

DEATH_COUNT = "aw_death_count"
"""Field of a job: how often it was running when its process died."""

OVER_LIMIT_COUNT, OVER_LIMIT_BY = "overrated", "aw_limiter"
"""How often a rate limiter did not admit the job (Sidekiq Enterprise's name), and the name of the last one that did not."""

UNKNOWN_COUNT, UNKNOWN_SINCE = "aw_unknown_class_count", "aw_unknown_class_since"
"""Fields of a job delayed by processes without its class: the number of delays, and the first in epoch seconds."""

_ERROR_FIELDS = ("error_class", "error_message", "error_backtrace")
# 1973 in milliseconds, the year 5138 in seconds: no timestamp is ambiguous.
_OLDEST_MILLISECONDS = 100_000_000_000
_MOST_DIGITS = 18
_YEAR_10000 = 253_402_300_800


def is_bid(value: object) -> bool:
    """Return whether a value is the id of a batch of this framework."""
    return isinstance(value, str) and value.startswith(BID_PREFIX) and len(value) > len(BID_PREFIX)


def bid_of(payload: Payload | None) -> str:
    """Return the id of the batch of a job, empty for none. A batch of Sidekiq Pro does not count."""
    bid = None if payload is None else payload.get(BID)
    return str(bid) if is_bid(bid) else ""


class Job(dict[str, Any]):
    """Show a job to hooks and handlers: its payload, other writers' fields included, with names for the usual fields."""

    @property
    def jid(self) -> str:
        """Return the job's id, empty if its writer gave none."""
        return str(self.get("jid", ""))

    @property
    def worker(self) -> str:
        return str(self.get("class", ""))

    @property
    def queue(self) -> str:
        """Return the name of the queue that it was written for, without prefix."""
        return str(self.get("queue", ""))

    @property
    def args(self) -> list[Any]:
        """Return its arguments by position, decompressed."""
        return cast("list[Any]", self.get("args", []))

    @property
    def retry_count(self) -> int | None:
        """Return the number of failures minus one; ``None`` before the first failure."""
        return whole_number(self.get("retry_count"))

    @property
    def interrupted_count(self) -> int:
        """Return how often the job was still running when its process had to stop."""
        return count_of(self, INTERRUPTED_COUNT)

    @property
    def death_count(self) -> int:
        """Return how often the job was running when its process died."""
        return count_of(self, DEATH_COUNT)

    @property
    def interruptions(self) -> dict[str, int]:
        """Return both counts by their fields, for a log line."""
        return {INTERRUPTED_COUNT: self.interrupted_count, DEATH_COUNT: self.death_count}

    @property
    def enqueued_at(self) -> float | None:
        """Return when the job entered its queue, in epoch seconds."""
        return timestamp(self.get("enqueued_at"))


def decode(
    data: bytes, decoded_limit: int | None = DECODED_LIMIT, reserve: Callable[[int], None] | None = None
) -> Payload:
    """Return the payload in ``data``; ``decoded_limit`` and ``reserve`` as for ``loads``.

    Raises:
        PayloadLimitError: it would take more memory than ``decoded_limit``.
        PayloadError: it is not a JSON object with a class name and a list of arguments, or it wraps malformed bytes.
    """
    payload = loads(data, decoded_limit, reserve)
    if not isinstance(payload, dict):
        raise PayloadError(f"it is JSON, but not an object: {type(payload).__name__}")
    fields = cast("Payload", payload)
    if not isinstance(fields.get("class"), str) or not fields["class"]:
        raise PayloadError("it names no class")
    if not isinstance(fields.get("args"), list):
        raise PayloadError("its arguments are not a list")
    if fields["class"] == MALFORMED:
        raise PayloadError(f"it wraps malformed bytes, which are in its field {MALFORMED_RAW} in base64")
    return fields


def timestamp(value: object) -> float | None:
    """Return epoch seconds from float seconds (Sidekiq up to 7, this framework) or integer milliseconds (Sidekiq 8).

    Returns ``None`` for a value that is no time between 1970 and 9999, so that no payload can break a calculation.
    """
    seconds = _seconds(value)
    return seconds if seconds is not None and 0 <= seconds < _YEAR_10000 else None


def clamp_time(score: float) -> float:
    """Return a sorted set's score as epoch seconds, clamped to 1970 or the year 9999."""
    return min(max(score, 0.0), _YEAR_10000 - 1.0)


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return value / 1000 if isinstance(value, int) and value >= _OLDEST_MILLISECONDS else float(value)
    except (ValueError, OverflowError):
        return None


def wire_timestamp(seconds: float) -> float:
    """Return ``seconds`` as a time that every Sidekiq reads correctly: float seconds that keep a fraction in JSON."""
    # Sidekiq 8 reads an integer as milliseconds, 6.4 and 7 read it as seconds. All of them read a fraction right.
    # Sidekiq 8 reads an integer as milliseconds, and JSON writers may drop a fraction of 0.
    rounded = round(seconds, 6)
    return rounded + 0.000001 if rounded.is_integer() else rounded


def version_of(payload: Payload) -> int:
    """Return the version that a job was written with: a whole number from 0, also from text; 0 if missing or invalid.

    This framework leaves 0 out; other writers may store a value from a form or an environment variable as text.
    """
    version = payload.get("version")
    if isinstance(version, str) and len(version) <= _MOST_DIGITS and version.isascii() and version.isdigit():
        return int(version)
    number = whole_number(version)
    return 0 if number is None or number < 0 else number


def deferral_count(payload: Payload, reason: str) -> int:
    """Return how often in a row a job was deferred for this reason. Deferrals for other reasons do not count."""
    # With one count for all reasons, a job that a flag deferred for a day (288 times) would get the longest delay of a health check.
    if payload.get(DEFERRED_BY, reason) != reason:
        return 0
    return count_of(payload, DEFERRED_COUNT)


def expiry_of(payload: Payload, due: float | None = None) -> float | None:
    """Return when a job is too old to begin, in epoch seconds; ``None`` if it never is, or its writer gave no usable time.

    ``due`` is when a scheduled job is due.
    """
    if EXPIRES_IN not in payload:
        return None
    fixed = timestamp(payload.get(EXPIRY))
    if fixed is not None:
        return fixed
    seconds = expires_in_of(payload)
    if not seconds:
        return None
    # Another program's poller enqueues a scheduled job when it is due, or somewhat later.
    times = (due, timestamp(payload.get("enqueued_at")), timestamp(payload.get("created_at")))
    begin = next((time for time in times if time is not None), None)
    return None if begin is None else begin + seconds


def expires_in_of(payload: Payload) -> float:
    """Return for how many seconds a job may wait for its start; 0 for any time, or if its writer gave no usable number."""
    seconds = payload.get(EXPIRES_IN)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        return 0.0
    # An integer may exceed every float.
    return float(min(seconds, _YEAR_10000))


def fix_expiry(payload: Payload, due: float | None = None) -> None:
    """Write the moment at which a job is too old to begin: later enqueues do not change it. ``due`` as for ``expiry_of``."""
    if (expiry := expiry_of(payload, due)) is not None:
        payload[EXPIRY] = wire_timestamp(expiry)


def clear_unknown_class(payload: Payload) -> None:
    """Remove the fields written by processes without the job's class: this process has the class."""
    payload.pop(UNKNOWN_COUNT, None)
    # Without this field the error comes from the job's own runs and stays.
    if payload.pop(UNKNOWN_SINCE, None) is not None:
        clear_error(payload)


def clear_error(payload: Payload) -> None:
    """Remove the fields that name the last error."""
    for name in _ERROR_FIELDS:
        payload.pop(name, None)


def count_of(payload: Payload, field: str) -> int:
    """Return a count of a job: 0 if it is missing or invalid."""
    return max(0, whole_number(payload.get(field)) or 0)


def whole_number(value: object) -> int | None:
    """Return ``value`` if it is an integer, else ``None``: other writers' fields may hold any value."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


_BYTES = 12
_DIGITS = 2 * _BYTES


def base36(number: int) -> str:
    """Return a number in base 36, as Sidekiq writes the ids of threads."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    text = ""
    while number:
        number, rest = divmod(number, 36)
        text = digits[rest] + text
    return text or "0"


def generate_jid() -> Jid:
    return os.urandom(_BYTES).hex()


def generate_jids(count: int) -> list[Jid]:
    """Return ``count`` new job ids with one system call."""
    digits = os.urandom(_BYTES * count).hex()
    return [digits[start : start + _DIGITS] for start in range(0, len(digits), _DIGITS)]


def wire_timestamp_json(seconds: float) -> bytes:
    """Return ``wire_timestamp(seconds)`` of ``wire.job`` as JSON."""
    text = b"%.6f" % seconds
    return text[:-1] + b"1" if text.endswith(b".000000") else text


def check_jid(jid: object, index: int = 0) -> Jid:
    """Return the id of a job.

    Raises:
        TypeError, ValueError: it cannot be one; ``index`` is its place in the message.
    """
    if jid is None:
        raise TypeError(f"id {index} is None: that job was dropped when it was pushed, and has no state; leave it out")
    if not isinstance(jid, str):
        raise TypeError(
            f"id {index} is {short_repr(jid)}, {with_article(type(jid).__name__)}; use the id that the push returned"
        )
    if not jid:
        raise ValueError(f"id {index} is empty; use the id that the push returned")
    if not is_text(jid):
        raise ValueError(
            f"id {index} is {short_repr(jid)}, which is not Unicode text; use the id that the push returned"
        )
    return jid


# ``1e999``, or nesting deeper than this framework writes, is JSON of other writers that can be read, but not written. A job
# with such a field must be retried like any other, so unchanged fields keep their bytes.

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}:,]', re.DOTALL)


def rewrite(data: bytes, payload: Payload) -> bytes:
    """Return ``payload`` as JSON; unchanged fields that cannot be written keep their bytes of ``data``, its source.

    Raises:
        PayloadError: a new or changed field cannot be written.
    """
    try:
        return dumps(payload)
    except PayloadError:
        before: Payload = loads(data)
        raw = raw_fields(data)
    fields = [
        dumps(name) + b":" + (raw[name] if name in raw and _same(before[name], value) else dumps(value))
        for name, value in payload.items()
    ]
    return b"{" + b",".join(fields) + b"}"


def set_fields(data: bytes, fields: Mapping[str, Any]) -> bytes:
    """Return ``data``, a JSON object that ``loads`` accepts, with these fields set. All other bytes stay; new fields come last."""
    pieces: list[bytes] = []
    at = 0
    missing = dict(fields)
    for name, start, end in _values(data):
        if name in fields:
            value = data[start:end]
            before, after = len(value) - len(value.lstrip()), len(value.rstrip())
            pieces += [data[at : start + before], dumps(fields[name])]
            missing.pop(name, None)
            at = start + after
    close = data.rindex(b"}")
    pieces.append(data[at:close])
    pieces += [b"," + dumps(name) + b":" + dumps(value) for name, value in missing.items()]
    return b"".join(pieces) + data[close:]


def append_fields(data: bytes, fields: Mapping[str, Any]) -> bytes:
    """Return ``data``, which ends like a JSON object and is not parsed, with these fields appended.

    Readers use the last field of a name.
    """
    close = data.rindex(b"}")
    return (
        data[:close]
        + b"".join(b"," + dumps(name) + b":" + dumps(value) for name, value in fields.items())
        + data[close:]
    )


def raw_fields(data: bytes) -> dict[str, bytes]:
    """Return the bytes of each field's value in ``data``, a JSON object that ``loads`` accepts."""
    return {name: data[start:end].strip() for name, start, end in _values(data)}


def _values(data: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield name, start and end of every field's value of the object, including repeated names."""
    depth, start = 0, 0
    name: str | None = None
    for token in _TOKEN.finditer(data):
        character = data[token.start() : token.start() + 1]
        depth -= character in b"]}"
        if depth == 1 and name is None and character == b'"':
            name = str(loads(token.group()))
        elif depth == 1 and character == b":":
            start = token.end()
        elif name is not None and ((depth == 1 and character == b",") or depth == 0):
            yield name, start, token.start()
            name = None
        depth += character in b"[{"


def _same(before: Any, value: Any) -> bool:
    return type(before) is type(value) and before == value
