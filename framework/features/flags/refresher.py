"""Read flags again every few seconds in a thread of its own: for processes without periodic tasks, such as web servers."""

import os
import threading
import time
import weakref

from redis.exceptions import RedisError

from framework.features.flags.flag import Flag, Flags, FlagSource
from framework.features.flags.redis_flags import MAX_AGE_S
from framework.supervised_threads import SupervisedThread, ThreadStartError
from framework.telemetry import logs

FIRST_READ_TIMEOUT_S = 2.0
"""The longest wait of the first use of the flags in a process."""


class _Reader:
    """The thread that reads the flags of one process; a forked process needs another."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.unstarted = threading.Lock()
        """Taken once, by the thread of the application that starts the reader."""
        self.read_once = threading.Event()
        """Set after the first read, or when the first use has waited long enough for it."""


class RefreshedFlags(Flags):
    """Keep the flags of a source fresh from their first use on.

    The first use in a process, also in a forked one, waits for the flags, for two seconds at most. Later ones never wait: while
    the flags cannot be read, their last values count, and the log says so once.
    """

    def __init__(self, source: FlagSource, shard: str, *, period_s: float = MAX_AGE_S) -> None:
        self._source = source
        self._shard = shard
        self._period_s = period_s
        self._reader = _Reader(0)
        # One step of the interpreter adds a reader, so no lock is needed, which a fork might leave locked.
        self._readers: dict[int, _Reader] = {}
        self._failing = False

    def find(self, name: str) -> Flag | None:
        reader = self._reader
        if reader.pid != os.getpid() or not reader.read_once.is_set():
            self._wait_for_first_read()
        return self._source.find(name)

    def names(self) -> frozenset[str]:
        self._wait_for_first_read()
        return self._source.names()

    def watch(self, name: str) -> None:
        self._source.watch(name)

    @property
    def ready(self) -> bool:
        """Whether a use of the flags does not wait."""
        return self._reader.pid == os.getpid() and self._reader.read_once.is_set()

    def _wait_for_first_read(self) -> None:
        pid = os.getpid()
        self._reader = reader = self._readers.setdefault(pid, _Reader(pid))
        if reader.unstarted.acquire(blocking=False):
            # A weak reference: the thread ends when the flags are no longer used.
            arguments = (weakref.ref(self), reader)
            try:
                SupervisedThread("flags", _read_periodically, *arguments).start()
            except ThreadStartError:
                # The next use tries again; until then the flags are as they were read last.
                reader.unstarted.release()
                return
        if not reader.read_once.wait(FIRST_READ_TIMEOUT_S):
            reader.read_once.set()

    def refresh(self) -> float:
        """Read the source and return the seconds until the next read. Raises nothing."""
        try:
            self._source.read()
            self._failing = False
        except (RedisError, OSError) as error:
            if not self._failing:
                logs.logger().warning(
                    "the flags cannot be read; their last values are used. Look at the error",
                    event_name="flags.unavailable",
                    shard=self._shard,
                    error=error,
                )
            self._failing = True
        return self._period_s


def _read_periodically(flags: weakref.ref[RefreshedFlags], reader: _Reader) -> None:
    try:
        while (used := flags()) is not None:
            pause_s = used.refresh()
            del used
            reader.read_once.set()
            time.sleep(pause_s)
    except BaseException:
        # The next use starts another thread.
        reader.read_once.clear()
        reader.unstarted.release()
        raise
