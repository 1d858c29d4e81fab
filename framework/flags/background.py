"""Questions to code that is not ours and may raise, or hang: asked beside the work, and the last answer counts."""

import os
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from framework.telemetry.rate_limit import LogRateLimit

DEADLINE_S = 5.0
"""After so long without an answer it is told that a question hangs."""

_LOG_INTERVAL_S = 300.0

A = TypeVar("A")


class BackgroundValue(Generic[A]):
    """One question, asked again and again in a thread of its own.

    ``answer`` is the last that came, at first what it is made with. A question that hangs is not asked anew before it comes
    back: threads would pile up behind it.
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
        """Ask, unless an answer is still awaited; returns at once."""
        now = time.monotonic()
        if self._started_at is not None and self._pid == os.getpid():  # a fork has no such thread
            if now - self._started_at >= DEADLINE_S:
                self._log_limit.warning(
                    "timeout",
                    f"{self._name} has not answered for {now - self._started_at:.0f} s; its last answer counts",
                    "callback.timeout",
                    answer=str(self.value),
                )
            return
        self._started_at, self._pid = now, os.getpid()
        self._done = threading.Event()
        threading.Thread(target=self._run, args=(self._done,), name=f"inquiry {self._name}", daemon=True).start()

    def wait(self, timeout_s: float) -> None:
        """Wait for the answer to the question that is under way, if there is one, for at most so long."""
        if self._started_at is not None:
            self._done.wait(timeout_s)

    def _run(self, done: threading.Event) -> None:
        try:
            self.value = self._callback()
        except BaseException as error:  # noqa: BLE001 - whatever it raises, work goes on
            self._log_limit.error(
                "failed",
                f"{self._name} failed; its last answer counts",
                "callback.failed",
                answer=str(self.value),
                error=error,
            )
        finally:
            self._started_at = None
            done.set()
