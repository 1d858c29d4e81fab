"""Run the worker processes of a proof: under ``scripts/cluster``, or alone and restarted by the proof."""

import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.proofs.kills_jobs import QUEUE

_PATIENCE_S = 30.0
_LONGEST_LOG = 16 << 20
_MODULE = "tests.proofs.kills_jobs"


class WorkerPool(ABC):
    """Processes with ``slots`` slots each. Call ``restart_ended`` often; ``read_log`` empties a long log."""

    def __init__(
        self, scripts: Path, folder: Path, *, processes: int, slots: int, queue: str = QUEUE, module: str = _MODULE
    ) -> None:
        self.processes, self.slots = processes, slots
        self.queue, self.module = queue, ("-r", module)
        self.deaths = 0
        """The lines about a dead thread of the framework."""
        self.taken_back = 0
        """The lines about a job reclaimed from a dead process."""
        self.unexpected: list[str] = []
        """The errors in the log, and the unexpected ends of processes."""
        self._scripts = scripts
        self._log, self._errors = folder / "workers.log", folder / "workers.err"
        self._read = 0
        self._started: list[subprocess.Popen[bytes]] = []

    @abstractmethod
    def start(self) -> None:
        """Start the processes."""

    @abstractmethod
    def restart_ended(self) -> None:
        """Restart the processes that need it."""

    def kill(self, pid: int) -> None:
        """Kill one worker process with -9."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """End every process in order; any other end is unexpected."""
        for process in self._started:
            process.send_signal(signal.SIGTERM)
        for process in self._started:
            try:
                status = process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
            if status not in (0, -signal.SIGTERM):  # TERM can kill a process during its start
                self.unexpected.append(f"process {process.pid} ended with status {status} after TERM")
        self._started = []
        self.read_log()

    def read_log(self) -> None:
        """Read the new lines of the log. Empty a long log: a run of a million jobs writes gigabytes."""
        with self._log.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        self._read += len(text)
        self.deaths += text.count(b'"event_name":"component.died"')
        self.taken_back += text.count(b'"job_status":"recovered"')
        for line in text.splitlines():
            if b'"severity":"ERROR"' in line or (b'"event_name":"child.died"' in line and b'"status":-9' not in line):
                self.unexpected.append(line[:400].decode(errors="backslashreplace"))
        if self._read > _LONGEST_LOG:
            os.truncate(self._log, 0)
            self._read = 0

    def _open(self, argv: Sequence[str]) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log, self._errors.open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, *argv], stdin=subprocess.DEVNULL, stdout=log, stderr=errors, start_new_session=True
            )
        self._started.append(process)
        return process


class ClusterPool(WorkerPool):
    """One ``scripts/cluster``, which restarts its dead child processes."""

    options: tuple[str, ...] = ()
    """More options of its command line."""

    def start(self) -> None:
        size = ["--processes", str(self.processes), "--max-concurrency", str(self.slots)]
        self._open([str(self._scripts / "cluster"), self.queue, *size, *self.options, *self.module])

    def restart_ended(self) -> None:
        for process in self._started:
            if process.poll() is not None:
                self.unexpected.append(f"scripts/cluster ended with status {process.returncode}")
        self._started = [process for process in self._started if process.returncode is None]


class BarePool(WorkerPool):
    """``scripts/worker`` processes without a supervisor; only this process restarts the dead ones."""

    def start(self) -> None:
        for _ in range(self.processes):
            self._start()

    def restart_ended(self) -> None:
        for process in [process for process in self._started if process.poll() is not None]:
            self._started.remove(process)
            if process.returncode != -signal.SIGKILL:
                self.unexpected.append(f"process {process.pid} ended with status {process.returncode}")
            self._start()

    def _start(self) -> None:
        self._open([str(self._scripts / "worker"), "-q", self.queue, "-c", str(self.slots), *self.module])


def ended(pid: int) -> bool:
    """Return whether a process has ended; one that waits for its parent to reap it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return True
    return stat.rpartition(b")")[2].split()[0] in (b"Z", b"X")
