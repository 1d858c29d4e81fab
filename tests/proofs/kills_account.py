"""Account for each job of a run, from the records of the killed processes alone, without Redis."""

from array import array
from dataclasses import dataclass, field

from tests.proofs.kills_jobs import Journal

_WAITING, _RUNNING, _ENDED = 0, 1, 2


@dataclass(slots=True, eq=False)
class Life:
    """One worker process, from its first record on."""

    number: int
    journal: Journal
    running: set[int] = field(default_factory=set[int])
    """Serials of the jobs in flight."""
    killed_us: int | None = None
    cut_off: int = 0
    """The jobs in flight when it was killed."""
    again: int = 0
    """The jobs that had ended in it and ran again: their acknowledgement was lost with it."""


class KillAccount:
    """The account of all records. A job is in flight when its run has started and not ended."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.lives: list[Life] = []
        self.begun = 0
        """The jobs that have started at least once."""
        self.ended = 0
        """The jobs that have ended at least once."""
        self.runs = 0
        self.killed = 0
        """The jobs in flight at a kill, summed over all kills."""
        self.killed_jobs = 0
        """The number of different killed jobs."""
        self.unexplained: list[str] = []
        """The second runs without a kill."""
        self.recoveries_us = array("Q")
        """The time from the kill to the next start, of each job that was killed in flight."""
        self._state = bytearray(jobs)
        self._once_ended = bytearray(jobs)
        self._once_killed = bytearray(jobs)
        self._life_of = array("I", bytes(4 * jobs))

    def open(self, journal: Journal) -> Life:
        """Add a process that has made its first record."""
        life = Life(len(self.lives), journal)
        self.lives.append(life)
        return life

    def read(self, life: Life) -> None:
        """Read the new records of a process."""
        for serial, ended, at_us in life.journal.fresh():
            if ended:
                self._end(life, serial)
            else:
                self._begin(life, serial, at_us)

    def mark_dead(self, life: Life, killed_us: int) -> None:
        """Mark a process dead after its last record; its jobs in flight were killed."""
        life.killed_us = killed_us
        life.cut_off = len(life.running)
        self.killed += life.cut_off
        for serial in life.running:
            if not self._once_killed[serial]:
                self._once_killed[serial] = 1
                self.killed_jobs += 1
        life.running.clear()

    @property
    def awaited(self) -> int:
        """Return the jobs that were killed in flight and have not started again."""
        return self.killed - len(self.recoveries_us)

    def lost(self) -> list[int]:
        """Return the serials that never ended."""
        return [serial for serial, ended in enumerate(self._once_ended) if not ended]

    def _begin(self, life: Life, serial: int, at_us: int) -> None:
        before, self._state[serial] = self._state[serial], _RUNNING
        former = self.lives[self._life_of[serial]]
        self._life_of[serial] = life.number
        life.running.add(serial)
        self.runs += 1
        if before == _WAITING:
            self.begun += 1
        elif former.killed_us is None or former is life:
            self.unexplained.append(f"job {serial} ran again, and process {former.journal.pid} had not been killed")
        elif before == _RUNNING:
            self.recoveries_us.append(max(0, at_us - former.killed_us))
        else:
            former.again += 1

    def _end(self, life: Life, serial: int) -> None:
        life.running.discard(serial)
        self._state[serial] = _ENDED
        if not self._once_ended[serial]:
            self._once_ended[serial] = 1
            self.ended += 1
