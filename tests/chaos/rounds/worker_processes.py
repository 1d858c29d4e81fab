"""Run the worker processes of a round: bare and restarted by the round, or under ``scripts/cluster``."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DIED = "component.died"
"""The event of a process in which a thread of the framework has ended by an error."""

PATIENCE_S = 45.0
"""The time that a process may take to end after TERM before that is a finding."""


@dataclass
class Life:
    """The time in which a process was at work (monotonic seconds; ``until`` 0: it still is)."""

    since: float
    until: float = 0.0


def idle_s(lives: Iterable[Life]) -> float:
    """Return for how many seconds no process was at work, from the first that was ready to the last."""
    ordered = sorted(lives, key=lambda life: life.since)
    total_s, busy_until = 0.0, ordered[0].since if ordered else 0.0
    for life in ordered:
        total_s += max(0.0, life.since - busy_until)
        busy_until = max(busy_until, life.until or math.inf)
    return total_s


class WorkerProcesses(ABC):
    """Processes that serve the queue. ``living`` are those that logged that they are ready and have not ended."""

    def __init__(
        self, root: Path, folder: Path, env: dict[str, str], *,
        shard: str, queue: str, processes: int, concurrency: int, timeout_s: float,
    ) -> None:  # fmt: skip
        self.scripts = root / "scripts"
        self.folder = folder
        self.env = env
        self.place = (shard, queue)
        self.processes = processes
        self.options = (concurrency, timeout_s)
        self.pids: dict[int, bytes] = {}
        """Each process that was started, and its start time: the system gives its number to another process within minutes."""
        self.line_counts: Counter[str] = Counter()
        """The lines of the logs by event name, and by job status."""
        self.expected: dict[int, int] = {}
        """The exit status with which a process may end after a fault."""
        self.unexpected: list[str] = []
        """The ends without a fault."""
        self.deaths: list[str] = []
        """The dead threads of the framework in processes, by name and error."""
        self.lives: dict[int, Life] = {}
        """The working time of each process."""
        self.asleep: set[int] = set()
        """The frozen processes."""
        self._ready: set[int] = set()
        self._stopping: set[int] = set()
        self._tails: dict[Path, int] = {}
        folder.mkdir(parents=True)

    @abstractmethod
    def start(self) -> None:
        """Start the processes."""

    @abstractmethod
    def tend(self) -> None:
        """Notice ends, start successors where there is no supervisor."""

    @abstractmethod
    def stop(self) -> None:
        """End every process in order; one that does not end is killed, and counts as an unexpected end."""

    @property
    @abstractmethod
    def running(self) -> set[int]:
        """Return the worker processes that have not ended."""

    @property
    def living(self) -> list[int]:
        """Return the worker processes that are at work."""
        return sorted(self._ready & self.running)

    @property
    def awake(self) -> list[int]:
        """Return the worker processes that are at work and not frozen."""
        return [pid for pid in self.living if pid not in self.asleep]

    @property
    def at_work(self) -> list[int]:
        """Return the awake worker processes that fetch jobs: one that stops only finishes its own."""
        return [pid for pid in self.awake if pid not in self._stopping]

    def send(self, pid: int, number: int) -> None:
        """Send a signal to one process; its end by it is expected."""
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.expected[pid] = -signal.SIGKILL if number == signal.SIGKILL else 0
            self._stopping.add(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def roll(self) -> None:
        """Replace every process; ``rolled`` is one more afterwards."""
        raise NotImplementedError

    @property
    def rolled(self) -> int:
        """Return how often every process has been replaced."""
        return self.line_counts["INFO cluster.restarted"]

    def left(self) -> list[int]:
        """Return the started processes that still exist."""
        return [pid for pid, began in self.pids.items() if _alive(pid) and _began(pid) == began]

    def read_logs(self) -> list[dict[str, Any]]:
        """Read the new lines of the logs, which say which processes are ready."""
        lines: list[dict[str, Any]] = []
        for path in self.folder.glob("*.log"):
            lines += self._tail(path)
        for line in lines:
            name = line.get("event_name") or line.get("job_status")
            self.line_counts[f"{line.get('severity', '')} {name or 'other'}"] += 1
            if name == DIED:
                self.deaths.append(f"{line.get('component')} of {line.get('pid')}: {line.get('exception.message')}")
            if name == "process.ready":
                self._ready.add(int(line["pid"]))
                self.lives[int(line["pid"])] = Life(time.monotonic())
            elif name == "process.draining":
                self._ready.discard(int(line["pid"]))
        return lines

    def _tail(self, path: Path) -> list[dict[str, Any]]:
        offset = self._tails.get(path, 0)
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._tails[path] = offset + whole
        found: list[dict[str, Any]] = []
        for text in data[:whole].splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue  # a killed process left half a line, or a traceback came in between
            if isinstance(line, dict):
                found.append(line)
        return found

    def _open(self, name: str, argv: list[str]) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{name}.log").open("ab") as log, (self.folder / f"{name}.err").open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, *argv],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=errors,
                start_new_session=True,
            )
        self.pids[process.pid] = _began(process.pid)
        return process

    def _judge(self, pid: int, status: int) -> None:
        if pid in self.lives:
            self.lives[pid].until = time.monotonic()
        if self.expected.get(pid) != status:
            self.unexpected.append(f"process {pid} ended with status {status}")


class BareProcesses(WorkerProcesses):
    """``scripts/worker`` processes without a supervisor; the round starts a successor at once."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * self.processes

    def start(self) -> None:
        for slot in range(len(self._processes)):
            self._start(slot)

    def tend(self) -> None:
        self.read_logs()
        for slot, process in enumerate(self._processes):
            if process is not None and process.poll() is not None:
                self._judge(process.pid, process.returncode)
                self._start(slot)

    def stop(self) -> None:
        processes = [process for process in self._processes if process is not None]
        for process in processes:
            self.send(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE_S
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._judge(process.pid, process.returncode)
        self._processes = []
        self.read_logs()

    @property
    def running(self) -> set[int]:
        return {process.pid for process in self._processes if process is not None and process.poll() is None}

    def _start(self, slot: int) -> None:
        (shard, queue), (concurrency, timeout_s) = self.place, self.options
        worker = str(self.scripts / "worker")
        size = ["-c", str(concurrency), "-t", f"{timeout_s:g}"]
        flags = ["--shard", shard, "-q", queue, *size, "-r", "tests.chaos.rounds.jobs"]
        self._processes[slot] = self._open(f"worker-{slot}", [worker, *flags])


class ClusterProcesses(WorkerProcesses):
    """One ``scripts/cluster`` that runs the processes; its log names its children."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._cluster: subprocess.Popen[bytes] | None = None
        self._children: set[int] = set()

    def start(self) -> None:
        (shard, queue), (concurrency, timeout_s) = self.place, self.options
        size = ["--processes", str(self.processes), "--max-concurrency", str(concurrency)]
        flags = [queue, "--shard", shard, *size, "--timeout", f"{timeout_s:g}", "-r", "tests.chaos.rounds.jobs"]
        self._cluster = self._open("cluster", [str(self.scripts / "cluster"), *flags])

    def tend(self) -> None:
        for line in self.read_logs():
            pid = int(line.get("child_pid") or 0)
            if line.get("event_name") == "child.started":
                self.pids[pid] = _began(pid)
                self._children.add(pid)
            elif line.get("event_name") == "child.replaced":
                self.expected[pid] = 0
            elif line.get("event_name") in ("child.died", "child.stopped", "child.killed", "child.drained"):
                self._children.discard(pid)
                self._judge(pid, int(line.get("status") or 0))
        if self._cluster is not None and self._cluster.poll() is not None:
            self.unexpected.append(f"scripts/cluster ended with status {self._cluster.returncode}")
            self._cluster = None

    def stop(self) -> None:
        if self._cluster is None:
            return
        self.expected.update(dict.fromkeys(self._children, 0))
        self._cluster.terminate()
        try:
            status = self._cluster.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._cluster.kill()
            status = self._cluster.wait()
        self._cluster = None
        if status:
            self.unexpected.append(f"scripts/cluster ended with status {status} after TERM")
        self.tend()
        for pid in self.left():
            self.unexpected.append(f"process {pid} outlived scripts/cluster")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def roll(self) -> None:
        if self._cluster is not None:
            self._cluster.send_signal(signal.SIGUSR2)

    @property
    def running(self) -> set[int]:
        return {pid for pid in self._children if _alive(pid)}


def _alive(pid: int) -> bool:
    """Return whether it runs; one that waits for its parent to reap it does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return not Path("/proc/self/stat").exists() and _answers(pid)
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def _began(pid: int) -> bytes:
    """Return the start of a process, in the system's own unit; empty where there is none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19]
    return b""


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
