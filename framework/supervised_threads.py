"""Start the threads of the framework, and report each that cannot start, ends by an error, or hangs.

Without its thread a part of the framework does its work no more, while the process looks alive. A worker process passes the reports
to ``component.died``, and ends with status 1. Another process logs them, and the part starts a new thread at its next use.
"""

import logging
import math
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

OnDeath: TypeAlias = Callable[[str, BaseException], None]
"""Receives the name of a thread, and why it does its work no more."""


class ThreadStartError(RuntimeError):
    """Report a thread that the system could not start. The supervision has reported it already."""


class ThreadDiedError(Exception):
    """Report a thread that has ended without a report, for example because there was no memory for one."""


class SupervisedThread(threading.Thread):
    """A daemon thread of the framework.

    ``on_death`` receives its death, not the process. ``elastic``: the caller goes on without a thread that cannot be started, so
    only a later death is reported. With ``limit_s`` no step may last longer: ``steps`` counts the starts and ends of steps.
    """

    def __init__(
        self,
        name: str,
        target: Callable[..., object],
        *arguments: Any,
        on_death: OnDeath | None = None,
        elastic: bool = False,
        limit_s: float = math.inf,
    ) -> None:
        super().__init__(name=name, target=target, args=arguments, daemon=True)
        self.limit_s = limit_s
        self.steps = 0
        """Odd while a step runs."""
        self._on_death = on_death
        self._elastic = elastic
        self._failure: BaseException | None = None
        self._is_started = False

    def start(self) -> None:
        """Start the thread. Raises ThreadStartError."""
        # Before the start, so that a thread is found that ends before its first line.
        _running.add(self)
        try:
            super().start()
        # Without memory for a thread, MemoryError.
        except (RuntimeError, MemoryError) as error:
            _running.discard(self)
            # At the end of the interpreter no thread starts.
            if not self._elastic and not sys.is_finalizing():
                self.report(error)
            raise ThreadStartError(f"the thread {self.name} cannot be started: {error}") from error
        self._is_started = True

    def run(self) -> None:
        """Call the target."""
        try:
            super().run()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the work is not done any more
            self._failure = error
            self.report(error)
        # Not in a `finally`: a thread whose report has failed is found by `report_dead`.
        _running.discard(self)

    def report(self, error: BaseException) -> None:
        """Report why the work is not done any more."""
        (self._on_death or _on_death)(self.name, error)

    def report_if_dead(self) -> None:
        """Report a thread that has ended without a report."""
        if self._is_started and not self.is_alive() and self in _running:
            _running.discard(self)
            self.report(self._failure or ThreadDiedError("it has ended"))


def _log(name: str, error: BaseException) -> None:
    logging.getLogger("framework").error(
        "the thread %s of the framework died; the next use starts another one. Report the error", name, exc_info=error
    )


_on_death: OnDeath = _log
_held: list[tuple[str, BaseException]] = []
_running: set[SupervisedThread] = set()


def report_to(on_death: OnDeath | None) -> None:
    """Pass the reports of all threads without a receiver of their own to ``on_death``; ``None`` logs them."""
    global _on_death  # noqa: PLW0603 - one receiver per process
    _on_death = on_death or _log
    held = _held.copy()
    _held.clear()
    for name, error in held:
        _on_death(name, error)


def hold_reports() -> None:
    """Hold the reports until ``report_to`` names their receiver, which a process that starts does not have yet."""
    report_to(lambda name, error: _held.append((name, error)))


def supervised_threads() -> list[SupervisedThread]:
    """Return the running threads, and those that have ended without a report."""
    return list(_running)


# The threads are the parent's.
os.register_at_fork(after_in_child=_running.clear)
