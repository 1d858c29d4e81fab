"""The jobs running right now, and how many have run: what the process record and the stack dump show."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from framework.declare.job_context import JobLogger
from framework.execute.cancellation import Cancellation, Cancellations
from framework.execute.class_metrics import ClassMetrics, sum_by_class
from framework.fetch.unit_of_work import UnitOfWork
from framework.telemetry import logs
from framework.types import Jid


@dataclass(slots=True)
class ThreadCounts:
    """One thread's counts; only that thread writes, so no lock is taken per job."""

    processed: int = 0
    uncounted: int = 0
    """So many of them left by a script that does not count them (a retry, the dead set): the record's next beat does."""
    failed: int = 0
    classes: dict[str, ClassMetrics] = field(default_factory=dict[str, ClassMetrics])
    """What the runs of each class came to, by its wire name; those of known classes only."""

    def for_class(self, name: str) -> ClassMetrics:
        """Return what is counted of a class."""
        measure = self.classes.get(name)
        if measure is None:
            measure = self.classes[name] = ClassMetrics()
        return measure


class RunningJobs:
    """What running jobs ask and what is shown of them; ``running`` lists the units that occupy a slot."""

    interrupted = False
    """What ``self.interrupted`` of a running job says: the process is stopping."""

    stopping = False
    """Whether it has set a deadline to the jobs in flight too: what has not begun goes back, and what is cancelled as well."""

    deadline_passed = False
    """Whether the deadline has passed: what gives way from now on was cut off."""

    def __init__(self, running: Callable[[], list[UnitOfWork]], cancellations: Cancellations | None = None) -> None:
        self._units = running
        self._cancellations = cancellations
        self._thread_counts: list[ThreadCounts] = []
        self._lock = threading.Lock()

    def new_thread_counts(self) -> ThreadCounts:
        """Return a new tally for the calling thread."""
        tally = ThreadCounts()
        with self._lock:
            self._thread_counts.append(tally)
        return tally

    def running(self) -> dict[int, tuple[UnitOfWork, int]]:
        """Return thread -> (unit, start in epoch seconds); for an async job a number that no thread has."""
        return {unit.run_id: (unit, int(unit.started_at)) for unit in self._units()}

    def totals(self) -> ThreadCounts:
        """Return the sums since the process started; failures count as processed too (Sidekiq's rule)."""
        with self._lock:
            tallies = self._thread_counts
            return ThreadCounts(
                sum(t.processed for t in tallies), sum(t.uncounted for t in tallies), sum(t.failed for t in tallies)
            )

    def class_metrics(self) -> dict[str, ClassMetrics]:
        """Return what the runs of each class came to since the process started."""
        with self._lock:
            tables = [tally.classes for tally in self._thread_counts]
        return sum_by_class(tables)

    def cancellation(self, jid: Jid) -> Cancellation:
        """Return what ``self.cancelled`` of a running job looks at."""
        return Cancellation(jid) if self._cancellations is None else self._cancellations.watch(jid)

    def logger(self, job: dict[str, Any]) -> JobLogger:
        """Return what ``self.logger`` of a running job is."""
        bound: Any = logs.logger(**{"class": job.get("class"), "jid": job.get("jid"), "job_status": "running"})
        return cast("JobLogger", bound)
