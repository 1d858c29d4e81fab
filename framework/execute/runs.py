"""The jobs running right now, and how many have run: what the process record and the stack dump show."""

import threading
import time
from dataclasses import dataclass

from framework.fetch.unit_of_work import UnitOfWork


@dataclass(slots=True)
class Tally:
    """One thread's counts; only that thread writes, so no lock is taken per job."""

    processed: int = 0
    failed: int = 0


class Runs:
    """Written by the slots' threads, read by the heartbeat."""

    cancelled = False
    """What ``self.cancelled`` of a running job says; jobs are cancelled singly by a later release."""

    interrupted = False
    """What ``self.interrupted`` of a running job says: the process is stopping."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[UnitOfWork, int]] = {}
        self._tallies: list[Tally] = []
        self._lock = threading.Lock()

    def tally(self) -> Tally:
        """Return a new tally for the calling thread."""
        tally = Tally()
        with self._lock:
            self._tallies.append(tally)
        return tally

    def begin(self, unit: UnitOfWork) -> None:
        """The calling thread starts this unit."""
        self._running[threading.get_ident()] = (unit, int(time.time()))

    def end(self) -> None:
        """The calling thread's unit has ended."""
        self._running.pop(threading.get_ident(), None)

    def running(self) -> dict[int, tuple[UnitOfWork, int]]:
        """Return thread -> (unit, start in epoch seconds)."""
        return dict(self._running)

    def totals(self) -> Tally:
        """Return the sums since the process started; failures count as processed too (Sidekiq's rule)."""
        with self._lock:
            return Tally(sum(t.processed for t in self._tallies), sum(t.failed for t in self._tallies))
