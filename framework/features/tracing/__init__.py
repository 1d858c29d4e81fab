"""Define the record of tracing: pushes and runs in the traces of OpenTelemetry and Sentry."""

from framework.feature import Feature, Late

TRACING = Feature(
    name="tracing",
    push=Late("framework.features.tracing.push:traced_plan"),
    worker=Late("framework.features.tracing.worker:worker_part"),
    observer=Late("framework.features.tracing.observer:tracing_observer"),
    problems=Late("framework.features.tracing.push:tracing_problems"),
)
