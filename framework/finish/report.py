"""Report failed jobs: to the handlers of the process and of the application, and to the error tracker."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import BusinessError, FlowControl, JobStoppedError, RetryError
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import UnknownClass
from framework.handlers import DeathHandler, ErrorHandler, death_handlers, error_handlers
from framework.telemetry.context import CORRELATION_ID, feature_category_of
from framework.telemetry.job_events import JobDied, job_events
from framework.telemetry.sentry import Tracker
from framework.typeguards import has_type
from framework.types import Payload
from framework.wire.job import Job

EXPECTED_ERRORS = (RetryError, FlowControl, BusinessError, JobStoppedError)
"""Errors that a job raises on purpose: error handlers do not get them, the error tracker only a ``RetryError`` that is the last."""

# Sentry keeps so many characters of a tag.
_MAX_TAG = 200


class JobReporter:
    """Error handler that reports to ``tracker``: the failure of every run, or with ``exhausted`` that of the last one only."""

    def __init__(self, tracker: Tracker, shard: str, report: Literal["every", "exhausted"] = "every") -> None:
        self._tracker = tracker
        self._shard = shard
        self._every = report == "every"

    def __call__(self, error: BaseException, facts: Mapping[str, Any]) -> None:
        """Report a failed run, unless its error is an expected one, or only the last is reported."""
        # A payload that cannot be read has no further run.
        if (self._every or "class" not in (facts.get("job") or {})) and not has_type(error, *EXPECTED_ERRORS):
            self._report(error, facts)

    def died(self, job: Job, error: BaseException) -> None:
        """Report a job that does not run again, unless the failure of its last run was reported. A death handler."""
        if has_type(error, RetryError) or not (self._every or has_type(error, *EXPECTED_ERRORS)):
            self._report(error, {"job": job, "queue": job.get("queue"), "retry_count": job.get("retry_count")})

    def _report(self, error: BaseException, facts: Mapping[str, Any]) -> None:
        job: Mapping[str, Any] = facts.get("job") or {}
        tags = self._tags(job, facts)
        self._tracker.capture(error, tags, tags.get("class", "job"))

    def _tags(self, job: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, str]:
        name = job.get("class")
        worker: Any = registry.find(name) if isinstance(name, str) else None
        found: dict[str, object] = {
            "class": name,
            "queue": facts.get("queue"),
            "jid": job.get("jid"),
            CORRELATION_ID: job.get(CORRELATION_ID),
            "feature_category": _category(job, worker.declaration()) if worker is not None else None,
            "shard": self._shard,
            "retry_count": facts.get("retry_count"),
        }
        return {tag: str(value)[:_MAX_TAG] for tag, value in found.items() if isinstance(value, str | int)}


def _category(job: Mapping[str, Any], declaration: Declaration) -> str:
    return declaration.owning_category or feature_category_of(job) or declaration.feature_category


class Handlers:
    """The handlers of the process, then those of the application. ``events`` receives what a handler raises.

    Each handler gets a copy of the job: it can change neither the stored payload nor what the next handler sees.
    """

    def __init__(self, events: "ProcessorEvents") -> None:
        self.error: list[ErrorHandler] = []
        self.death: list[DeathHandler] = []
        self._events = events

    @property
    def has_death_handlers(self) -> bool:
        """Whether anything is called when a job dies."""
        return bool(self.death or death_handlers)

    def call_error_handlers(self, error: BaseException, facts: dict[str, Any]) -> None:
        """Call every error handler."""
        for handler in (*self.error, *error_handlers):
            self.guard("error handler", partial(handler, error, {**facts, "job": dict(facts.get("job") or {})}))

    def call_death_handlers(self, job: Job, error: BaseException) -> None:
        """Call every death handler, after the event."""
        job_events.emit(JobDied(job.worker, queue=str(job.get("queue") or "")))
        for handler in (*self.death, *death_handlers):
            self.guard("death handler", partial(handler, Job(job), error))

    def guard(self, what: str, call: Callable[[], Any]) -> Any:
        """Return the result of ``call``; if it raises, report the error and return ``None``."""
        try:
            return call()
        except BaseException as failure:  # noqa: BLE001 - an error of application code must not change how the job ends
            self._events.hook_failed(what, failure)
            return None


class ProcessorEvents:
    """Receive the events of jobs, in addition to the two log lines of each. A process reports them (``ProcessEvents``)."""

    def __init__(self) -> None:
        self.handlers = Handlers(self)
        """The handlers of failures."""

    def hook_failed(self, what: str, error: BaseException) -> None:
        """A hook or handler of the application raised an error; the job goes on."""

    def trimmed(self, count: int, source: str) -> None:
        """The oldest entries of a full set, or those past its retention, were removed."""

    def job_failed(self, error: BaseException, facts: dict[str, Any]) -> None:
        """A job failed: call the error handlers."""

    def malformed(self, unit: UnitOfWork, error: BaseException) -> None:
        """A payload cannot be read; it moves to the dead set (``wire/malformed.py``)."""

    def unknown_class(self, unit: UnitOfWork, payload: Payload, outcome: UnknownClass) -> None:
        """This process lacks the class of a job; the job waits for another process, or is given up."""

    def foreign_class(self, name: str) -> None:
        """A job of another application returns to its queue."""

    def fenced(self, unit: UnitOfWork) -> None:
        """Another process owned the job before its end was written."""

    def release_failed(self, error: str) -> None:
        """Redis refused a lock, slot or status of a job that has moved."""

    def settle_failed(self, unit: UnitOfWork, error: BaseException) -> None:
        """Redis did not take the result; the processor tries again."""

    def component_died(self, component: str, error: BaseException) -> None:
        """A thread of the framework ended by an error: the process must end."""
