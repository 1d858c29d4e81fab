"""Record and count jobs that are moved outside of a run: interrupted, recovered, quarantined or dropped."""

from collections.abc import Callable
from typing import Any

from framework.declare import registry
from framework.execute.recording import ElsewhereState, JobRecorder, is_recorded_job
from framework.telemetry.counters import counters
from framework.types import Payload

QUARANTINED_JOBS = "sidekiq_jobs_quarantined_total"
"""Jobs that moved to the dead or the interrupted set although no run of them had failed, by cause."""


def count_quarantined(worker: object, cause: str) -> None:
    """Count a quarantined job of a class; a class that this process does not know, as a foreign program may write, counts as ""."""
    name = str(worker)
    counters.add(QUARANTINED_JOBS, "" if registry.find(name) is None else name, cause=cause)


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
