"""Count the jobs of this process in memory that the bench maps too: it costs a fraction of a microsecond per job.

There is a file per process under the folder BENCH_METERS: an array of doubles, first the cells below, from ``HEAD`` on
the notes of jobs. Without the variable (a client) the array is memory of this process only.
"""

import itertools
import mmap
import os
import time
from pathlib import Path

COUNT, FIRST, LAST, NOTED = range(4)
HEAD = 8
SIZE = 8 << 20  # sparse: unwritten pages take no memory

clock = time.monotonic  # one clock for all processes of the machine


def _mapped() -> "memoryview":
    folder = os.environ.get("BENCH_METERS")
    if not folder:
        return memoryview(bytearray(HEAD * 8)).cast("d")
    with (Path(folder) / f"{os.getpid()}.meter").open("w+b") as file:
        file.truncate(SIZE)
        return memoryview(mmap.mmap(file.fileno(), SIZE)).cast("d")


cells = _mapped()
_places = itertools.count(HEAD)


def begin() -> None:
    """Record the start of a job that takes a while: the first one starts the clock."""
    if not cells[FIRST]:
        cells[FIRST] = clock()


def hit() -> None:
    """Count one job."""
    now = clock()
    if not cells[FIRST]:
        cells[FIRST] = now
    cells[LAST] = now
    # One store, although threads share it: CPython switches threads at calls and jumps, and this line has neither.
    cells[COUNT] += 1.0


def note(*values: float) -> None:
    """Store figures for the bench to read; beyond the space they are only counted."""
    for value in values:
        place = next(_places)
        if place < len(cells):
            cells[place] = value
    cells[NOTED] += len(values)
