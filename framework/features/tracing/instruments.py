"""Give OpenTelemetry the metrics of its messaging conventions, and a span of each job that a policy holds, defers or drops.

Conventions: https://opentelemetry.io/docs/specs/semconv/messaging/messaging-metrics/ (1.44, Development).
"""

from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context

from framework.features.tracing.otel import GETTER, SCOPE, SYSTEM, Attributes, publishing
from framework.telemetry.job_events import JobObserver, JobsEnqueued, RunOfJob, StreamEvent, job_events
from framework.text import error_class
from framework.version import VERSION

SENT, CONSUMED = "messaging.client.sent.messages", "messaging.client.consumed.messages"
DURATION = "messaging.process.duration"

# The buckets of the conventions end at 10 s, and jobs may last an hour.
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0)


class OtelObserver(JobObserver):
    """Count pushed jobs and runs, and make spans of jobs that were not admitted."""

    def __init__(self) -> None:
        meter = metrics.get_meter(SCOPE, VERSION)
        self._sent = meter.create_counter(SENT, "{message}", "Jobs that were pushed.")
        self._consumed = meter.create_counter(CONSUMED, "{message}", "Runs of jobs.")
        self._duration = meter.create_histogram(
            DURATION, "s", "Durations of runs.", explicit_bucket_boundaries_advisory=_BUCKETS
        )
        self._tracer = trace.get_tracer(SCOPE, VERSION)

    def happened(self, event: StreamEvent) -> None:
        """Count pushed jobs, and note the size of one on the span of its push."""
        if isinstance(event, JobsEnqueued) and event.count:
            self._sent.add(event.count, _attributes("send", event.queue, event.shard))
            span = publishing.get()
            if span is not None and len(event.sizes) == 1:
                span.set_attribute("messaging.message.body.size", event.sizes[0])
                span.set_attribute("application_worker.shard", event.shard)

    def ended(self, run: RunOfJob) -> None:
        """Count a run, or make a span of the job that has not run."""
        if not run.admitted:
            self._note_policy(run)
            return
        attributes = _attributes("process", run.queue, job_events.shard)
        if run.error is not None:
            attributes["error.type"] = error_class(run.error)
        self._consumed.add(1, attributes)
        self._duration.record(run.duration_s, attributes)

    def _note_policy(self, run: RunOfJob) -> None:
        status = run.ending.log_status
        if run.payload is None or run.declaration is None or not status:
            return
        parent = propagate.extract(run.payload, Context(), GETTER)
        attributes: Attributes = {
            "messaging.system": SYSTEM,
            "messaging.destination.name": run.queue,
            "messaging.sidekiq.job_class": run.declaration.wire_name,
            "application_worker.shard": job_events.shard,
            "application_worker.job_status": status,
        }
        self._tracer.start_span(f"{status} {run.queue}", parent, attributes=attributes).end()


def _attributes(operation: str, queue: str, shard: str) -> Attributes:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.destination.name": queue,
        "application_worker.shard": shard,
    }
