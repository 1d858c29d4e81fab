"""Receive signals as bytes on a socket that the main thread reads.

The handlers do nothing, because a handler that interrupts the fetch path can lose a job.
"""

import atexit
import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
from collections.abc import Iterable, Iterator

from framework.command_line import EXIT_FAILED

STOP = (signal.SIGTERM, signal.SIGINT)
STOP_NOW = signal.SIGQUIT
"""Stop without waiting for jobs; a supervisor sends it to its children, and a second STOP means it without a supervisor.

A child ignores a second TERM: systemd or a container runtime sends one to the whole group, and the supervisor another.
"""

QUIET = signal.SIGTSTP
"""Fetch no more jobs. USR1, Sidekiq's older signal for it, is an alias, because deploy scripts live long."""

DRAIN = signal.SIGUSR2
"""Fetch no more jobs and end after the jobs in flight; a STOP then sets the usual deadline. A supervisor replaces all children."""

DUMP = signal.SIGTTIN
HANG_UP = signal.SIGHUP
"""The terminal is closed: a process that was started in one stops. Without one, it is a request to reopen the log (stdout)."""

SWEEP = signal.SIGURG
"""The supervisor reports that a process of the shard has died: sweep now. Ignored before the handlers are installed."""

TERMINAL_VARIABLE = "FRAMEWORK_AT_TERMINAL"
"""Set by a supervisor that was started at a terminal; its children have no terminal."""

_HANDLED = (*STOP, STOP_NOW, QUIET, signal.SIGUSR1, DRAIN, DUMP, HANG_UP, SWEEP)
_ACCEPTED_BY_NAME = {number.name.removeprefix("SIG"): int(number) for number in (*STOP, QUIET, DUMP)}

SUPERVISOR_VARIABLE = "FRAMEWORK_SUPERVISOR_PID"
"""Set by a supervisor to its own process id. ``getppid`` alone may already return another process's id."""

_PR_SET_PDEATHSIG = 1


def at_terminal() -> bool:
    """Return whether this process, or its supervisor, was started at a terminal."""
    return os.isatty(0) or TERMINAL_VARIABLE in os.environ


def accepted_signals(names: Iterable[str]) -> list[int]:
    """Return the signals that a dashboard may request through Redis; any client can write there, so all others are ignored."""
    return [_ACCEPTED_BY_NAME[name] for name in names if name in _ACCEPTED_BY_NAME]


class SignalQueue:
    """The received signals in order; ``put`` adds one without the system (a dashboard's request, a dead thread)."""

    def __init__(self) -> None:
        self._aliases = {int(signal.SIGUSR1): int(QUIET)} | (
            {int(HANG_UP): int(signal.SIGTERM)} if os.isatty(0) else {}
        )
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._file = _file_of(self._reader)

    def install(self) -> None:
        """Catch TERM, INT, QUIT, TSTP, USR1, USR2, TTIN, HUP and URG from now on. Main thread only."""
        for number in _HANDLED:
            # ``nohup`` starts a process with HUP ignored.
            if number != HANG_UP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _no_operation)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=_reset_in_child)
        # Also keeps the sockets open until then: Python writes to the descriptor at each signal.
        atexit.register(self.uninstall)

    def uninstall(self) -> None:
        """Ignore later signals: the process ends. Main thread only."""
        signal.set_wakeup_fd(-1)

    def put(self, number: int) -> None:
        """Queue a signal number; safe from any thread."""
        with contextlib.suppress(BlockingIOError):
            self._writer.send(bytes((number,)))

    def close(self) -> None:
        """Close the descriptors; later signals are lost."""
        self._reader.close()
        self._writer.close()

    @property
    def damaged(self) -> bool:
        """Whether a job has closed this queue's descriptors, so that their numbers may belong to other files."""
        return _file_of(self._reader) != self._file

    def wait(self, timeout_s: float | None) -> Iterator[int]:
        """Wait for signals, at most ``timeout_s``; yield the received ones."""
        try:
            ready, _, _ = select.select([self._reader], [], [], timeout_s)
        except OSError:
            # See ``damaged``.
            return
        if ready:
            with contextlib.suppress(BlockingIOError):
                for number in self._reader.recv(256):
                    yield self._aliases.get(number, number)


def _file_of(opened: socket.socket) -> tuple[int, int] | None:
    try:
        found = os.fstat(opened.fileno())
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _reset_in_child() -> None:
    """Restore the default handlers in a child that a job forks: a signal to the child must stop the child only."""
    signal.set_wakeup_fd(-1)
    for number in _HANDLED:
        signal.signal(number, signal.SIG_DFL)


def _no_operation(_number: int, _frame: object) -> None:
    """Exist as a handler, without which Python does not write to the wake-up descriptor."""


def bind_to_supervisor() -> int | None:
    """Return the process id of the supervisor, or ``None`` without one. Call it once, before anything else.

    From then on Linux sends TERM to this process when the supervisor dies, even while an import hangs. (To be exact: when the
    supervisor's thread ends that started this process, so that thread must live as long as the supervisor.) A process
    whose supervisor has already died exits here.
    """
    supervisor = os.environ.pop(SUPERVISOR_VARIABLE, "")
    if not supervisor.isdecimal():
        return None
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(supervisor):
        sys.exit(EXIT_FAILED)
    return int(supervisor)
