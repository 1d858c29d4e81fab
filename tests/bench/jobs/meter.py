"""How far this process is, in memory that the bench maps too: counting a job costs a fraction of a microsecond.

A file per process under the folder BENCH_METERS: an array of doubles, first the cells below, from ``HEAD`` on what jobs
have noted. Without the variable (a client) the array is memory of this process only.
"""

import itertools
import mmap
import os
import time
from pathlib import Path

COUNT, FIRST, LAST, NOTED = range(4)
HEAD = 8
SIZE = 8 << 20  # sparse: pages nobody writes to take no memory

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
    """A job that takes a while begins: the first one starts the clock."""
    if not cells[FIRST]:
        cells[FIRST] = clock()


def hit() -> None:
    """One more job is done."""
    now = clock()
    if not cells[FIRST]:
        cells[FIRST] = now
    cells[LAST] = now
    # Whole although threads share it: CPython changes threads at calls and jumps, and this line has neither.
    cells[COUNT] += 1.0


def note(*values: float) -> None:
    """Keep figures for the bench to read; what does not fit any more is not kept, but counted."""
    for value in values:
        place = next(_places)
        if place < len(cells):
            cells[place] = value
    cells[NOTED] += len(values)
