"""What a worker process shows its supervisor: a few numbers in memory that both have mapped.

Unlike a pipe it cannot fill up, and a job that closes descriptors of ours cannot turn it into somebody else's file. Each
number is written whole, by one side only. Times are those of the host's monotonic clock, which all its processes share.
"""

import mmap
import os
import tempfile
import time
from contextlib import suppress
from enum import IntEnum
from typing import Self

SHARED_STATE_VARIABLE = "FRAMEWORK_SHARED_STATE"
"""Set by a supervisor: the descriptor of the memory, open in the process that it starts."""

_STATE, _BUSY, _MAIN_THREAD_AT, _FETCHED_AT, _HEARTBEAT_AT = range(5)
_BYTES = 5 * 8


class ProcessState(IntEnum):
    """Where a worker process is in its life. ``READY``: it holds its lease, and Redis has answered its fetch."""

    STARTING = 0
    READY = 1
    QUIET = 2
    DRAINING = 3
    STOPPING = 4


# Decision 86: workers report health through shared memory.
class SharedState:
    """The numbers of one process, all 0 at first."""

    def __init__(self, descriptor: int = -1) -> None:
        """Map the memory behind ``descriptor``; without one, some that nobody else sees."""
        self._cells = memoryview(mmap.mmap(descriptor, _BYTES)).cast("d")

    @classmethod
    def create(cls) -> tuple[Self, int]:
        """Return a new board and the descriptor to hand to the process that is to write it. Raises OSError."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("board")
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
        """Return the board that our supervisor reads, or one that nobody does. To be called once, before any job runs."""
        with suppress(OSError, ValueError):
            descriptor = int(os.environ.pop(SHARED_STATE_VARIABLE, ""))
            board = cls(descriptor)
            os.close(descriptor)
            return board
        return cls()

    def publish(self, state: ProcessState, busy: int, fetched_at: float | None) -> None:
        """Our main thread turns, so many jobs run, and jobs are fetched as of ``fetched_at`` (``None``: they are not)."""
        self._cells[_STATE] = state
        self._cells[_BUSY] = busy
        self._cells[_MAIN_THREAD_AT] = time.monotonic()
        if fetched_at is not None:
            self._cells[_FETCHED_AT] = fetched_at

    def note_heartbeat(self) -> None:
        """Redis has just taken our beat."""
        self._cells[_HEARTBEAT_AT] = time.monotonic()

    @property
    def state(self) -> ProcessState:
        """Where the process is in its life."""
        return ProcessState(int(self._cells[_STATE]))

    @property
    def busy(self) -> int:
        """How many jobs it runs."""
        return int(self._cells[_BUSY])

    @property
    def main_thread_at(self) -> float:
        """When its main thread last looked around; 0: it has not got so far."""
        return self._cells[_MAIN_THREAD_AT]

    @property
    def fetched_at(self) -> float:
        """When its queues were last looked after while Redis answered; 0: never."""
        return self._cells[_FETCHED_AT]

    @property
    def heartbeat_at(self) -> float:
        """When Redis last took its beat; 0: never."""
        return self._cells[_HEARTBEAT_AT]
