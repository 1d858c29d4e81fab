"""The supervisor: starts children by exec, waits for them, replaces those that die, forwards the end.

It sees a child die at once (wait), tells its guard, and starts the next: the replacement, or any other process of the
shard, takes the jobs back. It knows nothing of jobs, and nothing it does waits for Redis.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol, TypeAlias

from framework.errors import EXIT_CONFIGURATION
from framework.fetch.identity import NONCE_VARIABLE, draw_nonce, identity_of
from framework.process.signals import STOP_NOW

_FIRST_BACKOFF_S = 0.0
_LONGEST_BACKOFF_S = 30.0
_LONGEST_START_BACKOFF_S = 5.0
"""While not even a process can be started (no memory, no file descriptor): a try costs nothing, and the trouble is ours alone."""

_STEADY_S = 30.0
"""A child that lived this long before it ended by itself starts anew without back-off."""

_WORKED_S = 1.0
"""So does one that lived this long before it was killed."""

_PATIENCE = 5
"""And of those killed earlier, about so many: a job that kills is quarantined by then, and the other jobs must go on."""

_STOP_POLL_S = 0.02

KILL_MARGIN_S = 2.0
"""Seconds beyond a child's own deadline before it is killed: a job may have made it deaf to signals."""


@dataclass(frozen=True)
class ChildSpec:
    """One worker process to keep running: its command line, its shard, where its log goes (``None``: our stdout)."""

    name: str
    argv: Sequence[str]
    shard: str
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    stdout: Path | None = None


@dataclass(frozen=True, slots=True)
class ChildEvent:
    """What happened to a child: started, failed (could not be started; status = errno), died, killed (at stop), stopped,
    stuck (killed because it had not beaten for ``status`` seconds), strays (what its jobs had left running was killed).
    """

    kind: str
    name: str
    shard: str
    pid: int
    status: int | None = None


OnEvent: TypeAlias = Callable[[ChildEvent], None]


class Guard(Protocol):
    """Who tells Redis of the children."""

    def start(self, group: "Supervisor") -> None:
        """The children have been started."""

    def died(self, shard: str, identity: str) -> None:
        """This child is dead, and what it held may be taken back. Returns at once."""

    def stop(self) -> None:
        """No child is left; may wait for Redis to be told, within the deadlines of its commands."""

    @property
    def failed(self) -> bool:
        """Whether it can do its work no more: the supervisor must end."""
        ...


class Child:
    """One spec and the process that serves it now."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.name = spec.name
        self.restarts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.identity = ""
        self.started_at = 0.0
        self.start_after = 0.0
        self._failures = 0

    @property
    def pid(self) -> int:
        """The process id, 0 while there is none."""
        return self.process.pid if self.process is not None else 0

    def start(self) -> None:
        """Start the process by exec, in a session of its own: a terminal's Ctrl-C reaches the parent only, which forwards."""
        nonce = draw_nonce()
        output: IO[bytes] | None = None
        if self.spec.stdout is not None:
            self.spec.stdout.parent.mkdir(parents=True, exist_ok=True)
            output = self.spec.stdout.open("ab")
        try:
            self.process = subprocess.Popen(
                list(self.spec.argv),
                env={**os.environ, **self.spec.env, NONCE_VARIABLE: nonce},
                stdout=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            if output is not None:
                output.close()
        self.identity = identity_of(self.process.pid, nonce)
        self.started_at = time.monotonic()

    def collect(self) -> int | None:
        """Return the status of a process that ended since the last call and plan its successor, else ``None``."""
        if self.process is None or self.process.poll() is None:
            return None
        status = self.process.returncode
        self.process = None
        killed = status < 0
        failed = time.monotonic() - self.started_at < (_WORKED_S if killed else _STEADY_S)
        self.plan_restart(failed=failed, patience=_PATIENCE if killed else 0)
        return status

    def plan_restart(self, *, failed: bool, patience: int = 0, longest_s: float = _LONGEST_BACKOFF_S) -> None:
        """Decide when the next start may be: at once after the first failure, then later and later, ``patience`` failures late."""
        self._failures = self._failures + 1 if failed else 1
        growth = 0.25 * 2.0 ** (self._failures - patience)
        pause_s = _FIRST_BACKOFF_S if self._failures == 1 else min(longest_s, growth)
        self.start_after = time.monotonic() + pause_s


class Supervisor:
    """Keeps one process per spec running until ``stop``. ``guard`` is told of a death before the successor starts."""

    def __init__(self, specs: Sequence[ChildSpec], *, guard: Guard, on_event: OnEvent | None = None) -> None:
        self.children = [Child(spec) for spec in specs]
        self._guard = guard
        self._on_event: OnEvent = on_event or _ignore
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._refused = False

    @property
    def failure(self) -> int | None:
        """The status with which the group must be stopped, ``None`` while all is well.

        1 when nobody tells Redis of the children any more; 78 when a child's first start was refused by the configuration,
        which no restart mends. A later one is tried again: the others go on with what they read while it is put right.
        """
        if self._refused:
            return EXIT_CONFIGURATION
        return 1 if self._guard.failed else None

    @property
    def running(self) -> int:
        """How many children run."""
        return sum(child.process is not None for child in self.children)

    def start(self) -> None:
        """Start every child."""
        with self._lock:
            for child in self.children:
                self._start(child)
        self._guard.start(self)

    def poll(self) -> None:
        """Collect the dead and start their successors when their back-off is over. Call it several times a second."""
        with self._lock:
            if self._stopping.is_set():
                return
            for child in self.children:
                status = child.collect()
                if status is not None:
                    self._bereave(child, status)
                if self._refused:
                    return
                if child.process is None and time.monotonic() >= child.start_after:
                    child.restarts += 1
                    self._start(child)

    def run_in_thread(self, period_s: float = 0.1) -> None:
        """Call ``poll`` each ``period_s`` from a thread of its own until ``stop``."""

        def loop() -> None:
            while not self._stopping.wait(period_s):
                self.poll()

        self._thread = threading.Thread(target=loop, name="supervisor", daemon=True)
        self._thread.start()

    def forward(self, number: int, shard: str | None = None) -> None:
        """Send a signal to every child, or to those of one shard."""
        with self._lock:
            for child in self.children:
                if child.process is not None and child.process.poll() is None and shard in (None, child.spec.shard):
                    child.process.send_signal(number)

    def living(self, shard: str) -> dict[str, int]:
        """Return identity -> process id of the children of a shard that have not ended."""
        with self._lock:
            return {child.identity: child.pid for child in self.children if child.pid and child.spec.shard == shard}

    def kill_stuck(self, identity: str, silent_s: int) -> None:
        """End a child that lives but has not beaten for ``silent_s``; its successor starts as after any death."""
        with self._lock:
            for child in self.children:
                if child.identity == identity and child.process is not None and child.process.poll() is None:
                    self._on_event(ChildEvent("stuck", child.name, child.spec.shard, child.pid, silent_s))
                    child.process.kill()

    def stop(self, timeout_s: float = 25.0, hurried: Callable[[], bool] | None = None) -> None:
        """End every child: TERM, wait ``timeout_s`` and a margin, then KILL. Afterwards none is left. Twice is legal.

        When ``hurried`` is true, no job is waited for any longer.
        """
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self.forward(signal.SIGTERM)
        deadline = time.monotonic() + timeout_s + KILL_MARGIN_S
        while self._any_left() and time.monotonic() < deadline:
            if hurried is not None and hurried():
                hurried = None
                self.forward(STOP_NOW)
                deadline = min(deadline, time.monotonic() + KILL_MARGIN_S)
            time.sleep(_STOP_POLL_S)
        for child in self.children:
            if child.process is not None:
                child.process.kill()
                child.process.wait()
                self._ended(child, child.process, "killed")
        self._guard.stop()

    def reap_adopted(self) -> None:
        """Take the status of dead children that are not ours; only for a process without other children of its own.

        To process 1 of a container, and to a sub-reaper, comes whatever has lost its parent, and stays a zombie until then.
        """
        own = {child.pid for child in self.children}
        with contextlib.suppress(ChildProcessError):
            while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if found.si_pid in own:
                    return
                os.waitpid(found.si_pid, 0)

    def _any_left(self) -> bool:
        for child in self.children:
            if child.process is not None and child.process.poll() is not None:
                self._ended(child, child.process, "stopped")
        return any(child.process is not None for child in self.children)

    def _ended(self, child: Child, process: "subprocess.Popen[bytes]", kind: str) -> None:
        child.process = None
        self._on_event(ChildEvent(kind, child.name, child.spec.shard, process.pid, process.returncode))
        self._end_strays(child, process.pid)
        if process.returncode != 0:
            self._guard.died(child.spec.shard, child.identity)

    def _start(self, child: Child) -> None:
        try:
            child.start()
        except OSError as error:  # no memory, no process table entry, no log folder: the next try may do better
            child.plan_restart(failed=True, longest_s=_LONGEST_START_BACKOFF_S)
            self._on_event(ChildEvent("failed", child.name, child.spec.shard, 0, error.errno))
        else:
            self._on_event(ChildEvent("started", child.name, child.spec.shard, child.pid))

    def _bereave(self, child: Child, status: int) -> None:
        self._refused = self._refused or (status == EXIT_CONFIGURATION and child.restarts == 0)
        pid = int(child.identity.rsplit(":", 2)[1])
        self._on_event(ChildEvent("died", child.name, child.spec.shard, pid, status))
        self._end_strays(child, pid)
        self._guard.died(child.spec.shard, child.identity)

    def _end_strays(self, child: Child, pid: int) -> None:
        """Kill what is left of a dead child's process group: its jobs run again, and nobody waits for these."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
            self._on_event(ChildEvent("strays", child.name, child.spec.shard, pid))


def _ignore(_event: ChildEvent) -> None:
    """Nobody asked to be told."""
