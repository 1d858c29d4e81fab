"""The jobs running right now, and how many have run: what the process record and the stack dump show."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from framework.declare.running import JobLogger
from framework.fetch.unit_of_work import UnitOfWork
from framework.telemetry import logs

_ASYNC = 1 << 40  # an async job has no thread of its own; its slot tells it from others


@dataclass(slots=True)
class Tally:
    """One thread's counts; only that thread writes, so no lock is taken per job."""

    processed: int = 0
    failed: int = 0


class Runs:
    """What running jobs ask and what is shown of them; ``running`` lists the units that occupy a slot."""

    cancelled = False
    """What ``self.cancelled`` of a running job says; jobs are cancelled singly by a later release."""

    interrupted = False
    """What ``self.interrupted`` of a running job says: the process is stopping."""

    ending = False
    """Whether it has set a deadline to the jobs in hand too: what has not begun goes back, and what is cancelled as well."""

    def __init__(self, running: Callable[[], list[UnitOfWork]]) -> None:
        self._units = running
        self._tallies: list[Tally] = []
        self._lock = threading.Lock()

    def tally(self) -> Tally:
        """Return a new tally for the calling thread."""
        tally = Tally()
        with self._lock:
            self._tallies.append(tally)
        return tally

    def running(self) -> dict[int, tuple[UnitOfWork, int]]:
        """Return thread -> (unit, start in epoch seconds); for an async job a number that no thread has."""
        return {unit.thread or _ASYNC + unit.slot: (unit, int(unit.started_at)) for unit in self._units()}

    def totals(self) -> Tally:
        """Return the sums since the process started; failures count as processed too (Sidekiq's rule)."""
        with self._lock:
            return Tally(sum(t.processed for t in self._tallies), sum(t.failed for t in self._tallies))

    def logger(self, job: dict[str, Any]) -> JobLogger:
        """Return what ``self.logger`` of a running job is."""
        bound: Any = logs.logger(**{"class": job.get("class"), "jid": job.get("jid"), "job_status": "running"})
        return cast("JobLogger", bound)
