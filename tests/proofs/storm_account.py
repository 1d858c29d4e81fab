"""What became of each job of the storm, from the records of the killed processes alone: no key in Redis takes part."""

from array import array
from dataclasses import dataclass, field

from tests.proofs.storm_jobs import Journal

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
    """Jobs in flight when it was killed."""
    again: int = 0
    """Jobs that had ended in it and ran again: their acknowledgement died with it."""


class StormAccount:
    """Takes in records. A job is in flight when its run has begun and not ended."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.lives: list[Life] = []
        self.begun = 0
        """Jobs that have begun at least once."""
        self.ended = 0
        """Jobs that have ended at least once."""
        self.runs = 0
        self.killed = 0
        """Jobs in flight at a kill, summed over all kills."""
        self.struck = 0
        """Different jobs among them."""
        self.unexplained: list[str] = []
        """Second runs that no kill caused."""
        self.recoveries_us = array("Q")
        """From the kill to the next begin, of each job that was killed in flight."""
        self._state = bytearray(jobs)
        self._once_ended = bytearray(jobs)
        self._once_killed = bytearray(jobs)
        self._life_of = array("I", bytes(4 * jobs))

    def open(self, journal: Journal) -> Life:
        """A process has made its first record."""
        life = Life(len(self.lives), journal)
        self.lives.append(life)
        return life

    def read(self, life: Life) -> None:
        """Take in what a process has recorded since."""
        for serial, ended, at_us in life.journal.fresh():
            if ended:
                self._end(life, serial)
            else:
                self._begin(life, serial, at_us)

    def mark_dead(self, life: Life, killed_us: int) -> None:
        """A process is dead, its last record taken in; what was in flight in it has been killed."""
        life.killed_us = killed_us
        life.cut_off = len(life.running)
        self.killed += life.cut_off
        for serial in life.running:
            if not self._once_killed[serial]:
                self._once_killed[serial] = 1
                self.struck += 1
        life.running.clear()

    @property
    def awaited(self) -> int:
        """Jobs that were killed in flight and have not begun again."""
        return self.killed - len(self.recoveries_us)

    def lost(self) -> list[int]:
        """Serials that never ended."""
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
