"""Read the events of jobs for the libraries that the settings turn on."""

from collections.abc import Callable

from framework.feature import Late
from framework.features.tracing.push import traces_with_otel, traces_with_sentry
from framework.settings.base import SettingsBase
from framework.settings.model import CoreSettings
from framework.telemetry.job_events import JobObserver, RunOfJob, StreamEvent

_OTEL: "Late[type[JobObserver]]" = Late("framework.features.tracing.instruments:OtelObserver")
_SENTRY: "Late[Callable[[SettingsBase], JobObserver]]" = Late("framework.features.tracing.sentry:SentryObserver")


class BothObservers(JobObserver):
    """Tell two observers each event."""

    needs_starts = True

    def __init__(self, *observers: JobObserver) -> None:
        self._observers = observers

    def happened(self, event: StreamEvent) -> None:
        for one in self._observers:
            one.happened(event)

    def started(self, run: RunOfJob) -> None:
        for one in self._observers:
            one.started(run)

    def ended(self, run: RunOfJob) -> None:
        for one in self._observers:
            one.ended(run)


def tracing_observer(settings: CoreSettings) -> JobObserver | None:
    """Return the observer for OpenTelemetry and Sentry, or ``None``."""
    found = [_OTEL.load()()] if traces_with_otel(settings) else []
    if traces_with_sentry(settings):
        found.append(_SENTRY.load()(settings))
    return BothObservers(*found) if len(found) > 1 else next(iter(found), None)
