"""The job class of ``scripts/prove kills``, loaded with ``-r tests.proofs.kills_jobs``, and its records.

A record survives the ``kill -9`` of its process, as it is one store into a mapped file; and it is no system call, which
would let other threads run between the job and its record.
"""

import asyncio
import mmap
import os
import struct
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from framework import ApplicationWorker
from tests.proofs.end_marks import mark

QUEUE = "killed"
FOLDER = "KILLS_FOLDER"
"""The environment variable that names the folder of the records."""

MOST_JOBS = 1 << 27
_ENDED = 1 << 27
_TIME_SHIFT = 28  # the remaining bits hold 19 hours in microseconds
_WORD = struct.Struct("@Q")  # native: one store, never half of one
_WORDS = 1 << 20
MARKS = "marks"
JOURNAL = ".journal"


def create_marks(folder: Path, jobs: int) -> int:
    """Create the file with a byte per serial: the number of starts. Return the start time of all records, in ns."""
    base_ns = time.monotonic_ns()
    with (folder / MARKS).open("wb") as file:
        file.truncate(_WORD.size + jobs)
        file.write(_WORD.pack(base_ns))
    return base_ns


class Recorder:
    """Writes the records of this process: a journal of its own, and the marks that all processes share."""

    def __init__(self, folder: Path) -> None:
        self._marks = _mapped(folder / MARKS, writable=True)
        (self._base_ns,) = _WORD.unpack_from(self._marks)
        path = folder / f"{os.getpid()}-{time.monotonic_ns()}"
        with path.open("wb") as file:
            file.truncate(_WORD.size * _WORDS)
        self._words = memoryview(_mapped(path, writable=True)).cast("Q")
        self._count = 0
        path.rename(path.with_suffix(JOURNAL))  # complete when a reader first sees it

    def begin(self, serial: int) -> bool:
        """Record the start of a run; return whether it is the job's first."""
        self._write(serial)
        place = _WORD.size + serial
        runs = self._marks[place]
        self._marks[place] = min(255, runs + 1)
        return runs == 0

    def end(self, serial: int) -> None:
        """Record the end of a run."""
        self._write(_ENDED | serial)

    def _write(self, what: int) -> None:
        at_us = (time.monotonic_ns() - self._base_ns) // 1000
        self._words[self._count] = at_us << _TIME_SHIFT | what
        self._count += 1


class Journal:
    """Reads the records of one process while it runs, and after its death."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pid = int(path.name.partition("-")[0])
        self._file = _mapped(path, writable=False)
        self._words = memoryview(self._file).cast("Q")
        self._count = 0

    def remove(self) -> None:
        """Release its memory and its file."""
        self._words.release()
        self._file.close()
        self.path.unlink()

    def fresh(self) -> Iterator[tuple[int, bool, int]]:
        """Return the new records: (serial, whether it ended, microseconds since the marks were made)."""
        words, index = self._words, self._count
        while index < len(words) and (word := words[index]):
            index += 1
            yield word & (_ENDED - 1), bool(word & _ENDED), word >> _TIME_SHIFT
        self._count = index


@cache
def recorder() -> Recorder:
    """Return the recorder of this process, opened by its first job."""
    return Recorder(Path(os.environ[FOLDER]))


class KilledWorker(ApplicationWorker):
    """The first run waits until its process is killed; the next one ends at once."""

    feature_category = "not_owned"
    queue = QUEUE
    max_retries_after_interruption = -1  # the same job may be killed by chance again and again

    async def perform(self, serial: int) -> None:
        records = recorder()
        if records.begin(serial):
            await asyncio.Event().wait()
        records.end(serial)
        mark(self.jid)  # Of a kept history; it may delay the other jobs of this process, which only wait.


def _mapped(path: Path, *, writable: bool) -> mmap.mmap:
    with path.open("r+b" if writable else "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
