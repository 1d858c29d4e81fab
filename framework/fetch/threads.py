"""The threads of the slots: who rests, who is being woken, and when another is hired.

The last to rest is the first to be woken: hot threads stay hot, and what is not needed sleeps. At most one wake-up is under
way at a time, and who wakes looks around and wakes the next: ten threads are never set on one job, nor upon each other.
"""

import threading
from collections import deque
from collections.abc import Callable


class WorkerThreads:
    """Threads that rest until there is work; at most ``most`` are hired."""

    spawn: Callable[[], None]
    """Starts one more thread."""

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._spawned = 0
        self._spawn_lock = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._thread_local = threading.local()
        self.wake_pending = False
        """Whether somebody has been woken and has not looked around yet."""

    @property
    def active(self) -> int:
        """How many are hired and do not rest."""
        return self._spawned - len(self._waiting)

    def wait(self, work_available: Callable[[], bool]) -> None:
        """Sleep until woken; not at all if ``needed`` says so once everybody can see that this thread rests."""
        bed = self._own_lock()
        self._waiting.append(bed)
        if work_available():
            try:
                self._waiting.remove(bed)
            except ValueError:
                pass  # woken meanwhile: the release is there or about to be
            else:
                return
        bed.acquire()
        self.wake_pending = False

    def check_in(self) -> None:
        """A hired thread is there, and sees for itself what is to be done."""
        self.wake_pending = False

    def notify_one(self) -> bool:
        """Wake one that rests, or hire one; false when everybody is up. Any thread may call it."""
        self.wake_pending = True
        try:
            bed = self._waiting.pop()
        except IndexError:
            return self._spawn_one()
        bed.release()
        return True

    def notify_all(self) -> None:
        """Wake everybody: the end has come."""
        while self._waiting:
            try:
                self._waiting.pop().release()
            except IndexError:
                return

    def _spawn_one(self) -> bool:
        with self._spawn_lock:
            if self._spawned >= self._max_threads:
                self.wake_pending = False
                return False
            self._spawned += 1
        try:
            self.spawn()
        except RuntimeError:  # no more threads to be had: those there are do the work
            with self._spawn_lock:
                self._spawned -= 1
            self.wake_pending = False
            return False
        return True

    def _own_lock(self) -> threading.Lock:
        bed: threading.Lock | None = getattr(self._thread_local, "bed", None)
        if bed is None:
            bed = self._thread_local.bed = threading.Lock()
            bed.acquire()
        return bed
