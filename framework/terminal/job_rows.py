"""Show jobs of a set as rows of a table, and as JSON."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from framework.admin.job_record import JobRecord
from framework.admin.purge import HeldRecord
from framework.admin.shard_job_set import SetRecord
from framework.text import format_age, format_duration

_MAX_TEXT = 60

HEADINGS: Mapping[str, Sequence[str]] = {
    "scheduled": ("SHARD", "JID", "CLASS", "QUEUE", "DUE IN", "ARGUMENTS"),
    "retry": ("SHARD", "JID", "CLASS", "QUEUE", "RUNS IN", "FAILURES", "ERROR"),
    "dead": ("SHARD", "JID", "CLASS", "QUEUE", "DEAD FOR", "ERROR"),
    "interrupted": ("SHARD", "JID", "CLASS", "QUEUE", "THERE FOR", "ERROR"),
    "held": ("SHARD", "JID", "CLASS", "QUEUE", "HELD BY", "FOR", "ARGUMENTS"),
}
"""The headings of the table of each place."""


def set_row(one: SetRecord, now: float) -> Sequence[str]:
    """Return the row of a job of a sorted set."""
    first = (one.shard, one.jid or "-", one.display_class or "(malformed)", one.queue or "-")
    match one.kind:
        case "scheduled":
            return *first, format_due(one.score, now), arguments_text(one)
        case "retry":
            failures = "-" if one.retry_count is None else f"{one.retry_count + 1:,}"
            return *first, format_due(one.score, now), failures, error_text(one)
        case "dead" | "interrupted":
            return *first, format_age(now, one.score), error_text(one)


def held_row(one: HeldRecord, now: float) -> Sequence[str]:
    """Return the row of a held job."""
    by = f"{'limit' if one.kind == 'waiting' else 'pause of'} {one.held_by}"
    return (
        *(one.shard, one.jid or "-", one.display_class or "(malformed)", one.queue or "-", by),
        *(format_age(now, one.since), arguments_text(one)),
    )


def format_due(due: float, now: float) -> str:
    """Return how long until a job is due."""
    return format_duration(due - now) if due > now else "due"


def arguments_text(one: JobRecord) -> str:
    """Return the arguments, cut to fit a table; or the reason why they cannot be read."""
    return _cut(one.problem or json.dumps(one.display_args, ensure_ascii=False))


def error_text(one: JobRecord) -> str:
    """Return the class and message of the error, cut to fit a table."""
    parts = [part for part in (one.error_class, one.error_message) if part]
    return _cut(": ".join(parts) or one.problem or "-")


def job_fields(one: JobRecord) -> dict[str, Any]:
    """Return the job's fields for other programs; times are epoch seconds."""
    found: dict[str, Any] = {
        "shard": one.shard,
        "jid": one.jid,
        "class": one.display_class,
        "queue": one.queue,
        "args": one.display_args,
        "tags": one.tags,
        "context": one.context,
        "created_at": one.created_at,
        "enqueued_at": one.enqueued_at,
        "failed_at": one.failed_at,
        "retry_count": one.retry_count,
        "error_class": one.error_class,
        "error_message": one.error_message,
        "problem": one.problem,
    }
    if isinstance(one, SetRecord):
        found |= {"place": one.kind, "due": one.due, "since": one.since}
    if isinstance(one, HeldRecord):
        found |= {"place": one.kind, "held_by": one.held_by, "since": one.since}
    return found


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
