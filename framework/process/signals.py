"""Signals as bytes on a socket: a handler does nothing, the main thread reads (a handler that works can lose a job)."""

import contextlib
import os
import select
import signal
import socket
from collections.abc import Iterable, Iterator

STOP = (signal.SIGTERM, signal.SIGINT)
STOP_NOW = signal.SIGQUIT
"""Stop, and wait for no job: what a second STOP says to a process without a supervisor, and a supervisor to its children.

A second TERM says nothing to these: whoever stops the whole group (systemd, a container's end) sends one, the supervisor another.
"""

QUIET = signal.SIGTSTP
"""Take no more jobs. USR1, Sidekiq's older word for it, is taken for it: deploy scripts live long."""

DRAIN = signal.SIGUSR2
"""Take no more jobs and end when those in flight have; STOP then sets them the ordinary deadline. To a supervisor: replace all."""

DUMP = signal.SIGTTIN
HANG_UP = signal.SIGHUP
"""Its terminal has gone. What was started in one stops; without one it is asked to open its log anew, which is stdout."""

SWEEP = signal.SIGURG
"""From the supervisor: a process of your shard died, look after its jobs now. Ignored where no handler is installed yet."""

_HANDLED = (*STOP, STOP_NOW, QUIET, signal.SIGUSR1, DRAIN, DUMP, HANG_UP, SWEEP)
_ACCEPTED_BY_NAME = {number.name.removeprefix("SIG"): int(number) for number in (*STOP, QUIET, DUMP)}


def accepted_signals(names: Iterable[str]) -> list[int]:
    """Return the signals among those whose names a dashboard has left in Redis; strangers write there, so no others count."""
    return [_ACCEPTED_BY_NAME[name] for name in names if name in _ACCEPTED_BY_NAME]


class SignalQueue:
    """Received signals in order; ``put`` adds one by hand (a dashboard asked, a thread died)."""

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
            if number != HANG_UP or signal.getsignal(number) is not signal.SIG_IGN:  # ignored means: started with nohup
                signal.signal(number, _no_operation)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=_reset_in_child)

    def put(self, number: int) -> None:
        """Queue a signal number; safe from any thread."""
        with contextlib.suppress(BlockingIOError):
            self._writer.send(bytes((number,)))

    @property
    def damaged(self) -> bool:
        """Whether our descriptors were closed under us: their numbers may stand for anything by now."""
        return _file_of(self._reader) != self._file

    def wait(self, timeout_s: float | None) -> Iterator[int]:
        """Wait for signals, at most ``timeout_s``; yield what came."""
        try:
            ready, _, _ = select.select([self._reader], [], [], timeout_s)
        except OSError:
            return  # see ``damaged``
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
    """A child that a job forks has signals of its own: what is sent to it must not stop us, and must stop it."""
    signal.set_wakeup_fd(-1)
    for number in _HANDLED:
        signal.signal(number, signal.SIG_DFL)


def _no_operation(_number: int, _frame: object) -> None:
    """A handler must exist for the wake-up descriptor to be written."""
