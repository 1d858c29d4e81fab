"""The threads of the slots: who rests, who is being woken, and when another is hired.

The last to rest is the first to be woken: hot threads stay hot, and what is not needed sleeps. At most one wake-up is under
way at a time, and who wakes looks around and wakes the next: ten threads are never set on one job, nor upon each other.
"""

import threading
from collections import deque
from collections.abc import Callable


class Crew:
    """Threads that rest until there is work; at most ``most`` are hired."""

    hire: Callable[[], None]
    """Starts one more thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._hired = 0
        self._hiring = threading.Lock()
        self._resting: deque[threading.Lock] = deque()
        self._beds = threading.local()
        self.waking = False
        """Whether somebody has been woken and has not looked around yet."""

    @property
    def up(self) -> int:
        """How many are hired and do not rest."""
        return self._hired - len(self._resting)

    def rest(self, needed: Callable[[], bool]) -> None:
        """Sleep until woken; not at all if ``needed`` says so once everybody can see that this thread rests."""
        bed = self._bed()
        self._resting.append(bed)
        if needed():
            try:
                self._resting.remove(bed)
            except ValueError:
                pass  # woken meanwhile: the release is there or about to be
            else:
                return
        bed.acquire()
        self.waking = False

    def look_around(self) -> None:
        """A hired thread is there, and sees for itself what is to be done."""
        self.waking = False

    def wake(self) -> bool:
        """Wake one that rests, or hire one; false when everybody is up. Any thread may call it."""
        self.waking = True
        try:
            bed = self._resting.pop()
        except IndexError:
            return self._hire_one()
        bed.release()
        return True

    def wake_all(self) -> None:
        """Wake everybody: the end has come."""
        while self._resting:
            try:
                self._resting.pop().release()
            except IndexError:
                return

    def _hire_one(self) -> bool:
        with self._hiring:
            if self._hired >= self._most:
                self.waking = False
                return False
            self._hired += 1
        try:
            self.hire()
        except RuntimeError:  # no more threads to be had: those there are do the work
            with self._hiring:
                self._hired -= 1
            self.waking = False
            return False
        return True

    def _bed(self) -> threading.Lock:
        bed: threading.Lock | None = getattr(self._beds, "bed", None)
        if bed is None:
            bed = self._beds.bed = threading.Lock()
            bed.acquire()
        return bed
