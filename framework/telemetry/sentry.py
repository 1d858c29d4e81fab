"""Report errors to Sentry; ``sentry_sdk`` is loaded only when there is a DSN.

A report never contains a job's arguments: local variables are removed from every frame, whatever the application's own client
sends. The message of an exception is sent, without credentials of URLs and secrets of the settings, so the application must keep
personal data out of it.
"""

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from framework.known_secrets import known_secrets
from framework.settings.model import CoreSettings
from framework.telemetry import logs

FLUSH_S = 2.0
"""How long the end of a process waits for unsent reports."""


class Tracker(Protocol):
    """Receives error reports."""

    def capture(self, error: BaseException, tags: Mapping[str, str], transaction: str) -> None:
        """Report one error; does not wait for the network."""

    def close(self) -> None:
        """Send the remaining reports, for at most ``FLUSH_S``."""


class NoTracker:
    """The tracker without a DSN, which reports nothing and loads nothing."""

    def capture(self, error: BaseException, tags: Mapping[str, str], transaction: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class LazyTracker:
    """Open the tracker with ``open_`` at the first report; log a failing report instead of raising."""

    def __init__(self, open_: Callable[[], Tracker]) -> None:
        self._open = open_
        self._tracker: Tracker | None = None

    def capture(self, error: BaseException, tags: Mapping[str, str], transaction: str, *, on_failure: str) -> None:
        """Report one error, or write the log line ``on_failure`` when the report fails; raises nothing."""
        try:
            if self._tracker is None:
                self._tracker = self._open()
            self._tracker.capture(error, tags, transaction)
        except Exception as failure:  # noqa: BLE001 - the report must not fail what it is about
            logs.logger(**tags).error(on_failure, event_name="hook.failed", error=failure)


class SentryTracker:
    """Report through the application's Sentry client if there is one, else through a client for ``dsn``."""

    def __init__(
        self, dsn: str, environment: str, release: str | None = None, traces_sample_rate: float | None = None
    ) -> None:
        self._sdk: Any = importlib.import_module("sentry_sdk")
        if not self._sdk.get_client().is_active():
            self._sdk.init(
                dsn=dsn,
                environment=os.environ.get("SENTRY_ENVIRONMENT") or environment,
                release=release,
                # No default integrations: they would patch Redis clients, capture log lines, and send argv.
                default_integrations=False,
                auto_enabling_integrations=False,
                include_local_variables=False,
                send_default_pii=False,
                traces_sample_rate=traces_sample_rate,
                shutdown_timeout=FLUSH_S,
            )

    def capture(self, error: BaseException, tags: Mapping[str, str], transaction: str) -> None:
        """Report one error with its tags, grouped by ``transaction``."""
        with self._sdk.new_scope() as scope:
            scope.set_transaction_name(transaction, source="task")
            for name, value in tags.items():
                scope.set_tag(name, value)
            scope.add_event_processor(without_variables)
            scope.capture_exception(error)

    def close(self) -> None:
        """Send the remaining reports, for at most ``FLUSH_S``."""
        self._sdk.flush(timeout=FLUSH_S)


_of_application = False


def use_application_client() -> None:
    """Report through the client that the application has made, also without a DSN in the settings."""
    global _of_application  # noqa: PLW0603 - a fact of the process, as the client is
    _of_application = True


def reports_to_application() -> bool:
    """Return whether the application has a client of its own that knows the framework."""
    return _of_application


def open_tracker(dsn: str | None, environment: str, traces_sample_rate: float | None = None) -> Tracker:
    """Return the tracker for ``dsn`` or the application's client, or one that does nothing without both."""
    if not dsn and not _of_application:
        return NoTracker()
    return SentryTracker(dsn or "", environment, traces_sample_rate=traces_sample_rate)


def without_variables(event: dict[str, Any], _hint: dict[str, Any]) -> dict[str, Any]:
    """Remove local variables, which may hold a job's arguments, breadcrumbs and extras from an event; mask secrets in messages."""
    raised: list[Any] = [event.get("exception"), event.get("threads")]
    values: list[Any] = [value for part in raised if part for value in part.get("values", ())]
    traces: list[Any] = [value.get("stacktrace") for value in values]
    for trace in traces:
        for frame in trace["frames"] if trace else ():
            frame.pop("vars", None)
    for value in values:
        if isinstance(value.get("value"), str):
            value["value"] = known_secrets.masked(value["value"])
    for part in ("breadcrumbs", "extra"):
        event.pop(part, None)
    return event


def tracker_of(settings: CoreSettings) -> Tracker:
    """Return the error tracker of this process, which does nothing without a DSN."""
    dsn = settings.sentry.dsn
    text = dsn.get_secret_value() if dsn is not None else None
    return open_tracker(text, settings.env_name, settings.sentry.traces_sample_rate)
