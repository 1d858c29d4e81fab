"""Make the runs of a worker process parts of traces."""

from collections.abc import Callable

from framework.execute.perform import RunSpans
from framework.feature import Late
from framework.features.tracing.push import traces_with_otel, traces_with_sentry
from framework.process.worker_parts import ProcessContext, WorkerPart

_OTEL: "Late[Callable[[str], RunSpans]]" = Late("framework.features.tracing.otel:OtelRuns")
_SENTRY: "Late[Callable[[str], RunSpans]]" = Late("framework.features.tracing.sentry:SentryRuns")


def worker_part(process: ProcessContext) -> WorkerPart:
    spans: list[RunSpans] = []
    if traces_with_otel(process.settings):
        spans.append(_OTEL.load()(process.shard.name))
    if traces_with_sentry(process.settings):
        spans.append(_SENTRY.load()(process.shard.name))
    return WorkerPart(spans=spans)
