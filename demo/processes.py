"""Run the demo's processes: a store per shard and a worker process per shard."""

import os
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from framework import ApplicationWorker
from framework.all_settings import load
from framework.cluster.child import ChildEvent, ChildSpec
from framework.cluster.runner import log_event
from framework.cluster.supervisor import Supervisor
from framework.store.embedded import EmbeddedServer, store_dir
from framework.telemetry.logs import close_server_log, open_server_log
from framework.wiring.cluster import open_supervisor

SHARDS = ("main", "queues_shard_a")
CONCURRENCY = 4
STOP_TIMEOUT_S = 10.0

_FOREIGN = (
    "REDIS_URL",
    "FRAMEWORK_SHARDS",
    "FRAMEWORK_ROUTING",
    "FRAMEWORK_QUEUES",
    "FRAMEWORK_LOGGING",
    "FRAMEWORK_TASKS",
)
"""Variables of the user's shell for another installation: the demo runs on its own stores and reads its own logs."""


class DemoProcesses:
    """Two stores and two supervised workers, which run inside the ``with`` block and end with it."""

    def __init__(
        self, root: Path, folder: Path, workers: Sequence[type[ApplicationWorker]], *, only_main: int = 0
    ) -> None:
        """Serve the queues of these classes: with one process per shard, or with ``only_main`` processes on the main shard."""
        self.folder = folder
        self._classes = workers
        main = SHARDS[0]
        copies = {f"{main}-{number}": main for number in range(1, only_main + 1)}
        self._names = copies or {shard: shard for shard in SHARDS}
        self.events: deque[ChildEvent] = deque()
        """The events of the worker processes since the last reading."""
        for name in [name for name in os.environ if name.startswith(_FOREIGN)]:
            del os.environ[name]
        # For the workers, and for this process: it pushes the first job and reads the results.
        os.environ["FRAMEWORK_VAR_DIR"] = str(folder)
        os.environ["FRAMEWORK_CONFIG_DIR"] = str(root / "config")
        os.chdir(root)
        self.stores = {shard: EmbeddedServer(store_dir(folder, shard)) for shard in SHARDS}
        self._supervisor: Supervisor | None = None

    def __enter__(self) -> Self:
        try:
            for store in self.stores.values():
                store.start()
            settings = load()  # no framework.boot(): it would warn that no process runs yet
            self._open_log()
            self._supervisor = open_supervisor(settings, self._specs(), STOP_TIMEOUT_S, self._on_event)
            self._supervisor.start()
            self._supervisor.run_in_thread()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    @property
    def logs(self) -> list[Path]:
        """Return the files the workers log to, one JSON object per line."""
        return [self._log(name) for name in self._names]

    @property
    def supervisor_log(self) -> Path:
        """Return the file in the same form with the starts and ends of worker processes."""
        return self._log("supervisor")

    @property
    def workers(self) -> list[str]:
        """Return name and process id of each worker process."""
        children = self._supervisor.children if self._supervisor else []
        return [f"{child.name} (pid {child.pid})" for child in children]

    @property
    def are_ready(self) -> bool:
        """Whether every worker process has begun to fetch jobs."""
        return all(log.exists() and b'"process.ready"' in log.read_bytes() for log in self.logs)

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the worker processes that run."""
        children = self._supervisor.children if self._supervisor else []
        return [child.pid for child in children if child.pid]

    def _specs(self) -> list[ChildSpec]:
        return [
            ChildSpec(name=name, argv=self._command(shard), shard=shard, stdout=self._log(name))
            for name, shard in self._names.items()
        ]

    def _command(self, shard: str) -> Sequence[str]:
        routes = [worker.route() for worker in self._classes]
        queues = sorted({route.queue for route in routes if route.shard == shard}) or ["default"]
        flags = [part for queue in queues for part in ("-q", queue)]
        command = [sys.executable, "-m", "framework", "worker", "--shard", shard, "-c", str(CONCURRENCY)]
        return [*command, "-t", str(int(STOP_TIMEOUT_S)), *flags]

    def _log(self, name: str) -> Path:
        return self.folder / "log" / f"{name}.log"

    def _open_log(self) -> None:
        """Write the supervisor's lines as ``cluster`` writes them, to a file: standard output shows the progress."""
        self.supervisor_log.parent.mkdir(exist_ok=True)
        descriptor = os.open(self.supervisor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        open_server_log("info", {"pid": os.getpid()}, descriptor)

    def _on_event(self, event: ChildEvent) -> None:
        log_event(event)
        self.events.append(event)

    def _close(self) -> None:
        # Workers first: a worker that stops puts its unfinished jobs back, for which it needs its store.
        if self._supervisor is not None:
            self._supervisor.stop(STOP_TIMEOUT_S)
        close_server_log()
        for store in self.stores.values():
            store.stop()
