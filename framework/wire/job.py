"""One job as the wire has it: reading its fields whoever wrote them, and the view of it that hooks receive."""

from collections.abc import Callable
from typing import Any, cast

from framework.errors import PayloadError
from framework.types import Payload
from framework.wire.footprint import DECODED_LIMIT
from framework.wire.json import loads

TRANSFER = "aw_transfer"
"""Field of a due job that is on its way to another shard: the token under which it is written there, once."""

CHOSEN_SHARD = "aw_shard"
"""Field of a job whose push named its shard (``set(shard=...)``): the rules do not send it elsewhere."""

CHOSEN_QUEUE = "aw_queue"
"""Field of a job whose push named its queue (``set(queue=...)``): as long as it is for that queue, it stays there."""

DEFERRED, DEFERRED_BY, DEFERRED_COUNT = "deferred", "deferred_by", "deferred_count"
"""Fields of a job that a policy has sent away for a while: that it was, why, and how often in a row for that reason (GitLab)."""

LOAD_BALANCING_STRATEGY = "load_balancing_strategy"
"""Field of a running job's payload and of its lines: which database servers it reads from, and why (GitLab)."""

BUFFERED_AT = "concurrency_limit_buffered_at"
"""Field of a job that has waited for a slot of a concurrency limit: since when, epoch seconds of Redis's clock (GitLab)."""

MALFORMED = "aw.Malformed"
"""In the field ``class``: no job, but an object around bytes that are none (``wire/malformed.py``)."""

MALFORMED_RAW = "aw_raw"
"""Field of such an object: the bytes, in base64."""

INTERRUPTED_COUNT = "interrupted_count"
"""Field of a job that still ran when its process had to stop: how often (GitLab, which counts deaths here too)."""

DEATH_COUNT = "aw_death_count"
"""Field of a job that ran when its process died: how often."""

UNKNOWN_COUNT, UNKNOWN_SINCE = "aw_unknown_class_count", "aw_unknown_class_since"
"""Fields of a job that processes without its class have put off: how often, and since when (epoch seconds)."""

_ERROR_FIELDS = ("error_class", "error_message", "error_backtrace")
_OLDEST_MILLISECONDS = 100_000_000_000  # 1973 as milliseconds, the year 5138 as seconds: no stamp is ambiguous
_MOST_DIGITS = 18
_YEAR_10000 = 253_402_300_800


class Job(dict[str, Any]):
    """A job as hooks and handlers see it: its payload, other writers' fields included, with names for the usual ones."""

    @property
    def jid(self) -> str:
        """The job's id, empty when its writer gave none."""
        return str(self.get("jid", ""))

    @property
    def worker(self) -> str:
        """The wire name of its class."""
        return str(self.get("class", ""))

    @property
    def queue(self) -> str:
        """The queue it was written for, without prefix."""
        return str(self.get("queue", ""))

    @property
    def args(self) -> list[Any]:
        """Its arguments by position, decompressed."""
        return cast("list[Any]", self.get("args", []))

    @property
    def retry_count(self) -> int | None:
        """Failures so far minus one; ``None`` before the first."""
        return whole_number(self.get("retry_count"))

    @property
    def interrupted_count(self) -> int:
        """How often it still ran when its process had to stop."""
        return count_of(self, INTERRUPTED_COUNT)

    @property
    def death_count(self) -> int:
        """How often it ran when its process died."""
        return count_of(self, DEATH_COUNT)

    @property
    def interruptions(self) -> dict[str, int]:
        """Both counts by their fields, for a log line."""
        return {INTERRUPTED_COUNT: self.interrupted_count, DEATH_COUNT: self.death_count}

    @property
    def enqueued_at(self) -> float | None:
        """When it came into its queue, epoch seconds."""
        return timestamp(self.get("enqueued_at"))


def decode(
    data: bytes, decoded_limit: int | None = DECODED_LIMIT, reserve: Callable[[int], None] | None = None
) -> Payload:
    """Return the payload in ``data``; ``decoded_limit`` and ``reserve`` as for ``loads``.

    Raises:
        PayloadLimitError: it would take more memory than ``decoded_limit``.
        PayloadError: it is not a JSON object with a class name and a list of arguments, or stands for bytes that are none.
    """
    payload = loads(data, decoded_limit, reserve)
    if not isinstance(payload, dict):
        raise PayloadError(f"it is JSON, but no object: {type(payload).__name__}")
    fields = cast("Payload", payload)
    if not isinstance(fields.get("class"), str) or not fields["class"]:
        raise PayloadError("it names no class")
    if not isinstance(fields.get("args"), list):
        raise PayloadError("its arguments are no list")
    if fields["class"] == MALFORMED:
        raise PayloadError(f"it stands for bytes that are no job, which its field {MALFORMED_RAW} has in base64")
    return fields


def timestamp(value: object) -> float | None:
    """Return epoch seconds whoever wrote them: float seconds (Sidekiq up to 7, us) or integer milliseconds (Sidekiq 8).

    ``None`` for what is no time between 1970 and 9999: nothing a payload holds may break what reckons with it.
    """
    seconds = _seconds(value)
    return seconds if seconds is not None and 0 <= seconds < _YEAR_10000 else None


def clamp_time(score: float) -> float:
    """Return a score of a sorted set as epoch seconds: what is no time is the nearest that is one, 1970 or the year 9999."""
    return min(max(score, 0.0), _YEAR_10000 - 1.0)


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return value / 1000 if isinstance(value, int) and value >= _OLDEST_MILLISECONDS else float(value)
    except (ValueError, OverflowError):
        return None


def wire_timestamp(seconds: float) -> float:
    """Return ``seconds`` as a time that every Sidekiq reads right: float seconds that keep a fraction in JSON."""
    # Sidekiq 8 reads an integer as milliseconds, 6.4 and 7 read it as seconds. All of them read a fraction right.
    rounded = round(seconds, 6)
    return rounded + 0.000001 if rounded.is_integer() else rounded


def wire_timestamp_json(seconds: float) -> bytes:
    """Return ``stamp(seconds)`` as JSON."""
    text = b"%.6f" % seconds
    return text[:-1] + b"1" if text.endswith(b".000000") else text


def version_of(payload: Payload) -> int:
    """Return the version a job was written with: a whole number from 0 on, as text too; 0 where it says nothing that is one.

    Our producers leave 0 out; others may write what a form or a variable of the environment gave them.
    """
    version = payload.get("version")
    if isinstance(version, str) and len(version) <= _MOST_DIGITS and version.isascii() and version.isdigit():
        return int(version)
    number = whole_number(version)
    return 0 if number is None or number < 0 else number


def deferral_count(payload: Payload, reason: str) -> int:
    """Return how often in a row a job was deferred for this reason: another's deferrals prolong nothing, and use up nothing."""
    # With one count for all reasons a day behind a flag (288 deferrals) would start the health backoff at its maximum.
    if payload.get(DEFERRED_BY, reason) != reason:
        return 0
    return count_of(payload, DEFERRED_COUNT)


def clear_unknown_class(payload: Payload) -> None:
    """Drop what processes without the class of a job have written into it: it has met one that has the class."""
    payload.pop(UNKNOWN_COUNT, None)
    # Without this field the error is one of the job's own runs.
    if payload.pop(UNKNOWN_SINCE, None) is not None:
        clear_error(payload)


def clear_error(payload: Payload) -> None:
    """Drop the fields that name the last error."""
    for name in _ERROR_FIELDS:
        payload.pop(name, None)


def count_of(payload: Payload, field: str) -> int:
    """Return a count of a job: 0 where there is none, or what is no count."""
    return max(0, whole_number(payload.get(field)) or 0)


def whole_number(value: object) -> int | None:
    """Return ``value`` if it is an integer, else ``None``: other writers' fields hold anything."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
