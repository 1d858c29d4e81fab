"""Define the events of a processor, and report the outcomes that have one."""

from typing import Any, Protocol

from framework.execute.execution import Execution
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import Failed, ForeignClass, Malformed, UnknownClass
from framework.finish.retry import RetryDecision
from framework.types import Payload


class ProcessorEvents(Protocol):
    """Receive the events of jobs, in addition to the two log lines of each."""

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

    def settle_failed(self, unit: UnitOfWork, error: BaseException) -> None:
        """Redis did not take the result; the processor tries again."""

    def component_died(self, component: str, error: BaseException) -> None:
        """A thread of the framework ended by an error: the process must end."""


def report_outcome(events: ProcessorEvents, run: Execution, decision: RetryDecision | None) -> None:
    """Report a run whose outcome has an event: a failure, an unreadable payload, or a class that this process does not run."""
    unit, outcome = run.unit, run.outcome
    if isinstance(outcome, Failed):
        # The number of the line `fail`. The payload of the run has that of the failure before.
        count = None if decision is None else decision.payload["retry_count"]
        events.job_failed(outcome.error, {"job": run.payload, "queue": unit.queue, "retry_count": count})
    elif isinstance(outcome, Malformed):
        events.malformed(unit, outcome.error)
    elif run.payload is not None and isinstance(outcome, UnknownClass):
        events.unknown_class(unit, run.payload, outcome)
    elif run.payload is not None and isinstance(outcome, ForeignClass):
        events.foreign_class(run.payload["class"])
