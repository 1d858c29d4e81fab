"""The error tracker. ``sentry_sdk`` is loaded only when there is a DSN.

A job's arguments never leave: local variables are taken out of every frame, whatever the application's own client keeps.
The exception's message is sent as it is; it is the application's to keep people's data out of it.
"""

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from framework.telemetry import logs

FLUSH_S = 2.0
"""How long the end of a process waits for what is still to be sent."""


class Tracker(Protocol):
    """Where errors are reported."""

    def capture(self, error: BaseException, tags: Mapping[str, str], transaction: str) -> None:
        """Report one error; does not wait for the network."""

    def close(self) -> None:
        """Send what is left, for at most ``FLUSH_S``."""


class NoTracker:
    """No DSN: nothing is reported, nothing is loaded."""

    def capture(self, error: BaseException, tags: Mapping[str, str], transaction: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class LazyTracker:
    """The tracker that ``open_`` gives when something is first captured; a report that fails is told and fails nothing else."""

    def __init__(self, open_: Callable[[], Tracker]) -> None:
        self._open = open_
        self._tracker: Tracker | None = None

    def capture(self, error: BaseException, tags: Mapping[str, str], transaction: str, *, on_failure: str) -> None:
        """Report one error, or write the line ``on_failure`` with what went wrong; raises nothing."""
        try:
            if self._tracker is None:
                self._tracker = self._open()
            self._tracker.capture(error, tags, transaction)
        except Exception as failure:  # noqa: BLE001 - the report must not fail what it is about
            logs.logger(**tags).error(on_failure, event_name="hook.failed", error=failure)


class SentryTracker:
    """Reports through the application's Sentry client if it has made one, else through one made here for ``dsn``."""

    def __init__(self, dsn: str, environment: str, release: str | None = None) -> None:
        self._sdk: Any = importlib.import_module("sentry_sdk")
        if not self._sdk.get_client().is_active():
            self._sdk.init(
                dsn=dsn,
                environment=os.environ.get("SENTRY_ENVIRONMENT") or environment,
                release=release,
                # None of its own: they would patch Redis clients, capture log lines, and send argv.
                default_integrations=False,
                auto_enabling_integrations=False,
                include_local_variables=False,
                send_default_pii=False,
                shutdown_timeout=FLUSH_S,
            )

    def capture(self, error: BaseException, tags: Mapping[str, str], transaction: str) -> None:
        """Report one error with its tags, grouped under ``transaction``."""
        with self._sdk.new_scope() as scope:
            scope.set_transaction_name(transaction, source="task")
            for name, value in tags.items():
                scope.set_tag(name, value)
            scope.add_event_processor(_without_variables)
            scope.capture_exception(error)

    def close(self) -> None:
        """Send what is left, for at most ``FLUSH_S``."""
        self._sdk.flush(timeout=FLUSH_S)


def open_tracker(dsn: str | None, environment: str) -> Tracker:
    """Return the tracker for ``dsn``, or one that does nothing."""
    return SentryTracker(dsn, environment) if dsn else NoTracker()


def _without_variables(event: dict[str, Any], _hint: dict[str, Any]) -> dict[str, Any]:
    """Take the values of local variables, which hold a job's arguments, out of every frame; breadcrumbs and extras too."""
    raised: list[Any] = [event.get("exception"), event.get("threads")]
    values: list[Any] = [value for part in raised if part for value in part.get("values", ())]
    traces: list[Any] = [value.get("stacktrace") for value in values]
    for trace in traces:
        for frame in trace["frames"] if trace else ():
            frame.pop("vars", None)
    for part in ("breadcrumbs", "extra"):
        event.pop(part, None)
    return event
