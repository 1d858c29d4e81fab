"""Questions to code that is not ours and may raise, or hang: asked beside the work, and the last answer counts."""

import os
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from framework.telemetry import logs
from framework.telemetry.repeated import Repeated

DEADLINE_S = 5.0
"""After so long without an answer it is told that a question hangs."""

_QUIET_S = 300.0

A = TypeVar("A")


class Inquiry(Generic[A]):
    """One question, asked again and again in a thread of its own.

    ``answer`` is the last that came, at first what it is made with. A question that hangs is not asked anew before it comes
    back: threads would pile up behind it.
    """

    def __init__(self, name: str, ask: Callable[[], A], first: A) -> None:
        self.answer = first
        self._name = name
        self._ask = ask
        self._asked_at: float | None = None
        self._asker = 0
        self._came = threading.Event()
        self._told = Repeated(_QUIET_S)

    def ask(self) -> None:
        """Ask, unless an answer is still awaited; returns at once."""
        now = time.monotonic()
        if self._asked_at is not None and self._asker == os.getpid():  # a fork has no such thread
            if now - self._asked_at >= DEADLINE_S and self._told.due("hangs", now):
                logs.logger().warning(
                    f"{self._name} has not answered for {now - self._asked_at:.0f} s; its last answer counts",
                    event_name="inquiry.hangs",
                    answer=str(self.answer),
                )
            return
        self._asked_at, self._asker = now, os.getpid()
        self._came = threading.Event()
        threading.Thread(target=self._listen, args=(self._came,), name=f"inquiry {self._name}", daemon=True).start()

    def wait(self, timeout_s: float) -> None:
        """Wait for the answer to the question that is under way, if there is one, for at most so long."""
        if self._asked_at is not None:
            self._came.wait(timeout_s)

    def _listen(self, came: threading.Event) -> None:
        try:
            self.answer = self._ask()
        except BaseException as error:  # noqa: BLE001 - whatever it raises, work goes on
            if count := self._told.due("fails", time.monotonic()):
                logs.logger().error(
                    f"{self._name} failed; its last answer counts",
                    event_name="inquiry.failed",
                    answer=str(self.answer),
                    count=count,
                    error=error,
                )
        finally:
            self._asked_at = None
            came.set()
