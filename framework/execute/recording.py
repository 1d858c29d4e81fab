"""The port through which a worker process records the lives of tracked jobs. ``framework.tasks`` implements it.

A job is tracked if its payload has ``track``, or its class declares it. Other jobs have no record, and pay for none of this.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias

from framework.declare.declaration import Declaration
from framework.declare.job_option import TRACKED
from framework.finish.endings import Ending
from framework.finish.outcome import RunOutcome
from framework.finish.retry import RetryDecision
from framework.types import Payload

ElsewhereState: TypeAlias = Literal["interrupted", "quarantined", "dropped"]
"""The state of a job that is moved outside of a run."""


class Durable(Protocol):
    """Tells when a record is durable."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the record is durable; return whether it is."""
        ...


class RunRecord(Protocol):
    """Records one run of a job."""

    def start(self) -> None:
        """Record that the job runs. Waits for nothing, and raises nothing."""
        ...

    def note(self, message: str, fields: Mapping[str, Any]) -> None:
        """Add a message to the story of the job. Raises nothing."""
        ...

    def end(
        self,
        ending: Ending,
        outcome: RunOutcome,
        decision: RetryDecision | None,
        *,
        on_durable: Callable[[], None] | None = None,
        at_once: bool = False,
    ) -> Durable | None:
        """Record the end of the run; ``None``: there is nothing to wait for. The job is settled when the record is durable.

        ``on_durable`` is called then, in another thread. No thread may wait for such a record. It is collected with others for some
        milliseconds, unless ``at_once``.
        """
        ...


class JobRecorder(Protocol):
    """Records the jobs of a worker process."""

    def open(self, payload: Payload, queue: str) -> RunRecord:
        """Return the record of a run of a tracked job."""
        ...

    def ended_elsewhere(self, payload: Payload, queue: str, state: ElsewhereState, reason: str) -> None:
        """Record a job that was moved outside of a run: interrupted, recovered or dropped. Raises nothing."""
        ...

    def flush(self, timeout_s: float) -> bool:
        """Write what is not durable yet; return whether that was possible in time."""
        ...


def is_recorded_job(payload: Payload, declaration: Declaration | None) -> bool:
    """Return whether a job is recorded: its payload says so, or else its class."""
    # Almost each recorded job has the field: its validator is for the values of other programs.
    return payload.get(TRACKED.field) is True or TRACKED.value_in(payload, declaration)
