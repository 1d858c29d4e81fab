"""Make pushes and runs parts of Sentry: an isolated scope per run, spans of queues, check-ins of schedules, and a filter of events.

The caller that initialises ``sentry_sdk`` imports it: the application, or the error tracker with the DSN of the settings.
"""

import hashlib
import re
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from math import ceil
from typing import Any, TypeVar

import sentry_sdk
from sentry_sdk.crons import capture_checkin
from sentry_sdk.integrations import Integration
from sentry_sdk.integrations.logging import ignore_logger
from sentry_sdk.scope import Scope

from framework.declare.declaration import Declaration
from framework.errors import BusinessError
from framework.execute.job_log import filtered_arguments
from framework.execute.perform import RunSpan, RunSpans
from framework.features.cron.entries import CronEntry, collect_entries
from framework.features.cron.payload import tick_of
from framework.features.cron.settings import CronSettings
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.endings import RETRIED
from framework.finish.outcome import SUCCEEDED, Failed, RunOutcome
from framework.push.push_plan import PushPlan, PushSpans
from framework.settings.model import CoreSettings
from framework.telemetry.job_events import JobObserver, JobsEnqueued, RunOfJob, StreamEvent
from framework.telemetry.sentry import use_application_client, without_variables
from framework.typeguards import has_type, is_mapping
from framework.types import Json, Payload
from framework.wire.context_fields import CORRELATION_ID, SENTRY_TRACE
from framework.wire.job import timestamp, whole_number

R = TypeVar("R")

ORIGIN = "auto.queue.application_worker"
_SHOWN = ("retry_count", "retry", "tags", "created_at", "enqueued_at", "bid", CORRELATION_ID)
"""The fields of a payload that events of its run have, besides class, id, queue and filtered arguments."""


class FrameworkIntegration(Integration):
    """The integration for ``sentry_sdk.init(integrations=[FrameworkIntegration()])``, in each process before its first push.

    Failed jobs are then reported through the client of the application, also without ``sentry.dsn`` in the settings.
    """

    identifier = "application_worker"
    origin = ORIGIN

    @staticmethod
    def setup_once() -> None:
        """Let the framework report through the client of the application, and send none of its own log lines as events."""
        use_application_client()
        ignore_logger("framework")


_publishing: ContextVar[Any] = ContextVar("framework_sentry_publish", default=None)
"""The span of the push in progress."""


class SentryPushes(PushSpans):
    """Spans ``queue.publish``, in the transactions of the application."""

    def push(self, plan: PushPlan, call: Callable[[], R], *, jobs: int, linked: bool, written: bool) -> R:
        del jobs, linked, written
        if sentry_sdk.get_current_span() is None:
            # Sentry drops a span outside of a transaction.
            return call()
        name = plan.declaration.wire_name
        with sentry_sdk.start_span(op="queue.publish", name=name, origin=ORIGIN) as span:
            span.set_data("messaging.system", "sidekiq")
            span.set_data("messaging.destination.name", plan.queue)
            token = _publishing.set(span)
            try:
                result = call()
            finally:
                _publishing.reset(token)
            if isinstance(result, str):
                span.set_data("messaging.message.id", result)
            return result

    def fields(self) -> Mapping[str, Json]:
        if sentry_sdk.get_current_span() is None:
            return {}
        return {SENTRY_TRACE: dict(sentry_sdk.get_current_scope().iter_trace_propagation_headers())}


class SentryRuns(RunSpans):
    """An isolation scope and a transaction ``queue.process`` for each run. Events of the run have its job as their context."""

    def __init__(self, shard: str) -> None:
        self._shard = shard

    def begin(self, payload: Payload, unit: UnitOfWork, declaration: Declaration) -> RunSpan:
        name, queue = declaration.wire_name, unit.queue
        # Set, and not entered as a block: the report of an error follows the run, in the same context, which ends with the job.
        Scope.set_current_scope(Scope.get_current_scope().fork())
        scope = Scope.get_isolation_scope().fork()
        Scope.set_isolation_scope(scope)
        scope.clear_breadcrumbs()
        scope.set_transaction_name(name, source="task")
        scope.add_event_processor(_JobOfEvents(payload, queue, declaration, self._shard))
        found = payload.get(SENTRY_TRACE)
        headers = {key: value for key, value in found.items() if isinstance(value, str)} if is_mapping(found) else {}
        transaction = sentry_sdk.continue_trace(headers, op="queue.process", name=name, source="task", origin=ORIGIN)
        for key, value in _facts(payload, unit).items():
            transaction.set_data(key, value)
        sampled = {"class": name, "queue": queue, "jid": payload.get("jid")}
        begun = sentry_sdk.start_transaction(transaction, custom_sampling_context={"job": sampled})
        begun.__enter__()
        return _SentryRun(begun)


class _SentryRun(RunSpan):
    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction

    def end(self, outcome: RunOutcome) -> None:
        failed = isinstance(outcome, Failed) and not has_type(outcome.error, BusinessError)
        self._transaction.set_status("internal_error" if failed else "ok")
        self._transaction.__exit__(None, None, None)


def _facts(payload: Payload, unit: UnitOfWork) -> Mapping[str, Any]:
    """Return what Sentry's page of queues reads."""
    retries, enqueued = whole_number(payload.get("retry_count")), timestamp(payload.get("enqueued_at"))
    facts = {
        "messaging.system": "sidekiq",
        "messaging.message.id": payload.get("jid"),
        "messaging.destination.name": unit.queue,
        "messaging.message.body.size": len(unit.data),
        # The first failure writes 0.
        "messaging.message.retry.count": 0 if retries is None else retries + 1,
    }
    if enqueued is not None:
        facts["messaging.message.receive.latency"] = round(max(0.0, time.time() - enqueued) * 1000, 3)
    return facts


class _JobOfEvents:
    """Add the job to an event of its run, and remove what may hold its arguments."""

    def __init__(self, payload: Payload, queue: str, declaration: Declaration, shard: str) -> None:
        self._payload = payload
        self._queue = queue
        self._declaration = declaration
        self._shard = shard

    def __call__(self, event: Any, hint: dict[str, Any]) -> Any:
        payload = self._payload
        job = {name: payload[name] for name in _SHOWN if name in payload}
        job |= {
            "class": self._declaration.wire_name,
            "jid": payload.get("jid"),
            "queue": self._queue,
            "shard": self._shard,
        }
        if "args" in payload:
            job["args"] = filtered_arguments(payload, self._declaration)
        event.setdefault("contexts", {})["job"] = job
        return without_variables(event, hint)


# --- check-ins of schedules --------------------------------------------------------------------------------------------

_MARGIN_MINUTES = 5
_NO_SLUG = re.compile(r"[^a-z0-9_-]+")


class SentryObserver(JobObserver):
    """Tell Sentry the sizes of pushed jobs, and with ``sentry.cron_monitors`` each run of a job of the schedule.

    A run that fails and is retried leaves its check-in in progress, until a run succeeds or the retries are used up.
    """

    def __init__(self, settings: CoreSettings) -> None:
        self._settings = CronSettings.of(settings)
        self.needs_starts = self._monitors = settings.sentry.cron_monitors
        self._entries: dict[str, CronEntry] | None = None

    def happened(self, event: StreamEvent) -> None:
        """Note the size of pushed jobs on the span of their push."""
        span = _publishing.get()
        if span is not None and isinstance(event, JobsEnqueued):
            span.set_data("messaging.message.body.size", sum(event.sizes))

    def started(self, run: RunOfJob) -> None:
        """Check in at the start of a job of the schedule."""
        self._check_in(run, "in_progress")

    def ended(self, run: RunOfJob) -> None:
        """Check in at the end."""
        if run.outcome is SUCCEEDED:
            self._check_in(run, "ok")
        elif run.error is not None and run.ending != RETRIED:
            self._check_in(run, "ok" if has_type(run.error, BusinessError) else "error")

    def _check_in(self, run: RunOfJob, status: str) -> None:
        if not self._monitors or (tick := tick_of(run.payload)) is None:
            return
        jid = str((run.payload or {}).get("jid"))
        capture_checkin(
            monitor_slug=_NO_SLUG.sub("-", tick.entry.lower()).strip("-")[:50],
            # The same for all runs of the job.
            check_in_id=hashlib.sha256(jid.encode()).hexdigest()[:32],
            status=status,
            duration=None if status == "in_progress" else run.duration_s,
            monitor_config=self._config(tick.entry),
        )

    def _config(self, name: str) -> Any:
        if self._entries is None:
            self._entries = collect_entries(self._settings)
        entry = self._entries.get(name)
        if entry is None:
            # Added at run time: its monitor is made in Sentry.
            return None
        return {
            "schedule": {"type": "crontab", "value": entry.expression.text},
            "timezone": entry.expression.zone,
            "checkin_margin": _MARGIN_MINUTES + ceil(entry.offset_s / 60),
        }
