"""Record the effects of jobs, without the framework, in a file per process.

Each record is one ``write`` to a file opened for appending, so a killed process leaves complete records only.
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

BEGUN, ENDED = b"b", b"e"
ASIDE = 1_000_000_000
"""Jobs from this serial on do not come from the producer, and have an account of their own."""

_RECORD = struct.Struct("<cIId")


class Effect(NamedTuple):
    """The start or end of a job: ``at`` is the machine's monotonic clock, the same in all its processes."""

    kind: bytes
    serial: int
    pid: int
    at: float


class Recorder:
    """Writes the effects of this process."""

    def __init__(self, folder: Path) -> None:
        self._pid = os.getpid()
        path = folder / f"{self._pid}-{time.monotonic_ns()}.effects"
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, kind: bytes, serial: int) -> None:
        """Write the record; it is in the file when this returns."""
        os.write(self._descriptor, _RECORD.pack(kind, serial, self._pid, time.monotonic()))


@cache
def recorder() -> Recorder:
    """Return the recorder of this process, opened by its first job."""
    return Recorder(Path(os.environ[FOLDER]))


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
