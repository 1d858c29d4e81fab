"""Build the end line of a run, and report the outcomes that have an event."""

from collections.abc import Mapping
from typing import Any

from framework.declare.job_context import ExtraFields
from framework.errors import BusinessError, JobMemoryError, JobProcessError, JobTimeoutError, NewerVersionError
from framework.execute.execution import Execution
from framework.finish.outcome import (
    SUCCEEDED,
    Deferred,
    Discarded,
    Expired,
    Failed,
    ForeignClass,
    Held,
    Malformed,
    Retired,
    Snoozed,
    UnknownClass,
    Yielded,
)
from framework.finish.report import ProcessorEvents
from framework.finish.retry import Delete, Kill, Retry, RetryDecision
from framework.text import underscored
from framework.typeguards import has_type
from framework.wire.job import LOAD_BALANCING_STRATEGY, deferral_count

_ERROR_KINDS: Mapping[type[BaseException], str] = {
    BusinessError: "business",
    JobTimeoutError: "timeout",
    JobMemoryError: "memory",
    JobProcessError: "process",
}


def end_fields(run: Execution, decision: RetryDecision | None) -> dict[str, Any] | None:
    """Return the further fields of the end line; ``None`` for none."""
    extra: ExtraFields | None = run.instance._aw_extra if run.instance is not None else None  # pyright: ignore[reportPrivateUsage]
    resources = run.unit.resources
    answer = "" if resources is None or resources.awaited is None else resources.awaited.answer
    if extra is None and not answer and run.outcome is SUCCEEDED and run.usage is None:
        return None
    more = {**_retry_fields(decision), **_outcome_fields(run), **({} if extra is None else extra.of_features())}
    if run.lost is not None:
        more.update(run.lost.fields)
    if not run.admitted and run.payload and LOAD_BALANCING_STRATEGY in run.payload:
        # No start line had it.
        more[LOAD_BALANCING_STRATEGY] = run.payload[LOAD_BALANCING_STRATEGY]
    if isinstance(run.outcome, Yielded):
        more["yield_reason"] = run.outcome.reason
    if answer:
        more["result_bytes"] = len(answer)
    if run.usage is not None:
        more.update(run.usage.fields())
    if extra and run.declaration is not None:
        prefix = f"extra.{underscored(run.declaration.wire_name)}"
        more.update({f"{prefix}.{name}": value for name, value in dict(extra).items()})
    return more


def _outcome_fields(run: Execution) -> Mapping[str, Any]:
    match run.outcome:
        case Failed(error) if (kind := _error_kind(error)) is not None:
            return {"error_kind": kind}
        case Snoozed(delay_s, over_limit=over_limit):
            return {"retry_in_s": delay_s, **(over_limit or {})}
        case Discarded(reason, by):
            return {"dropped_by": by, "dropped_reason": reason}
        case Retired(reason=reason):
            return {"dropped_by": "retired_workers", "dropped_reason": f"the class is retired: {reason}"}
        case Held(fields=fields) | Expired(fields=fields):
            return fields
        case Deferred(delay_s, reason, fields):
            return {**_deferral(reason, deferral_count(run.payload or {}, reason) + 1, delay_s), **fields}
        case UnknownClass(error, delay_s, count):
            return _deferral("newer_version" if has_type(error, NewerVersionError) else "unknown_class", count, delay_s)
        case _:
            return {}


def _error_kind(error: BaseException) -> str | None:
    """Return the value of ``error_kind`` for errors that are no fault of the code of ``perform`` alone, else ``None``."""
    return next((word for kind, word in _ERROR_KINDS.items() if has_type(error, kind)), None)


def _deferral(reason: str, count: int, delay_s: float) -> dict[str, Any]:
    return {"job_deferred_by": reason, "deferred_count": count, "deferred_for_s": round(delay_s, 6)}


def _retry_fields(decision: RetryDecision | None) -> dict[str, Any]:
    match decision:
        case Retry(payload, delay_s):
            return {"retry_count": payload["retry_count"], "retry_in_s": delay_s, "error_class": payload["error_class"]}
        case Kill(payload):
            return {"retry_count": payload["retry_count"], "dead": True, "error_class": payload["error_class"]}
        case Delete(payload):
            return {"retry_count": payload["retry_count"], "dead": False, "error_class": payload["error_class"]}
        case None:
            return {}


def report_outcome(events: ProcessorEvents, run: Execution, decision: RetryDecision | None) -> None:
    """Report a run whose outcome has an event: a failure, an unreadable payload, or a class that this process does not run."""
    unit, outcome = run.unit, run.outcome
    if isinstance(outcome, Failed):
        # The number of the line `fail`. The payload of the run has that of the failure before.
        count = None if decision is None else decision.payload["retry_count"]
        events.job_failed(outcome.error, {"job": run.payload, "queue": unit.queue, "retry_count": count})
    elif isinstance(outcome, Malformed):
        events.malformed(unit, outcome.error)
    elif run.payload is not None and isinstance(outcome, UnknownClass):
        events.unknown_class(unit, run.payload, outcome)
    elif run.payload is not None and isinstance(outcome, ForeignClass):
        events.foreign_class(run.payload["class"])
