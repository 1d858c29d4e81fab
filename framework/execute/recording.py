"""Record the lives of tracked jobs in a worker process: nothing does unless a feature has a recorder.

A job is tracked if its payload has ``track``, or its class declares it. Other jobs have no record, and pay for none of this.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from framework.declare.declaration import Declaration
from framework.declare.options import TRACKED
from framework.finish.endings import Ending
from framework.finish.outcome import RunOutcome
from framework.finish.retry import RetryDecision
from framework.types import Payload

ElsewhereState: TypeAlias = Literal["interrupted", "quarantined", "dropped"]
"""The state of a job that is moved outside of a run."""


class Durable:
    """Tell when a record is durable: this one at once."""

    __slots__ = ()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the record is durable; return whether it is."""
        del timeout_s
        return True


class RunRecord:
    """Record one run of a job. This one records nothing."""

    __slots__ = ()

    def start(self) -> None:
        """Record that the job runs. Waits for nothing, and raises nothing."""

    def note(self, message: str, fields: Mapping[str, Any]) -> None:
        """Add a message to the story of the job. Raises nothing."""

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
        del ending, outcome, decision, on_durable, at_once
        return None


class JobRecorder:
    """Record the jobs of a worker process. This one records nothing."""

    def open(self, payload: Payload, queue: str) -> RunRecord:
        del payload, queue
        return RunRecord()

    def ended_elsewhere(self, payload: Payload, queue: str, state: ElsewhereState, reason: str) -> None:
        """Record a job that was moved outside of a run: interrupted, recovered or dropped. Raises nothing."""

    def flush(self, timeout_s: float) -> bool:
        """Write what is not durable yet; return whether that was possible in time."""
        del timeout_s
        return True


def is_recorded_job(payload: Payload, declaration: Declaration | None) -> bool:
    """Return whether a job is recorded: its payload says so, or else its class."""
    # Almost each recorded job has the field: its validator is for the values of other programs.
    return payload.get(TRACKED.field) is True or TRACKED.value_in(payload, declaration)
