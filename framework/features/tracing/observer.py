"""Read the events of jobs for the libraries that the settings turn on."""

from framework.feature import Late
from framework.features.tracing.push import traces_with_otel
from framework.settings.base import SettingsBase
from framework.telemetry.job_events import JobObserver

_OTEL: "Late[type[JobObserver]]" = Late("framework.features.tracing.instruments:OtelObserver")


def tracing_observer(settings: SettingsBase) -> JobObserver | None:
    """Return the observer for OpenTelemetry, or ``None``."""
    return _OTEL.load()() if traces_with_otel(settings) else None
