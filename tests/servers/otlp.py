"""Receive spans and metrics over OTLP/HTTP on the loopback, as a collector does, and parse their protobuf."""

import gzip
from collections.abc import Iterator
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.servers.serving import serving


class ReceivedSpan(NamedTuple):
    """One span as the collector has it."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    links: list[str]
    """The ids of the linked spans."""
    attributes: dict[str, Any]
    is_error: bool
    events: list[str]
    started_ns: int


class Collector(ThreadingHTTPServer):
    """An OTLP receiver."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []
        """The requests as they came, without their compression."""
        self.spans: list[ReceivedSpan] = []
        self.metrics: dict[str, list[Any]] = {}
        """The data points by the name of the instrument, of all exports."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def tree(self, trace_id: str) -> str:
        """Return the spans of a trace as an indented tree, children in the order of their begins."""
        spans = sorted((one for one in self.spans if one.trace_id == trace_id), key=lambda one: one.started_ns)
        ids = {one.span_id: one for one in spans}

        def lines(parent: str, depth: int) -> Iterator[str]:
            for one in spans:
                if (one.parent_id if one.parent_id in ids else "") != parent:
                    continue
                notes = ["error"] if one.is_error else []
                notes += [f"link to {ids[link].name if link in ids else 'another trace'}" for link in one.links]
                worker = one.attributes.get("messaging.sidekiq.job_class", "")
                shown = f"{one.name} {worker}".strip()
                yield f"{'  ' * depth}{shown} [{one.service}, {one.kind}]{''.join(f', {note}' for note in notes)}"
                yield from lines(one.span_id, depth + 1)

        return "\n".join(lines("", 0))


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.bodies.append(body)
        if self.path == "/v1/traces":
            self.server.spans += _spans(ExportTraceServiceRequest.FromString(body))
        elif self.path == "/v1/metrics":
            for name, points in _metrics(ExportMetricsServiceRequest.FromString(body)):
                self.server.metrics.setdefault(name, []).extend(points)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


def _value(one: Any) -> Any:
    return getattr(one, one.WhichOneof("value"))


def _attributes(found: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in found}


def _spans(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for resource in request.resource_spans:
        service = _attributes(resource.resource.attributes).get("service.name", "")
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    service,
                    span.name,
                    span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    [link.span_id.hex() for link in span.links],
                    _attributes(span.attributes),
                    span.status.code == span.status.STATUS_CODE_ERROR,
                    [event.name for event in span.events],
                    span.start_time_unix_nano,
                )


def _metrics(request: ExportMetricsServiceRequest) -> Iterator[tuple[str, list[Any]]]:
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points = getattr(metric, metric.WhichOneof("data")).data_points
                yield metric.name, [(_attributes(one.attributes), one) for one in points]


def collector() -> AbstractContextManager[Collector]:
    """Run a receiver."""
    return serving(Collector())
