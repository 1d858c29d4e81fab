"""The supervisor: starts children by exec, waits for them, replaces those that die, forwards the end.

It sees a child die at once (wait), tells its guard, and starts the next: the replacement, or any other process of the
shard, takes the jobs back. It knows nothing of jobs, and nothing it does waits for Redis.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from framework.cluster.child import LONGEST_START_BACKOFF_S, Child, ChildEvent, ChildSpec, OnEvent
from framework.exit_codes import EXIT_CONFIGURATION
from framework.process.shared_state import ProcessState
from framework.process.signals import DRAIN, QUIET, STOP_NOW

_STOP_POLL_S = 0.02

KILL_MARGIN_S = 2.0
"""Seconds beyond a child's own deadline before it is killed: a job may have made it deaf to signals."""

_CLEAN = (0, -signal.SIGTERM, -STOP_NOW)
"""Statuses of a child at the end with which all is well; the others than 0: it had not heard of signals yet."""


class LeaseManager(Protocol):
    """Who tells Redis of the children."""

    def start(self, group: "Supervisor") -> None:
        """The children have been started."""

    def mark_dead(self, shard: str, identity: str) -> None:
        """This child is dead, and what it held may be taken back. Returns at once."""

    def stop(self) -> None:
        """No child is left; may wait for Redis to be told, within the deadlines of its commands."""

    @property
    def failed(self) -> bool:
        """Whether it can do its work no more: the supervisor must end."""
        ...


class Supervisor:
    """Keeps one process per spec running until ``stop``. ``guard`` is told of a death before the successor starts."""

    def __init__(self, specs: Sequence[ChildSpec], *, leases: LeaseManager, on_event: OnEvent | None = None) -> None:
        self.children = [Child(spec) for spec in specs]
        self.standby: list[Child] = []
        """Successors that do not serve yet, and the replaced, which finish their jobs."""
        self.quiet = False
        """Whether no more jobs are to be taken: who dies now is not replaced."""
        self.unclean = False
        """Whether a child did not end as it was asked to."""
        self._leases = leases
        self._on_event: OnEvent = on_event or _ignore
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._configuration_refused = False

    @property
    def failure(self) -> int | None:
        """The status with which the group must be stopped, ``None`` while all is well.

        1 when nobody tells Redis of the children any more; 78 when a child's first start was refused by the configuration,
        which no restart mends. A later one is tried again: the others go on with what they read while it is put right.
        """
        if self._configuration_refused:
            return EXIT_CONFIGURATION
        return 1 if self._leases.failed else None

    @property
    def running(self) -> int:
        """How many children run."""
        return sum(child.process is not None for child in self.children)

    @property
    def all(self) -> list[Child]:
        """The children that serve, and those beside them."""
        return [*self.children, *self.standby]

    @property
    def stopping(self) -> bool:
        """Whether the end has begun."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Start every child."""
        with self._lock:
            for child in self.children:
                self._start(child)
        self._leases.start(self)

    def poll(self) -> None:
        """Collect the dead and start their successors when their back-off is over. Call it several times a second."""
        with self._lock:
            if self._stopping.is_set():
                return
            self._reap_standby()
            for child in self.children:
                status = child.reap()
                if status is not None:
                    self._on_exit(child, status)
                if self._configuration_refused:
                    return
                if self.quiet:
                    self._send_quiet(child)
                elif child.process is None and time.monotonic() >= child.start_after:
                    child.restarts += 1
                    self._start(child)

    def run_in_thread(self, period_s: float = 0.1) -> None:
        """Call ``poll`` each ``period_s`` from a thread of its own until ``stop``."""

        def loop() -> None:
            while not self._stopping.wait(period_s):
                self.poll()

        self._thread = threading.Thread(target=loop, name="supervisor", daemon=True)
        self._thread.start()

    def start_standby(self, child: Child, spec: ChildSpec) -> Child:
        """Start a process that may replace ``child`` and return it; if it cannot be started it has none."""
        with self._lock:
            successor = Child(spec)
            successor.restarts = child.restarts + 1
            self._start(successor)
            if successor.process is not None:
                self.standby.append(successor)
            return successor

    def replace(self, child: Child, successor: Child) -> None:
        """The successor serves from now on, and ``child`` takes no more jobs and ends when those in flight have."""
        with self._lock:
            self.children[self.children.index(child)] = successor
            self.standby.remove(successor)
            if child.process is not None:
                child.draining = True
                self.standby.append(child)
                child.process.send_signal(DRAIN)
            self._on_event(ChildEvent("replaced", child.name, child.spec.shard, child.pid))

    def forward(self, number: int, shard: str | None = None) -> None:
        """Send a signal to every child, or to those of one shard."""
        with self._lock:
            for child in self.all:
                if child.process is not None and child.process.poll() is None and shard in (None, child.spec.shard):
                    child.process.send_signal(number)

    def live_pids(self, shard: str) -> dict[str, int]:
        """Return identity -> process id of the children of a shard that have not ended."""
        with self._lock:
            return {child.identity: child.pid for child in self.all if child.pid and child.spec.shard == shard}

    def kill_stuck(self, identity: str, silent_s: int) -> None:
        """End a child that lives but has not beaten for ``silent_s``; its successor starts as after any death."""
        with self._lock:
            for child in self.all:
                if child.identity == identity and child.process is not None and child.process.poll() is None:
                    self._on_event(ChildEvent("stuck", child.name, child.spec.shard, child.pid, silent_s))
                    child.process.kill()

    def stop(self, timeout_s: float = 25.0, stop_now: Callable[[], bool] | None = None) -> None:
        """End every child: TERM, wait ``timeout_s`` and a margin, then KILL. Afterwards none is left. Twice is legal.

        ``hurried`` is called all the while; when it is true, no job is waited for any longer.
        """
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self.forward(signal.SIGTERM)
        deadline = time.monotonic() + timeout_s + KILL_MARGIN_S
        told = False
        while self._any_left() and time.monotonic() < deadline:
            if stop_now is not None and stop_now() and not told:
                told = True
                self.forward(STOP_NOW)
                deadline = min(deadline, time.monotonic() + KILL_MARGIN_S)
            time.sleep(_STOP_POLL_S)
        for child in self.all:
            if child.process is not None:
                child.process.kill()
                child.process.wait()
                self._ended(child, "killed")
        self._leases.stop()

    def reap_adopted(self) -> None:
        """Take the status of dead children that are not ours; only for a process without other children of its own.

        To process 1 of a container, and to a sub-reaper, comes whatever has lost its parent, and stays a zombie until then.
        """
        own = {child.pid for child in self.all}
        with contextlib.suppress(ChildProcessError):
            while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if found.si_pid in own:
                    return
                os.waitpid(found.si_pid, 0)

    def _any_left(self) -> bool:
        self._reap_standby()
        for child in self.children:
            if child.process is not None and child.process.poll() is not None:
                self._ended(child, "stopped")
        return any(child.process is not None for child in self.all)

    def _reap_standby(self) -> None:
        with self._lock:
            for child in self.standby.copy():
                if child.process is not None and (status := child.process.poll()) is not None:
                    self._ended(
                        child, "stopped" if self.stopping else "drained" if child.draining and not status else "died"
                    )
                    self.standby.remove(child)

    def _ended(self, child: Child, kind: str) -> None:
        pid, status = child.clear_process()
        self._on_event(ChildEvent(kind, child.name, child.spec.shard, pid, status))
        self._kill_orphans(child, pid)
        if status != 0:
            self._leases.mark_dead(child.spec.shard, child.identity)
        if self.stopping and status not in _CLEAN:
            self.unclean = True

    def _start(self, child: Child) -> None:
        try:
            child.start()
        except OSError as error:  # no memory, no process table entry, no log folder: the next try may do better
            child.plan_restart(failed=True, longest_s=LONGEST_START_BACKOFF_S)
            self._on_event(ChildEvent("failed", child.name, child.spec.shard, 0, error.errno))
        else:
            self._on_event(ChildEvent("started", child.name, child.spec.shard, child.pid))

    def _send_quiet(self, child: Child) -> None:
        """A child that was still starting when all were told may not have heard it."""
        if child.process is not None and child.shared_state.state is ProcessState.READY:
            child.process.send_signal(QUIET)

    def _on_exit(self, child: Child, status: int) -> None:
        self._configuration_refused = self._configuration_refused or (
            status == EXIT_CONFIGURATION and child.restarts == 0
        )
        pid = int(child.identity.rsplit(":", 2)[1])
        self._on_event(ChildEvent("died", child.name, child.spec.shard, pid, status))
        self._kill_orphans(child, pid)
        self._leases.mark_dead(child.spec.shard, child.identity)

    def _kill_orphans(self, child: Child, pid: int) -> None:
        """Kill what is left of a dead child's process group: its jobs run again, and nobody waits for these."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
            self._on_event(ChildEvent("orphans_killed", child.name, child.spec.shard, pid))


def _ignore(_event: ChildEvent) -> None:
    """Nobody asked to be told."""
