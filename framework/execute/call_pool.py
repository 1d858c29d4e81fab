"""Run the steps of async jobs that wait for Redis or a database in threads, so that the event loop never waits."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

from framework.supervised_threads import SupervisedThread, ThreadStartError

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
