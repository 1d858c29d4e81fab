"""The port through which the client and the worker process record jobs, and ``framework.tasks`` finds the database.

Importing it loads neither SQLAlchemy nor Redis.
"""

import os
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from framework.declare import port
from framework.errors import TaskError
from framework.execute.recording import JobRecorder
from framework.feature import Late
from framework.push.job_batch import PushRecorder
from framework.version import install_extra

if TYPE_CHECKING:
    import redis

    from framework.execute.recording import ElsewhereState, RunRecord
    from framework.features.tasks.recorder import EventRecorder
    from framework.features.tasks.store import TaskStore
    from framework.push.client import Client
    from framework.push.job_batch import Destination, JobBatch
    from framework.push.protection import PayloadProtection
    from framework.settings.model import CoreSettings
    from framework.shard.shards import Shards
    from framework.types import Jid, Payload


IN_MEMORY = "sqlite://"
"""The URL of a database in memory, for tests."""


_importing = threading.RLock()
"""Held while a module of tasks is imported: SQLAlchemy has cycles, and two threads that load it at once may see a half of it. A fork
waits for it, so that no child begins with the lock taken."""
os.register_at_fork(before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release)


def missing_library(error: ModuleNotFoundError) -> TaskError:
    """Return the error of a process without the libraries of tasks."""
    return TaskError(f"{error.name} is not installed. Recorded jobs need the extra tasks: {install_extra('tasks')}")


def load_part(name: str) -> Any:
    """Import a module of tasks that loads SQLAlchemy. Raises TaskError without the extra."""
    try:
        with _importing:
            return import_module(f"{__package__}.{name}")
    except ModuleNotFoundError as error:
        raise missing_library(error) from error


class LazyRecorder(PushRecorder):
    """Record pushed jobs in the database of the settings, which is opened at the first use."""

    def __init__(
        self, settings: "CoreSettings", shards: "Shards", protection: "PayloadProtection", url: str | None = None
    ) -> None:
        self._settings = settings
        self._shards = shards
        self._protection = protection
        self._url = url
        self._lock = threading.Lock()
        self._store: TaskStore | None = None

    @property
    def is_in_memory(self) -> bool:
        """Whether it serves a test whose shards are faked."""
        return self._url == IN_MEMORY

    @property
    def shards(self) -> "Shards":
        return self._shards

    @property
    def settings(self) -> "CoreSettings":
        return self._settings

    @property
    def is_open(self) -> bool:
        """Whether this process has used the database."""
        return self._store is not None

    @property
    def store(self) -> "TaskStore":
        """The database with its writer. Raises TaskError without the libraries."""
        return self._store or self._open()

    def enqueued(self, destination: "Destination", batch: "JobBatch") -> None:
        self.store.recorder.enqueued(destination, batch)

    def not_written(self, destination: "Destination", batch: "JobBatch", error: BaseException) -> None:
        self.store.recorder.not_written(destination, batch, error)

    def written(self, destination: "Destination", batch: "JobBatch") -> None:
        self.store.recorder.written(destination, batch)

    def duplicates(self, destination: "Destination", pairs: "Sequence[tuple[Jid, Jid]]") -> None:
        self.store.recorder.duplicates(destination, pairs)

    def other_clients(self, shard: str) -> "list[redis.Redis]":
        """Return the clients of the shards but one. Opens no socket."""
        return [one.client for name, one in self._shards.items() if name != shard]

    def close(self) -> None:
        """Forget the database, and end its thread. The next use opens it again: one in memory is then empty."""
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()

    def flush(self, timeout_s: float) -> bool:
        """Write what is not durable yet; return whether that was possible in time."""
        return self._store is None or self._store.writer.flush(timeout_s)

    def serving(self, shard: str) -> "ShardRecorder":
        """Return the recorder of a worker process of this shard."""
        return ShardRecorder(self, shard)

    def _open(self) -> "TaskStore":
        with self._lock:
            if self._store is None:
                self._store = load_part("store").open_store(self._settings, self._shards, self._protection, self._url)
            store: TaskStore = self._store  # pyright: ignore[reportAssignmentType]
            return store


class ShardRecorder(JobRecorder):
    def __init__(self, lazy: LazyRecorder, shard: str) -> None:
        self._lazy = lazy
        self._shard = shard

    def open(self, payload: "Payload", queue: str) -> "RunRecord":
        return self._recorder().open(payload, queue)

    def ended_elsewhere(self, payload: "Payload", queue: str, state: "ElsewhereState", reason: str) -> None:
        self._recorder().ended_elsewhere(payload, queue, state, reason)

    def flush(self, timeout_s: float) -> bool:
        return self._lazy.flush(timeout_s)

    def _recorder(self) -> "EventRecorder":
        return self._lazy.store.recorder_of(self._shard)


RECORDER: "Late[Callable[[Any], LazyRecorder]]" = Late(f"{__name__}:open_recorder")


def open_recorder(client: "Client") -> LazyRecorder:
    return LazyRecorder(client.settings, client.shards, client.protection)


def current() -> LazyRecorder:
    """Return the recorder of the client of the process. The first use reads the configuration, as the first push does.

    Raises:
        ConfigurationError: the configuration is invalid.
    """
    return port.current().service(RECORDER)
