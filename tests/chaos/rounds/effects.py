"""Record the effects of jobs, without the framework, in a file per process.

Each record is one ``write`` to a file opened for appending, so a killed process leaves complete records only. It names
the worker process of the job, also where the job runs in a process of its own: faults hit worker processes.
"""

import os
import struct
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

FOLDER = "CHAOS_EFFECTS"
"""The environment variable that names the folder."""

ASKED, BEGUN, ENDED = b"a", b"b", b"e"
"""A job asks its limiter, begins, and ends."""
ASIDE = 1_000_000_000
"""Jobs from this serial on do not come from the producer, and have an account of their own."""

_RECORD = struct.Struct("<cIId")

_PARENT = os.getppid()
"""The worker process, in the processes of isolated jobs: this module was imported by its child that forks them."""


class Effect(NamedTuple):
    """A record of a job: ``pid`` is its worker process, ``at`` the machine's monotonic clock, which its processes
    share.
    """

    kind: bytes
    serial: int
    pid: int
    at: float


class Recorder:
    """Writes the effects of this process; ``pid`` is its worker process."""

    def __init__(self, folder: Path, pid: int) -> None:
        self.pid = pid
        path = folder / f"{os.getpid()}-{time.monotonic_ns()}.effects"
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, kind: bytes, serial: int) -> None:
        """Write the record; it is in the file when this returns."""
        os.write(self._descriptor, _RECORD.pack(kind, serial, self.pid, time.monotonic()))


@cache
def recorder(*, isolated: bool = False) -> Recorder:
    """Return the recorder of this process, opened by its first job; ``isolated``: the process runs one isolated job."""
    return Recorder(Path(os.environ[FOLDER]), _PARENT if isolated else os.getpid())


class Effects:
    """Reads the effects of all processes while they run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def fresh(self) -> Iterator[Effect]:
        """Return the records since the last call; in order per process, not across processes."""
        for path in self._folder.glob("*.effects"):
            offset = self._offsets.get(path, 0)
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
            whole = len(data) - len(data) % _RECORD.size
            self._offsets[path] = offset + whole
            for found in _RECORD.iter_unpack(data[:whole]):
                yield Effect(*found)
