"""Share the state of a worker process with its supervisor through mapped memory.

Unlike a pipe, mapped memory cannot fill up, and a job that closes file descriptors of the framework cannot replace it with
another file. Each number is written whole, by one side only. Times are those of the host's monotonic clock, which all
processes of a host share.
"""

import mmap
import os
import tempfile
import time
from contextlib import suppress
from enum import IntEnum
from typing import Self

from framework.timings import Timings

SHARED_STATE_VARIABLE = "FRAMEWORK_SHARED_STATE"
"""Set by a supervisor to the descriptor of the memory, which is open in the process that it starts."""

_STATE, _BUSY, _MAIN_THREAD_AT, _FETCHED_AT, _HEARTBEAT_AT = range(5)
_BYTES = 5 * 8


class ProcessState(IntEnum):
    """The phase of a worker process. ``READY``: it holds its lease, and Redis has answered its first fetch."""

    STARTING = 0
    READY = 1
    QUIET = 2
    DRAINING = 3
    STOPPING = 4


# A pipe may fill, a job may close its descriptor, and a read from Redis is late: so health is in shared memory.
class SharedState:
    """The state of one process; every number is 0 at first."""

    def __init__(self, descriptor: int = -1) -> None:
        """Map the memory behind ``descriptor``, or private memory without one."""
        self._cells = memoryview(mmap.mmap(descriptor, _BYTES)).cast("d")

    @classmethod
    def create(cls) -> tuple[Self, int]:
        """Return a new state and its descriptor, for the process that will write it. Raises OSError."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("shared-state")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        try:
            os.ftruncate(descriptor, _BYTES)
            return cls(descriptor), descriptor
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def from_environment(cls) -> Self:
        """Return the state that the supervisor reads, or a private one. Call it once, before any job runs."""
        with suppress(OSError, ValueError):
            descriptor = int(os.environ.pop(SHARED_STATE_VARIABLE, ""))
            state = cls(descriptor)
            os.close(descriptor)
            return state
        return cls()

    def publish(self, state: ProcessState, busy: int, fetched_at: float | None) -> None:
        """Write the phase, the number of running jobs, and the time of the last fetch (``None``: no fetching)."""
        self._cells[_STATE] = state
        self._cells[_BUSY] = busy
        self._cells[_MAIN_THREAD_AT] = time.monotonic()
        if fetched_at is not None:
            self._cells[_FETCHED_AT] = fetched_at

    def note_heartbeat(self) -> None:
        """Record that Redis has just accepted a heartbeat."""
        self._cells[_HEARTBEAT_AT] = time.monotonic()

    def fetches(self, timings: Timings) -> bool:
        """Return whether the process fetches jobs: it says so, and Redis has answered it recently."""
        now = time.monotonic()
        return (
            self.state is ProcessState.READY
            and now - self.fetched_at <= timings.fetch_silence_limit_s
            and now - self.heartbeat_at <= timings.lease_s
        )

    @property
    def state(self) -> ProcessState:
        """The phase of the process."""
        return ProcessState(int(self._cells[_STATE]))

    @property
    def busy(self) -> int:
        """The number of running jobs."""
        return int(self._cells[_BUSY])

    @property
    def main_thread_at(self) -> float:
        """When the main thread last wrote the state; 0 before the first time."""
        return self._cells[_MAIN_THREAD_AT]

    @property
    def fetched_at(self) -> float:
        """When Redis last answered a fetch; 0: never."""
        return self._cells[_FETCHED_AT]

    @property
    def heartbeat_at(self) -> float:
        """When Redis last accepted a heartbeat; 0: never."""
        return self._cells[_HEARTBEAT_AT]
