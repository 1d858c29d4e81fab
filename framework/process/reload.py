"""Restart a worker process when a Python file or a configuration file changes: ``worker --watch``, for development.

The watching process imports none of the application's code. It starts the worker as a process of its own, and stops it as an
operator does: running jobs get the deadline, the others go back to their queues. The files are found by their times and
sizes, because the standard library has nothing better on every system.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from framework.command_line import EXIT_OK, child_environment
from framework.process.signals import (
    DRAIN,
    DUMP,
    QUIET,
    STOP,
    STOP_NOW,
    SUPERVISOR_VARIABLE,
    TERMINAL_VARIABLE,
    SignalQueue,
)
from framework.text import join_names

_PERIOD_S = 0.5
# The share of the time that a look at all files may take.
_BUSY_SHARE = 0.1
# A worker that has not ended this long after its own deadline is killed.
_KILL_MARGIN_S = 5.0
_SHOWN_FILES = 3
_SKIPPED = frozenset(("__pycache__", "node_modules", "site-packages"))

_Stamp: TypeAlias = tuple[int, int, int]


class WatchedFolder(NamedTuple):
    """A folder with all folders below it, and the ends of the names of the files that count."""

    path: Path
    suffixes: tuple[str, ...]


class FileChanges:
    """Find files that have changed, are new, or are gone. Hidden folders and installed packages do not count."""

    def __init__(self, folders: Sequence[WatchedFolder]) -> None:
        self._folders = folders
        self._seen = self._look()
        self.took_s = 0.0
        """How long the last look took."""

    def check(self) -> list[str]:
        """Return the paths that have changed since the last call, sorted."""
        began = time.monotonic()
        before, self._seen = self._seen, self._look()
        self.took_s = time.monotonic() - began
        return sorted({path for path, _ in before.items() ^ self._seen.items()})

    def _look(self) -> dict[str, _Stamp]:
        return {
            entry.path: (found.st_mtime_ns, found.st_size, found.st_ino)
            for folder in self._folders
            for entry in _files(str(folder.path), folder.suffixes)
            if (found := _stat(entry)) is not None
        }


def _files(folder: str, suffixes: tuple[str, ...]) -> Iterator["os.DirEntry[str]"]:
    # A folder may be removed, or be closed to this user.
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and entry.name not in _SKIPPED:
                    yield from _files(entry.path, suffixes)
            elif entry.name.endswith(suffixes):
                yield entry


def _stat(entry: "os.DirEntry[str]") -> os.stat_result | None:
    try:
        return os.stat(entry.path)  # noqa: PTH116 - an entry has a path and no Path
    except OSError:
        return None


class Reloader:
    """Run the command ``argv`` as a child until a signal to stop; start it again at each change.

    ``timeout_s`` is the deadline of the child's jobs at a stop; ``tell`` shows a line to the developer.
    """

    def __init__(
        self,
        argv: Sequence[str],
        changes: FileChanges,
        signals: SignalQueue,
        timeout_s: float,
        tell: Callable[[str], None],
    ) -> None:
        self._argv = list(argv)
        self._changes = changes
        self._signals = signals
        self._timeout_s = timeout_s
        self._tell = tell
        self._child: subprocess.Popen[bytes] | None = None
        self._stop_signals = 0

    def run(self) -> int:
        """Return the exit status of the child at the stop. A child that ends by an error starts again at the next change."""
        self._start()
        while not self._handle_signals(max(_PERIOD_S, self._changes.took_s / _BUSY_SHARE)):
            if self._child is not None and self._child.poll() == EXIT_OK:
                return EXIT_OK
            self._report_failure()
            changed = self._changes.check()
            if changed:
                self._restart(changed)
        return self._stop()

    def _start(self) -> None:
        # Python compares the time of a module in whole seconds with that of its bytecode, so a second change within a second and
        # with the same size would have no effect.
        environment = {**os.environ, **child_environment(), "PYTHONDONTWRITEBYTECODE": "1"}
        environment[SUPERVISOR_VARIABLE] = str(os.getpid())
        # Each change of a file stops the jobs, which is no reason to quarantine them.
        environment[TERMINAL_VARIABLE] = "1"
        # In a session of its own: Ctrl-C reaches only this process, which forwards it.
        self._child = subprocess.Popen(self._argv, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)

    def _report_failure(self) -> None:
        if self._child is not None and (status := self._child.poll()) is not None:
            self._child = None
            self._tell(f"the worker has ended with status {status}; it starts again when a file changes")

    def _restart(self, changed: list[str]) -> None:
        # An editor or a git checkout writes several files: wait until they are complete.
        while more := self._wait_and_check():
            changed += more
        names = sorted({os.path.relpath(path) for path in changed})
        more_files = f" and {len(names) - _SHOWN_FILES} more" if len(names) > _SHOWN_FILES else ""
        self._tell(f"the worker restarts: {join_names(names[:_SHOWN_FILES])}{more_files} changed")
        self._stop()
        if not self._stop_signals:
            self._start()

    def _wait_and_check(self) -> list[str]:
        self._handle_signals(_PERIOD_S / 2)
        return [] if self._stop_signals else self._changes.check()

    def _handle_signals(self, timeout_s: float) -> bool:
        """Handle the received signals; return whether one of them, or an earlier one, asks to stop."""
        for number in self._signals.wait(0 if self._stop_signals else timeout_s):
            if number in (*STOP, STOP_NOW):
                self._stop_signals += 2 if number == STOP_NOW else 1
            elif number in (QUIET, DRAIN, DUMP):
                self._send(number)
        return self._stop_signals > 0

    def _stop(self) -> int:
        """Stop the child and return its status; a second signal to stop ends its wait for jobs."""
        child = self._child
        if child is None:
            return EXIT_OK
        self._send(signal.SIGTERM)
        deadline, hurried = time.monotonic() + self._timeout_s + _KILL_MARGIN_S, False
        while child.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                child.wait(_PERIOD_S / 10)
            self._handle_signals(0)
            if self._stop_signals > 1 and not hurried:
                hurried = True
                self._send(STOP_NOW)
            if time.monotonic() > deadline:
                self._send(signal.SIGKILL)
        self._child = None
        return child.returncode

    def _send(self, number: int) -> None:
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)
