"""The job of the drain, loaded by its workers with ``-r tests.proofs.drain_jobs``: it only leaves a mark.

A mark survives the ``kill -9`` of its process, as it is one store into a mapped file; ten million are ten megabytes.
"""

import mmap
import os
import sys
from functools import cache
from pathlib import Path

from framework import ApplicationWorker

QUEUE = "drain"
FOLDER = "DRAIN_FOLDER"
"""The environment variable that names the folder of the marks."""
SWITCH_INTERVAL = "DRAIN_SWITCH_INTERVAL"
"""The environment variable with the seconds after which the interpreter switches to another thread."""

MARKS = "marks"
LIFE = ".life"
_MOST_RUNS = 255

if SWITCH_INTERVAL in os.environ:
    sys.setswitchinterval(float(os.environ[SWITCH_INTERVAL]))


def create_marks(folder: Path, jobs: int) -> mmap.mmap:
    """Create the file with a byte per serial, which counts its runs, and return it."""
    with (folder / MARKS).open("wb") as file:
        file.truncate(jobs)
    return _mapped(folder)


class DrainWorker(ApplicationWorker):
    """Counts its runs."""

    feature_category = "not_owned"
    queue = QUEUE
    max_retries_after_interruption = -1  # the same job may be killed by chance again and again

    def perform(self, serial: int) -> None:
        marks = _marks()
        runs = marks[serial]
        marks[serial] = min(_MOST_RUNS, runs + 1)


@cache
def _marks() -> mmap.mmap:
    """Return the mapped file of this process, which reports by another file that it has started."""
    folder = Path(os.environ[FOLDER])
    (folder / f"{os.getpid()}{LIFE}").touch()
    return _mapped(folder)


def _mapped(folder: Path) -> mmap.mmap:
    with (folder / MARKS).open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)
