"""Pool the worker threads of a process: which thread waits, which is woken, and when another is started.

Waiting threads form a stack (LIFO), so recently used threads run first and spare threads stay asleep. At most one wake-up
is pending. The woken thread checks in and wakes the next if there is more work, which avoids a thundering herd.
"""

import threading
from collections import deque
from collections.abc import Callable


class WorkerThreads:
    """At most ``max_threads`` threads, which wait until there is work."""

    spawn: Callable[[], None]
    """Starts one more thread."""

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._spawned = 0
        self._spawn_lock = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._thread_local = threading.local()
        self.wake_pending = False
        """Whether a thread has been woken or started and has not checked in yet."""

    @property
    def active(self) -> int:
        """The number of threads that were started and do not wait."""
        # Without a lock, so an estimate: a wrong number costs one needless or one late wake-up.
        return self._spawned - len(self._waiting)

    def wait(self, work_available: Callable[[], bool]) -> None:
        """Wait until woken; return at once if ``work_available`` is true after this thread is on the stack."""
        lock = self._own_lock()
        self._waiting.append(lock)
        # Asked after the append: a thread that makes work later than this finds this thread on the stack and wakes it.
        if work_available():
            try:
                self._waiting.remove(lock)
            except ValueError:
                # Another thread has popped the lock: its release has come or is about to.
                pass
            else:
                return
        lock.acquire()
        self.wake_pending = False

    def check_in(self) -> None:
        """Confirm the wake-up of a new thread: it looks for work itself."""
        self.wake_pending = False

    def notify_one(self) -> bool:
        """Wake one waiting thread, or start one; return false if all threads are active. Safe from any thread."""
        # Before the release: the thread that wakes up resets it.
        self.wake_pending = True
        try:
            lock = self._waiting.pop()
        except IndexError:
            return self._spawn_one()
        lock.release()
        return True

    def notify_all(self) -> None:
        """Wake every waiting thread, for the stop of the process."""
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
        except RuntimeError:  # the system has no more threads: the threads that exist do the work
            with self._spawn_lock:
                self._spawned -= 1
            self.wake_pending = False
            return False
        return True

    def _own_lock(self) -> threading.Lock:
        # One lock per thread, acquired here: the second acquire in `wait` blocks until another thread releases the lock.
        lock: threading.Lock | None = getattr(self._thread_local, "lock", None)
        if lock is None:
            lock = self._thread_local.lock = threading.Lock()
            lock.acquire()
        return lock
