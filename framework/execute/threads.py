"""Pool the worker threads of a process: which thread waits, which is woken, and when another is started.

There is one thread more than the concurrency, so that one can lead (``fetch/leader.py``) while every other runs a job.
Waiting threads form a stack (LIFO), so recently used threads run first and spare threads stay asleep. At most one wake-up
is pending. The woken thread confirms it and wakes the next if there is more work, which avoids a thundering herd.
"""

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

from framework.fetch.fetcher import Fetcher
from framework.fetch.unit_of_work import UnitOfWork
from framework.supervised_threads import SupervisedThread, ThreadStartError
from framework.wire.status_key import TrackedJob


class FetchingThreads:
    """The threads of which one fetches while another waits. This one is for code without such threads."""

    def ensure_fetching(self) -> None:
        """Make sure that a thread fetches, before code that may be slow."""

    def show_running(self, unit: UnitOfWork, tracked: TrackedJob) -> None:
        """Let the state of a tracked job that starts become ``running``; ``ensure_fetching`` follows."""


class WorkerThreads(FetchingThreads):
    """The threads that run the jobs of ``fetcher``, with the name of their capsule. Safe from any thread."""

    def __init__(self, fetcher: Fetcher, capsule: str = "") -> None:
        self._fetcher = fetcher
        self._prefix = f"{capsule}/" if capsule else ""
        self._max_threads = fetcher.in_flight.concurrency + 1
        self._work: Callable[[], None] | None = None
        self._threads: list[SupervisedThread] = []
        self._spawned = 0
        self._spawn_lock = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._thread_local = threading.local()
        self._wake_pending = False
        """Whether a thread has been woken or started and has not confirmed it yet."""

    def start(self, work: Callable[[], None]) -> None:
        """Start the first thread, which calls ``work``, as later ones do; ``work`` calls ``next`` until it returns ``None``."""
        self._work = work
        if not self._notify_one():
            raise ThreadStartError("no thread can be started; raise the limits of this system on threads and memory")

    def next(self) -> UnitOfWork | None:
        """Wait for the next job to run in the calling thread and return it; ``None`` when the process stops."""
        fetcher = self._fetcher
        while (unit := fetcher.next()) is None and not fetcher.stopped:
            self._wait(fetcher.work_available)
        return unit

    def ensure_fetching(self) -> None:
        """Make sure that a thread leads and that buffered jobs start: the calling thread is about to run a job."""
        # Without a lock, so the number is an estimate: a wrong one costs one needless or one late wake-up.
        if self._fetcher.lacks_thread(self._spawned - len(self._waiting)):
            self._wake_one()

    def show_running(self, unit: UnitOfWork, tracked: TrackedJob) -> None:
        """Let the state of a tracked job that starts become ``running``; ``ensure_fetching`` follows."""
        self._fetcher.show_running(unit, tracked)

    def request_acknowledgement(self) -> None:
        """Make a thread acknowledge units that ended outside the worker threads (async jobs)."""
        if not self._fetcher.wake_sleeping_leader():
            self._wake_one()

    def stop(self) -> None:
        """Fetch no more jobs; each thread ends after its job. May be called twice."""
        self._fetcher.stop()
        while self._waiting:
            try:
                self._waiting.pop().release()
            except IndexError:
                return

    def join(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` for a thread to end; return whether every thread has ended."""
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout_s)
                break
        return not any(thread.is_alive() for thread in self._threads)

    def _wait(self, work_available: Callable[[], bool]) -> None:
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
        self._wake_pending = False

    def _wake_one(self) -> None:
        """Wake a waiting thread, start one, or wake the leader.

        If no thread leads either, the one thread without a job makes a round trip, and looks for jobs after it.
        """
        if not self._wake_pending and not self._notify_one():
            self._fetcher.wake_sleeping_leader()

    def _notify_one(self) -> bool:
        """Wake one waiting thread, or start one; return false if all threads are active."""
        # Before the release: the thread that wakes up resets it.
        self._wake_pending = True
        try:
            lock = self._waiting.pop()
        except IndexError:
            return self._spawn_one()
        lock.release()
        return True

    def _spawn_one(self) -> bool:
        # Without the lock first: while all threads run jobs, each job comes here.
        if self._spawned >= self._max_threads:
            self._wake_pending = False
            return False
        with self._spawn_lock:
            number = self._spawned
            if number >= self._max_threads:
                self._wake_pending = False
                return False
            self._spawned += 1
        try:
            self._start_thread(f"{self._prefix}processor-{number}")
        except RuntimeError:
            # The system has no more threads: the existing threads do the work.
            with self._spawn_lock:
                self._spawned -= 1
            self._wake_pending = False
            return False
        return True

    def _start_thread(self, name: str) -> None:
        # Without a further thread the others do the work.
        thread = SupervisedThread(name, self._run, elastic=bool(self._threads))
        thread.start()
        self._threads.append(thread)

    def _run(self) -> None:
        # A new thread looks for work itself.
        self._wake_pending = False
        assert self._work is not None, "start has been called"  # noqa: S101
        self._work()

    def _own_lock(self) -> threading.Lock:
        # One lock per thread, acquired here: the second acquire in `_wait` blocks until another thread releases the lock.
        lock: threading.Lock | None = getattr(self._thread_local, "lock", None)
        if lock is None:
            lock = self._thread_local.lock = threading.Lock()
            lock.acquire()
        return lock


Call: TypeAlias = Callable[[], object]


# A ThreadPoolExecutor does not notice that one of its threads has died: with one thread, every later call would wait for ever.
class CallPool:
    """At most ``max_threads`` threads, started on demand. An error of a call ends its thread, and so the process."""

    def __init__(self, name: str, max_threads: int = 1) -> None:
        self._name = name
        self._max_threads = max_threads
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._unfinished = 0

    def submit(self, call: Call) -> None:
        """Run ``call`` in a thread. Raises ThreadStartError if there is no thread, and none can be started."""
        with self._lock:
            if self._threads <= self._unfinished and self._threads < self._max_threads:
                self._start_thread()
            self._unfinished += 1
        self._calls.put(call)

    @property
    def idle(self) -> bool:
        """Whether every call has ended."""
        return not self._unfinished

    def close(self) -> None:
        """End the threads after the submitted calls."""
        for _ in range(self._threads):
            self._calls.put(None)

    def _start_thread(self) -> None:
        try:
            SupervisedThread(self._name, self._run, elastic=bool(self._threads)).start()
        except ThreadStartError:
            # Later, or by the threads that there are.
            if not self._threads:
                raise
        else:
            self._threads += 1

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            finally:
                # Else the arguments of the last call would stay in memory until the next.
                del call
                with self._lock:
                    self._unfinished -= 1
