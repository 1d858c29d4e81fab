"""Call slow or unreliable code in the background, and keep its last result."""

import os
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from framework.supervised_threads import SupervisedThread, ThreadStartError
from framework.telemetry.logs import LogRateLimit

DEADLINE_S = 5.0
"""A call that takes longer is logged."""

_LOG_INTERVAL_S = 300.0

A = TypeVar("A")


class BackgroundValue(Generic[A]):
    """Keep the last result of a callable that is called in threads of its own.

    ``value`` is the last result, at first ``initial``. No new call starts while one hangs: threads would pile up behind
    it.
    """

    def __init__(self, name: str, callback: Callable[[], A], initial: A) -> None:
        self.value = initial
        self._name = name
        self._callback = callback
        self._started_at: float | None = None
        self._pid = 0
        self._done = threading.Event()
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def refresh(self) -> None:
        """Start a call, unless one is running; return at once."""
        now = time.monotonic()
        # After a fork, the thread exists only in the parent.
        if self._started_at is not None and self._pid == os.getpid():
            if now - self._started_at >= DEADLINE_S:
                self._log_limit.warning(
                    "timeout",
                    f"{self._name} has not returned for {now - self._started_at:.0f} s; its last result is used. Shorten its calls",
                    "callback.timeout",
                    answer=str(self.value),
                )
            return
        self._started_at, self._pid = now, os.getpid()
        self._done = threading.Event()
        try:
            SupervisedThread(f"background {self._name}", self._run, self._done).start()
        except ThreadStartError:
            self._started_at = None
            self._done.set()

    def wait(self, timeout_s: float) -> None:
        """Wait for the call that is running, if there is one, for at most ``timeout_s``."""
        if self._started_at is not None:
            self._done.wait(timeout_s)

    def _run(self, done: threading.Event) -> None:
        try:
            self.value = self._callback()
        except BaseException as error:  # noqa: BLE001 - no error of the callable may stop work
            self._log_limit.error(
                "failed",
                f"{self._name} raised an error; its last result is used. Look at the error and correct the cause",
                "callback.failed",
                answer=str(self.value),
                error=error,
            )
        finally:
            self._started_at = None
            done.set()
