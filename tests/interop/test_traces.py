"""Carry traces between Python and Ruby in the payload, both ways, as the instrumentations of Sidekiq for Ruby read and write them.

Debian has neither OpenTelemetry for Ruby nor a Sentry for Sidekiq that writes these fields (its 5.3.0 has ``sentry_trace``), so the
middlewares of ruby_side.rb do what both do.
"""

import json

import pytest

from tests.servers.envelopes import envelope_receiver
from tests.servers.otlp import collector

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SENTRY_TRACE = "771a43a4192642f0b136d5159a501700"
FIELDS = {
    "traceparent": f"00-{TRACE}-{SPAN}-01",
    "tracestate": "shop=7",
    "baggage": "tenant=acme",
    "trace_propagation_headers": {
        "sentry-trace": f"{SENTRY_TRACE}-b7ad6b7169203331-1",
        "baggage": f"sentry-trace_id={SENTRY_TRACE},sentry-sampled=true,sentry-sample_rand=0.1",
    },
}


@pytest.fixture
def relayed(jobs, ruby, ruby_server, python_server, noted, redis):
    """Return a function that runs jobs in Python, Ruby and Python: it returns what Ruby read, the last payload, and the lines."""

    def run():
        ruby("trace", fields=FIELDS)
        ruby("push", item={"class": "StartWorker", "args": []})
        ruby("trace", fields=None)
        with python_server() as first:
            noted("python", 1)
        redis.rename("queue:ruby", "queue:default")
        with ruby_server():
            noted("ruby", 1)
        (seen,) = map(json.loads, redis.lrange("interop:traces", 0, -1))
        (last,) = map(json.loads, redis.lrange("queue:python", 0, -1))
        redis.rename("queue:python", "queue:default")
        with python_server() as second:
            noted("python", 2)
        return seen, last, [line for one in (first, second) for line in one.lines() if line.get("job_status") == "done"]

    return run


@pytest.mark.proves("I23")
def test_trace_goes_through_processes_without_libraries(relayed):
    seen, last, lines = relayed()
    assert seen == FIELDS
    assert {name: last[name] for name in FIELDS} == FIELDS
    assert [(line["trace_id"], line["span_id"]) for line in lines] == [(TRACE, SPAN)] * 2


@pytest.mark.proves("I23")
def test_spans_of_both_libraries_belong_to_traces_of_ruby(environment, relayed):
    with envelope_receiver() as reports, collector() as spans:
        environment |= {
            "FRAMEWORK_TRACING__OPENTELEMETRY": "true",
            "OTEL_EXPORTER_OTLP_ENDPOINT": spans.url,
            "SENTRY_DSN": reports.dsn,
            "FRAMEWORK_SENTRY__TRACES_SAMPLE_RATE": "1",
        }
        seen, last, lines = relayed()
    assert {one.trace_id for one in spans.spans} == {TRACE} == {line["trace_id"] for line in lines}
    ids = {one.span_id: one.name for one in spans.spans}
    (first,) = [one for one in spans.spans if one.parent_id == SPAN]
    assert first.name == "process default"
    # Ruby continues the push of the first job, and the last run continues what Ruby handed on.
    assert ids[seen["traceparent"].split("-")[2]] == "send ruby"
    assert last["traceparent"] == seen["traceparent"]
    assert [one.name for one in spans.spans if one.parent_id == seen["traceparent"].split("-")[2]] == [
        "process default"
    ]
    assert seen["tracestate"] == "shop=7"
    headers = seen["trace_propagation_headers"]
    assert headers == last["trace_propagation_headers"]
    assert headers["sentry-trace"].startswith(f"{SENTRY_TRACE}-")
    assert headers["sentry-trace"] != FIELDS["trace_propagation_headers"]["sentry-trace"]
    traces = [one["contexts"]["trace"] for one in reports.items("transaction")]
    assert [one["trace_id"] for one in traces] == [SENTRY_TRACE] * 2
    assert traces[1]["parent_span_id"] == headers["sentry-trace"].split("-")[1]
