"""Control the terminal: read keys without echo, use a separate screen, and restore the old state at any end."""

import os
import select
import signal
import socket
import sys
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from framework.cli.top.keys import parse_keys
from framework.cli.top.screen import ScreenLine, Size, Style

_ENTER = "\x1b[?1049h\x1b[?25l"
"""The alternate screen, and no cursor."""
_LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"
_STYLES: Mapping[Style, str] = {
    "plain": "",
    "title": "\x1b[1m",
    "heading": "\x1b[2m",
    "selected": "\x1b[7m",
    "alert": "\x1b[1;31m",
    "question": "\x1b[1;33m",
    "help": "\x1b[2m",
}
_READ_BYTES = 1_024
_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGWINCH)
_GONE = "the terminal is closed"
_WAKE = b"\0"
"""A byte that is the number of no signal."""


class TerminalSession:
    """Control the terminal within a ``with`` block, in the main thread of a process that ends after the block.

    Signals take effect in ``keys``, between two steps: INT raises KeyboardInterrupt, TERM and HUP raise SystemExit, and TSTP
    restores the terminal while the process is stopped. The class writes plain escape sequences and does not use curses: they need no
    database of terminals, and one method ends them.
    """

    def __init__(self) -> None:
        self._input = sys.stdin.fileno()
        self._output = sys.stdout.fileno()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._saved: list[Any] = []

    def __enter__(self) -> Self:
        self._saved = termios.tcgetattr(self._input)
        for number in _HANDLED:
            signal.signal(number, _no_operation)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()
        signal.set_wakeup_fd(-1)
        for number in _HANDLED:
            signal.signal(number, signal.SIG_DFL)
        self._reader.close()
        self._writer.close()

    def size(self) -> Size:
        """Return the size of the terminal now."""
        with suppress(OSError):
            columns, lines = os.get_terminal_size(self._output)
            if columns and lines:
                return Size(columns, lines)
        return Size(80, 24)

    def show(self, lines: Sequence[ScreenLine]) -> None:
        """Replace the screen. No line is longer than the screen is wide.

        Raises:
            EOFError: the terminal is gone.
        """
        drawn = "\r\n".join(f"{_STYLES[one.style]}{one.text}\x1b[0m\x1b[K" for one in lines)
        self._write(f"\x1b[H{drawn}\x1b[J")

    def wake(self) -> None:
        """End the wait of ``keys`` in the thread of the session. Call it from any thread."""
        # A full socket ends the wait too; with a closed one no thread waits.
        with suppress(OSError):
            self._writer.send(_WAKE)

    def keys(self, timeout_s: float) -> Iterator[str]:
        """Yield the keys that were pressed; wait for one, for a signal, for ``wake``, or for the time.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            SystemExit: the process is asked to stop.
            EOFError: the terminal is gone.
        """
        ready, _, _ = select.select([self._input, self._reader], [], [], timeout_s)
        if self._reader in ready:
            with suppress(BlockingIOError):
                for number in self._reader.recv(_READ_BYTES):
                    self._obey(number)
        if self._input in ready:
            try:
                data = os.read(self._input, _READ_BYTES)
            except OSError as error:
                raise EOFError(_GONE) from error
            if not data:
                raise EOFError(_GONE)
            yield from parse_keys(data)

    def _obey(self, number: int) -> None:
        match number:
            case signal.SIGINT:
                raise KeyboardInterrupt
            case signal.SIGTERM | signal.SIGHUP:
                raise SystemExit(128 + number)
            case signal.SIGTSTP:
                self._give_back()
                signal.signal(signal.SIGTSTP, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTSTP)
                # The process goes on here after CONT.
                signal.signal(signal.SIGTSTP, _no_operation)
                self._take()
            case _:
                # A new size of the terminal, or new readings: the next drawing shows them.
                pass

    def _take(self) -> None:
        # ISIG stays on: Ctrl-C and Ctrl-Z are signals.
        tty.setcbreak(self._input, termios.TCSAFLUSH)
        self._write(_ENTER)

    def _give_back(self) -> None:
        # The terminal may be gone (HUP).
        with suppress(EOFError):
            self._write(_LEAVE)
        with suppress(termios.error):
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._saved)

    def _write(self, text: str) -> None:
        data = text.encode(errors="replace")
        try:
            while data:
                data = data[os.write(self._output, data) :]
        except OSError as error:
            raise EOFError(_GONE) from error


def _no_operation(_number: int, _frame: object) -> None:
    """Exist as a handler, without which Python does not write to the wake-up descriptor."""
