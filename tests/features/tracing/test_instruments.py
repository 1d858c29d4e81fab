"""Check the metrics and the policy spans of OpenTelemetry, with the SDK in this process."""

from types import SimpleNamespace

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from framework.features.tracing import instruments
from framework.telemetry.job_events import ClassThrottled, JobsEnqueued, job_events

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"
QUEUE = {
    "messaging.system": "sidekiq",
    "messaging.destination.name": "low",
    "application_worker.shard": "second",
}


@pytest.fixture
def otel(monkeypatch):
    """Return an observer, and functions that read its metrics and its spans."""
    reader, exporter = InMemoryMetricReader(), InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(instruments.metrics, "get_meter", MeterProvider([reader]).get_meter)
    monkeypatch.setattr(instruments.trace, "get_tracer", provider.get_tracer)
    monkeypatch.setattr(job_events, "shard", "second")
    observer = instruments.OtelObserver()

    def read():
        (resource,) = reader.get_metrics_data().resource_metrics
        return {one.name: one.data.data_points for one in resource.scope_metrics[0].metrics}

    return observer, read, exporter.get_finished_spans


def run_of(**fields):
    known = {
        "admitted": True,
        "queue": "low",
        "error": None,
        "duration_s": 0.02,
        "payload": {"traceparent": PARENT},
        "declaration": SimpleNamespace(wire_name="Job"),
        "ending": SimpleNamespace(log_status="done"),
    }
    return SimpleNamespace(**{**known, **fields})


def test_pushes_and_runs_are_counted_by_the_conventions(otel):
    observer, read, _ = otel
    observer.happened(JobsEnqueued("Job", 3, queue="low", shard="second"))
    observer.happened(JobsEnqueued("Job", 0, queue="low"))
    observer.happened(ClassThrottled("Job"))
    observer.ended(run_of())
    observer.ended(run_of(error=KeyError("x"), duration_s=100))
    found = read()
    assert [(dict(one.attributes), one.value) for one in found[instruments.SENT]] == [
        ({**QUEUE, "messaging.operation.name": "send"}, 3)
    ]
    process = {**QUEUE, "messaging.operation.name": "process"}
    runs = [process, {**process, "error.type": "KeyError"}]
    assert [(dict(one.attributes), one.value) for one in found[instruments.CONSUMED]] == [(one, 1) for one in runs]
    durations = found[instruments.DURATION]
    assert [(dict(one.attributes), one.count, one.sum) for one in durations] == [(runs[0], 1, 0.02), (runs[1], 1, 100)]
    assert durations[0].explicit_bounds[-1] == 3600


def test_span_of_a_push_has_the_size_of_its_job(otel):
    observer, _, spans = otel
    with instruments.trace.get_tracer("app").start_as_current_span("send low") as span:
        token = instruments.publishing.set(span)
        observer.happened(JobsEnqueued("Job", 1, queue="low", sizes=(250,), shard="second"))
        observer.happened(JobsEnqueued("Job", 2, queue="low", sizes=(1, 2)))
        instruments.publishing.reset(token)
    assert spans()[0].attributes == {"messaging.message.body.size": 250, "application_worker.shard": "second"}


def test_held_job_is_a_span_of_its_trace(otel):
    observer, _, spans = otel
    observer.ended(run_of(admitted=False, ending=SimpleNamespace(log_status="concurrency_limit")))
    observer.ended(run_of(admitted=False, payload=None))
    (span,) = spans()
    assert (span.name, f"{span.parent.span_id:x}") == ("concurrency_limit low", "b" * 16)
    assert dict(span.attributes) == {
        **QUEUE,
        "messaging.sidekiq.job_class": "Job",
        "application_worker.job_status": "concurrency_limit",
    }
