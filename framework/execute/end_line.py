"""What the last line of a run says: its status, and the fields besides those that every line has."""

from collections.abc import Mapping
from typing import Any

from framework.declare.names import queue_name
from framework.errors import BusinessError, NewerVersionError
from framework.execute.execution import Execution
from framework.finish.outcome import (
    SUCCEEDED,
    Deferred,
    Discarded,
    Failed,
    Outcome,
    Parked,
    Postponed,
    Retired,
    Succeeded,
    UnknownClass,
    Unreadable,
)
from framework.finish.retry import Bury, Drop, Retry, Verdict
from framework.settings.shapes import is_a
from framework.wire.job import STRATEGY, deferrals

_STATUS: dict[type[Outcome], str] = {
    Succeeded: "done",
    Failed: "fail",
    Postponed: "rescheduled",
    Discarded: "dropped",
    Retired: "dropped",
    Unreadable: "fail",
    Deferred: "deferred",
    UnknownClass: "deferred",
}


def status_of(outcome: Outcome) -> str:
    """Return the field ``job_status`` (GitLab's words)."""
    return outcome.status if isinstance(outcome, Parked) else _STATUS[type(outcome)]


def fields_of(run: Execution, verdict: Verdict | None) -> dict[str, Any] | None:
    """Return what the end line says besides the usual; ``None`` for nothing."""
    extra = run.instance._aw_extra if run.instance is not None else None  # pyright: ignore[reportPrivateUsage]
    if extra is None and run.outcome is SUCCEEDED:
        return None
    more = {**_verdict_fields(verdict), **_outcome_fields(run)}
    if not run.entered and run.payload and STRATEGY in run.payload:
        more[STRATEGY] = run.payload[STRATEGY]  # there was no start line to have it
    if extra and run.declaration is not None:
        prefix = queue_name(run.declaration.wire_name, None)
        more.update({f"extra.{prefix}_worker.{name}": value for name, value in dict(extra).items()})
    return more


def _outcome_fields(run: Execution) -> Mapping[str, Any]:
    match run.outcome:
        case Failed(error) if is_a(error, BusinessError):
            return {"error_kind": "business"}
        case Postponed(delay_s):
            return {"retry_in_s": delay_s}
        case Discarded(reason):
            return {"dropped_reason": reason}
        case Retired(reason=reason):
            return {"dropped_reason": f"the class is retired: {reason}"}
        case Parked(fields=fields):
            return fields
        case Deferred(delay_s, reason, fields):
            return {**_deferral(reason, deferrals(run.payload or {}, reason) + 1, delay_s), **fields}
        case UnknownClass(error, delay_s, count):
            return _deferral("newer_version" if is_a(error, NewerVersionError) else "unknown_class", count, delay_s)
        case _:
            return {}


def _deferral(reason: str, count: int, delay_s: float) -> dict[str, Any]:
    return {"job_deferred_by": reason, "deferred_count": count, "deferred_for_s": round(delay_s, 6)}


def _verdict_fields(verdict: Verdict | None) -> dict[str, Any]:
    match verdict:
        case Retry(payload, delay_s):
            return {"retry_count": payload["retry_count"], "retry_in_s": delay_s, "error_class": payload["error_class"]}
        case Bury(payload):
            return {"retry_count": payload["retry_count"], "dead": True, "error_class": payload["error_class"]}
        case Drop(payload):
            return {"retry_count": payload["retry_count"], "dead": False, "error_class": payload["error_class"]}
        case None:
            return {}
