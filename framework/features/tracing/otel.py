"""Make pushes and runs spans of OpenTelemetry, by its messaging conventions. Only the API is used: the SDK is the application's.

Conventions: https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/ (1.44, Development).
"""

import os
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import cached_property
from typing import Any, TypeVar

from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from framework.declare.declaration import Declaration
from framework.errors import BusinessError
from framework.execute.perform import RunSpan, RunSpans
from framework.features.tracing.payload import LAST_RUN, LINKED
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import Failed, RunOutcome
from framework.push.job_batch import JobBatch
from framework.push.push_plan import PushPlan, PushSpans
from framework.telemetry import context
from framework.telemetry.last_calls import call_last
from framework.telemetry.traceback_lines import traceback_lines
from framework.text import error_class, error_message
from framework.typeguards import has_type, is_list
from framework.types import Json, Payload
from framework.version import VERSION
from framework.wire.context_fields import CORRELATION_ID, TRACEPARENT
from framework.wire.job import timestamp, whole_number

R = TypeVar("R")
Attributes = dict[str, AttributeValue]

SYSTEM = "sidekiq"
"""``messaging.system``: that of Ruby's instrumentation, whose jobs are on the same queues."""

SCOPE = "application_worker"
_MAX_MESSAGE = 4_096
_SWITCH = "OTEL_SEMCONV_STABILITY_OPT_IN"

_linked: ContextVar[bool] = ContextVar("framework_trace_linked", default=False)
"""Whether the jobs of the push in progress link to its trace instead of belonging to it."""

publishing: ContextVar[Span | None] = ContextVar("framework_trace_publish", default=None)
"""The span of the push in progress."""


class _TextGetter(Getter[Mapping[str, Any]]):
    """Read fields of a payload: another program may have written any value."""

    def get(self, carrier: Mapping[str, Any], key: str) -> list[str] | None:
        found = carrier.get(key)
        return [found] if isinstance(found, str) else None

    def keys(self, carrier: Mapping[str, Any]) -> list[str]:
        return list(carrier)


GETTER = _TextGetter()


class Conventions:
    """The names of attributes: those of 1.24, or with the switch of the specification those of 1.44, or both."""

    def __init__(self, switch: str) -> None:
        chosen = {part.strip() for part in switch.split(",")}
        self._new = bool(chosen & {"messaging", "messaging/dup"})
        self._old = "messaging" not in chosen

    def operation(self, name: str, kind: str) -> Attributes:
        """Return the attributes of an operation: its name here (``send``), and its type in the conventions (``publish``)."""
        found: Attributes = {"messaging.system": SYSTEM}
        if self._old:
            found["messaging.operation"] = kind
        if self._new:
            found |= {
                "messaging.operation.name": name,
                "messaging.operation.type": "send" if kind == "publish" else kind,
            }
        return found


class _Tracer:
    """What pushes and runs share."""

    def __init__(self) -> None:
        self.conventions = Conventions(os.environ.get(_SWITCH, ""))
        self.tracer = trace.get_tracer(SCOPE, VERSION)

    @cached_property
    def attributes(self) -> Mapping[str, Attributes]:
        names = {"send": "publish", "create": "create", "process": "process"}
        return {name: self.conventions.operation(name, kind) for name, kind in names.items()}


def _parent_of_push() -> Context:
    """Return the context of the active span; without one, that of the trace that the context of the push names."""
    active = get_current()
    if trace.get_current_span(active).get_span_context().is_valid:
        return active
    named = context.current_trace()
    return propagate.extract(named, active, GETTER) if named else active


class OtelPushes(PushSpans):
    """Spans of kind PRODUCER: ``send QUEUE`` around a write, ``create QUEUE`` for jobs that are written with other things."""

    def __init__(self) -> None:
        self._shared = _Tracer()

    def push(self, plan: PushPlan, call: Callable[[], R], *, jobs: int, linked: bool, written: bool) -> R:
        shared, operation = self._shared, "send" if written else "create"
        parent = _parent_of_push()
        attributes = {**shared.attributes[operation], "messaging.destination.name": plan.queue}
        span = shared.tracer.start_span(
            f"{operation} {plan.queue}",
            parent,
            SpanKind.PRODUCER,
            attributes,
        )
        token = attach(trace.set_span_in_context(span, parent))
        marked, published = _linked.set(linked), publishing.set(span)
        try:
            result = call()
        except BaseException as error:
            note_error(span, error)
            raise
        else:
            if span.is_recording():
                span.set_attributes(_facts_of_push(plan, result, jobs))
            return result
        finally:
            publishing.reset(published)
            _linked.reset(marked)
            detach(token)
            span.end()

    def fields(self) -> Mapping[str, Json]:
        found: dict[str, Json] = {}
        propagate.inject(found, _parent_of_push())
        if found and _linked.get():
            found[LINKED] = True
        return found


def _facts_of_push(plan: PushPlan, result: object, jobs: int) -> Attributes:
    facts: Attributes = {"messaging.sidekiq.job_class": plan.declaration.wire_name}
    if plan.places is None:
        facts["application_worker.shard"] = plan.shard.name
    elif jobs != 1:
        facts["application_worker.shard"] = plan.places.shards
    # Else the observer of events has noted the shard that the job went to.
    if isinstance(result, JobBatch):
        # Made here, and written later.
        facts["messaging.message.id"] = result.jids[0]
    elif isinstance(result, str):
        facts["messaging.message.id"] = result
    elif result is None:
        # Dropped by a client middleware, or as a duplicate.
        facts["application_worker.dropped"] = True
    elif jobs != 1:
        facts["messaging.batch.message_count"] = jobs or (len(result) if is_list(result) else 0)
    return facts


class OtelRuns(RunSpans):
    """Spans of kind CONSUMER: ``process QUEUE``.

    An immediate job is a child of the span of its push, so its retries belong to the same trace; each also links to the run before
    it. A delayed job and one of a bulk push begin a trace, which links to the span of the push.
    """

    def __init__(self, shard: str) -> None:
        self._shared = _Tracer()
        self._shard = shard
        call_last(flush_otel)

    def begin(self, payload: Payload, unit: UnitOfWork, declaration: Declaration) -> RunSpan:
        shared, queue = self._shared, unit.queue
        extracted = propagate.extract(payload, Context(), GETTER)
        pushed = trace.get_current_span(extracted).get_span_context()
        links: list[Link] = []
        if payload.get(LINKED) is True and pushed.is_valid:
            links.append(Link(pushed))
            extracted = trace.set_span_in_context(trace.INVALID_SPAN, extracted)
        if LAST_RUN in payload:
            before = propagate.extract({TRACEPARENT: payload[LAST_RUN]}, Context(), GETTER)
            last = trace.get_current_span(before).get_span_context()
            if last.is_valid:
                links.append(Link(last))
        jid = payload.get("jid")
        attributes: Attributes = {**shared.attributes["process"], "messaging.destination.name": queue}
        if isinstance(jid, str):
            attributes["messaging.message.id"] = jid
        span = shared.tracer.start_span(f"process {queue}", extracted, SpanKind.CONSUMER, attributes, links)
        if span.is_recording():
            span.set_attributes(self._facts(payload, unit, declaration))
        entered = trace.set_span_in_context(span, extracted)
        # Not detached: a run has a context of its own, which ends with it.
        attach(entered)
        propagate.inject(payload, entered)
        if span.is_recording() and TRACEPARENT in payload:
            # A failed run is read again from its stored payload, with these fields.
            unit.add_fields({**(unit.extra_fields or {}), LAST_RUN: payload[TRACEPARENT]})
        return _OtelRun(span)

    def _facts(self, payload: Payload, unit: UnitOfWork, declaration: Declaration) -> Attributes:
        facts: Attributes = {
            "messaging.message.body.size": len(unit.data),
            "messaging.sidekiq.job_class": declaration.wire_name,
            "application_worker.shard": self._shard,
            "application_worker.urgency": declaration.urgency,
            "application_worker.feature_category": declaration.feature_category,
        }
        correlation_id, retries = payload.get(CORRELATION_ID), whole_number(payload.get("retry_count"))
        if isinstance(correlation_id, str):
            facts["messaging.message.conversation_id"] = correlation_id
        if retries is not None:
            # The first failure writes 0.
            facts["application_worker.retry_count"] = retries + 1
        enqueued = timestamp(payload.get("enqueued_at"))
        if enqueued is not None:
            facts["application_worker.queue_duration_s"] = max(0.0, time.time() - enqueued)
        return facts


class _OtelRun(RunSpan):
    def __init__(self, span: Span) -> None:
        self._span = span

    def end(self, outcome: RunOutcome) -> None:
        if self._span.is_recording():
            if isinstance(outcome, Failed) and not has_type(outcome.error, BusinessError):
                note_error(self._span, outcome.error)
            self._span.set_attribute("application_worker.outcome", type(outcome).__name__.lower())
        self._span.end()


def note_error(span: Span, error: BaseException) -> None:
    """Record an error by the conventions for exceptions. A text that raises is replaced, and no local variable is read."""
    if not span.is_recording():
        return
    name, message = error_class(error), error_message(error, _MAX_MESSAGE)
    span.add_event(
        "exception",
        {
            "exception.type": name,
            "exception.message": message,
            "exception.stacktrace": "\n".join(traceback_lines(error)),
        },
    )
    span.set_attribute("error.type", name)
    span.set_status(Status(StatusCode.ERROR, name))


def enter_trace(payload: Payload) -> None:
    """Make the span that a payload names the current one, in the process of an isolated job, and send its spans at its end."""
    call_last(flush_otel)
    attach(propagate.extract(payload, Context(), GETTER))


def flush_otel(timeout_s: float) -> None:
    """Let the exporters of the application's SDK send what they have; nothing without an SDK."""
    for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
        flush = getattr(provider, "force_flush", None)
        if flush is not None:
            flush(int(timeout_s * 1000 / 2))
