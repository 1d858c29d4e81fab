"""Record jobs that are moved outside of a run: interrupted, recovered, quarantined or dropped."""

from collections.abc import Callable
from typing import Any

from framework.declare import registry
from framework.execute.recording import ElsewhereState, JobRecorder, is_recorded_job
from framework.types import Payload


class MovedJobs:
    """Pass such jobs to the recorder of the process. ``guard`` calls a function and reports what it raises."""

    def __init__(self, guard: Callable[[str, Callable[[], Any]], Any]) -> None:
        self.recorder: JobRecorder | None = None
        self._guard = guard

    def record(self, payload: Payload, state: ElsewhereState, reason: str) -> None:
        """Record a job, if its jobs are recorded. Raises nothing."""
        recorder = self.recorder
        if recorder is None or not payload:
            return
        worker: Any = registry.find(str(payload.get("class")))
        if is_recorded_job(payload, None if worker is None else worker.declaration()):
            queue = str(payload.get("queue") or "default")
            self._guard("task events", lambda: recorder.ended_elsewhere(payload, queue, state, reason))
