"""Check the spans of pushes and runs, with the SDK of OpenTelemetry in this process."""

import json
from contextlib import contextmanager
from contextvars import copy_context

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from framework.declare import registry
from framework.errors import ArgumentsError, BusinessError
from framework.features.tracing import otel
from framework.features.tracing.payload import LAST_RUN, LINKED
from framework.features.tracing.push import with_spans
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import SUCCEEDED, Discarded, Failed
from framework.telemetry import context
from framework.wire.context_fields import TRACE_FIELDS
from tests.push.conftest import LetPass, jobs, pusher, worker
from tests.tables import each_row

__all__ = ["jobs", "pusher"]

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"
_exporter = InMemorySpanExporter()
_provider = TracerProvider()
_provider.add_span_processor(SimpleSpanProcessor(_exporter))


@pytest.fixture
def spans(monkeypatch):
    """Make the provider that of the framework; return the spans that have ended, by name."""
    monkeypatch.setattr(otel.trace, "get_tracer", _provider.get_tracer)
    _exporter.clear()

    def read(name=None):
        return [one for one in _exporter.get_finished_spans() if name in (None, one.name)]

    return read


@pytest.fixture(params=[(), (LetPass,)], ids=["quick", "middleware"])
def traced(request, pusher, spans):
    """Push with spans, without a client middleware and with one."""
    pushes = otel.OtelPushes()
    return pusher.open(*request.param, steps=[lambda plan, _client: with_spans(plan, [pushes])])


def parent_of(fields):
    return trace.get_current_span(propagate.extract(fields)).get_span_context()


def trace_of(job):
    return {name: job[name] for name in (*TRACE_FIELDS, LINKED) if name in job}


@contextmanager
def request():
    with _provider.get_tracer("app").start_as_current_span("GET /") as span:
        yield span.get_span_context()


PUSHES = {
    "async": lambda cls: cls.perform_async(),
    "in": lambda cls: cls.perform_in(60),
    "bulk": lambda cls: cls.perform_bulk([(), ()]),
}


@pytest.mark.parametrize("push", PUSHES.values(), ids=PUSHES)
def test_push_is_a_producer_span_that_its_jobs_name(traced, jobs, redis, spans, push):
    cls = worker(queue="default")
    with request() as parent:
        jids = push(cls)
    (span,) = spans("send default")
    pushed = [*jobs(), *map(json.loads, redis.zrange("schedule", 0, -1))]
    assert (span.kind, span.parent.span_id, span.context.trace_id) == (
        SpanKind.PRODUCER,
        parent.span_id,
        parent.trace_id,
    )
    assert {parent_of(job).span_id for job in pushed} == {span.context.span_id}
    single = {"messaging.message.id": jids} if isinstance(jids, str) else {"messaging.batch.message_count": 2}
    assert dict(span.attributes) == {
        "messaging.system": "sidekiq",
        "messaging.operation": "publish",
        "messaging.destination.name": "default",
        "messaging.sidekiq.job_class": "Job",
        "application_worker.shard": "main",
        **single,
    }
    assert [job.get(LINKED) for job in pushed] == [None if len(pushed) == 1 and jobs() else True] * len(pushed)


def test_push_outside_of_a_request_begins_a_trace(traced, jobs, spans):
    worker(queue="default").perform_async()
    (span,) = spans("send default")
    assert span.parent is None
    assert parent_of(jobs()[0]).trace_id == span.context.trace_id


def test_push_belongs_to_the_trace_that_its_context_names(traced, jobs, spans):
    with context.bound_trace({"traceparent": PARENT, "tracestate": "a=1"}):
        worker(queue="default").perform_async()
    (span,) = spans("send default")
    assert f"{span.parent.span_id:x}" == "b" * 16
    assert jobs()[0]["tracestate"] == "a=1"


def test_push_without_a_sdk_carries_the_trace_on(pusher, jobs):
    pushes = otel.OtelPushes()
    pusher.open(steps=[lambda plan, _client: with_spans(plan, [pushes])])
    cls = worker(queue="default")
    cls.perform_async()
    with context.bound_trace({"traceparent": PARENT}):
        cls.perform_async()
    assert [trace_of(job) for job in jobs()] == [{}, {"traceparent": PARENT}]


def test_push_that_fails_is_an_error_without_arguments(traced, spans):
    cls = worker(queue="default", perform=lambda self, number: None)
    with pytest.raises(ArgumentsError):
        cls.perform_async({"s3cret": {1}})
    (span,) = spans("send default")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"].endswith("ArgumentsError")


def test_push_with_a_lock_that_is_taken_is_marked(traced, jobs, spans):
    cls = worker(queue="default", idempotent=True)
    cls.perform_async(), cls.perform_async()
    assert [span.attributes.get("application_worker.dropped") for span in spans("send default")] == [None, True]
    assert len(jobs()) == 1


@each_row(
    ("switch", "names"),
    [
        ("", {"messaging.operation": "publish"}),
        ("http", {"messaging.operation": "publish"}),
        ("http, messaging", {"messaging.operation.name": "send", "messaging.operation.type": "send"}),
        (
            "messaging/dup",
            {"messaging.operation": "publish", "messaging.operation.name": "send", "messaging.operation.type": "send"},
        ),
    ],
)
def test_conventions_follow_the_switch(switch, names):
    assert otel.Conventions(switch).operation("send", "publish") == {"messaging.system": "sidekiq", **names}


def run(cls, outcome=SUCCEEDED, **fields):
    """Run a job as a worker process does; return what log lines within it carry, and the fields for its next run."""
    payload = {"class": "Job", "args": [], "jid": "j1", "queue": "default", **fields}
    unit = UnitOfWork("default", json.dumps(payload).encode())

    def in_job():
        context.enter_job(payload)
        span = otel.OtelRuns("main").begin(payload, unit, cls.declaration())
        carried = context.line_fields()
        span.end(outcome)
        return carried, unit.extra_fields

    return copy_context().run(in_job)


def test_run_of_an_immediate_job_is_a_child_of_its_push(pusher, spans):
    carried, kept = run(worker(feature_category="search"), correlation_id="c1", traceparent=PARENT, enqueued_at=1.5)
    (span,) = spans("process default")
    assert (span.kind, f"{span.context.trace_id:x}", f"{span.parent.span_id:x}") == (
        SpanKind.CONSUMER,
        "a" * 32,
        "b" * 16,
    )
    assert span.links == ()
    facts = dict(span.attributes)
    assert facts.pop("application_worker.queue_duration_s") > 1e9
    assert facts.pop("messaging.message.body.size") > 100
    assert facts == {
        "messaging.system": "sidekiq",
        "messaging.operation": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": "j1",
        "messaging.message.conversation_id": "c1",
        "messaging.sidekiq.job_class": "Job",
        "application_worker.shard": "main",
        "application_worker.urgency": "low",
        "application_worker.feature_category": "search",
        "application_worker.outcome": "succeeded",
    }
    ids = (f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}")
    assert (carried["trace_id"], carried["span_id"]) == ids
    assert kept == {LAST_RUN: f"00-{ids[0]}-{ids[1]}-01"}


def test_run_of_a_delayed_or_bulk_job_links_to_its_push(pusher, spans):
    run(worker(), traceparent=PARENT, **{LINKED: True})
    (span,) = spans("process default")
    assert span.parent is None
    assert [f"{link.context.span_id:x}" for link in span.links] == ["b" * 16]


def test_retry_links_to_the_run_before_it(pusher, spans):
    cls = worker()
    _, kept = run(cls, Failed(ValueError("broke")), traceparent=PARENT)
    run(cls, traceparent=PARENT, retry_count=0, **kept)
    first, second = spans("process default")
    assert (first.status.status_code, first.attributes["error.type"]) == (StatusCode.ERROR, "ValueError")
    (event,) = first.events
    assert (event.name, event.attributes["exception.message"]) == ("exception", "broke")
    assert second.context.trace_id == first.context.trace_id
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert second.attributes["application_worker.retry_count"] == 1


@each_row("outcome", [Failed(BusinessError("closed")), Discarded("no", "job")])
def test_run_that_ends_as_designed_is_no_error(outcome):
    _exporter.clear()
    span = _provider.get_tracer("app").start_span("process default")
    otel._OtelRun(span).end(outcome)
    (ended,) = _exporter.get_finished_spans()
    assert ended.status.status_code is StatusCode.UNSET
    assert ended.events == ()


@each_row("fields", [{"traceparent": 5}, {"traceparent": ["x"]}, {"traceparent": "x"}, {LAST_RUN: 5}, {"baggage": {}}])
def test_run_with_a_foreign_value_begins_a_trace(fields):
    with registry.isolated():
        payload = {"class": "Job", "args": [], "jid": 7, **fields}
        otel.OtelRuns("main").begin(payload, UnitOfWork("default", b"{}"), worker().declaration()).end(SUCCEEDED)
