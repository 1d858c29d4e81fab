"""The jobs running right now, and how many have run: what the process record and the stack dump show."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from framework.declare.running import JobLogger
from framework.execute.cancellation import Cancellation, Cancellations
from framework.execute.measures import Measure, summed
from framework.fetch.unit_of_work import UnitOfWork
from framework.telemetry import logs
from framework.types import Jid


@dataclass(slots=True)
class Tally:
    """One thread's counts; only that thread writes, so no lock is taken per job."""

    processed: int = 0
    uncounted: int = 0
    """So many of them left by a script that does not count them (a retry, the dead set): the record's next beat does."""
    failed: int = 0
    classes: dict[str, Measure] = field(default_factory=dict[str, Measure])
    """What the runs of each class came to, by its wire name; those of known classes only."""

    def of(self, name: str) -> Measure:
        """Return what is counted of a class."""
        measure = self.classes.get(name)
        if measure is None:
            measure = self.classes[name] = Measure()
        return measure


class Runs:
    """What running jobs ask and what is shown of them; ``running`` lists the units that occupy a slot."""

    interrupted = False
    """What ``self.interrupted`` of a running job says: the process is stopping."""

    ending = False
    """Whether it has set a deadline to the jobs in hand too: what has not begun goes back, and what is cancelled as well."""

    overdue = False
    """Whether the deadline has passed: what gives way from now on was cut off."""

    def __init__(self, running: Callable[[], list[UnitOfWork]], cancellations: Cancellations | None = None) -> None:
        self._units = running
        self._cancellations = cancellations
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
        return {unit.run_id: (unit, int(unit.started_at)) for unit in self._units()}

    def totals(self) -> Tally:
        """Return the sums since the process started; failures count as processed too (Sidekiq's rule)."""
        with self._lock:
            tallies = self._tallies
            return Tally(
                sum(t.processed for t in tallies), sum(t.uncounted for t in tallies), sum(t.failed for t in tallies)
            )

    def measured(self) -> dict[str, Measure]:
        """Return what the runs of each class came to since the process started."""
        with self._lock:
            tables = [tally.classes for tally in self._tallies]
        return summed(tables)

    def cancellation(self, jid: Jid) -> Cancellation:
        """Return what ``self.cancelled`` of a running job looks at."""
        return Cancellation(jid) if self._cancellations is None else self._cancellations.of(jid)

    def logger(self, job: dict[str, Any]) -> JobLogger:
        """Return what ``self.logger`` of a running job is."""
        bound: Any = logs.logger(**{"class": job.get("class"), "jid": job.get("jid"), "job_status": "running"})
        return cast("JobLogger", bound)
