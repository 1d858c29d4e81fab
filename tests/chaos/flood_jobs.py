"""The classes of the flood: one that fills Redis, and 40 healthy ones. A run appends what it saw to a file of its process."""

import os
import struct
import time

from framework import ApplicationWorker, Job

HEALTHY = 40
RECORD = struct.Struct("<Qd")
"""The serial of a job, and the seconds from its push to its run."""


def _note(kind: str, serial: int, waited_s: float) -> None:
    # One write: a killed process leaves whole records.
    os.write(_file(kind), RECORD.pack(serial, waited_s))


_open: dict[str, int] = {}


def _file(kind: str) -> int:
    if kind not in _open:
        path = f"{os.environ['FLOOD_FOLDER']}/{kind}.{os.getpid()}"
        _open[kind] = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    return _open[kind]


class FloodWorker(ApplicationWorker):
    """Fills Redis: nothing lets its jobs run for a while."""

    feature_category = "not_owned"
    queue = "flood"
    concurrency_limit = 4

    def perform(self, serial: int, pushed_at: float, text: str) -> None:
        _note("flood", serial, time.time() - pushed_at)


class FreeFloodWorker(ApplicationWorker):
    """The same without a limit."""

    feature_category = "not_owned"
    queue = "flood"

    def perform(self, serial: int, pushed_at: float, text: str) -> None:
        _note("flood", serial, time.time() - pushed_at)


def _healthy(number: int) -> type[ApplicationWorker]:
    def perform(self: ApplicationWorker, serial: int, pushed_at: float) -> None:
        _note("healthy", serial, time.time() - pushed_at)

    name = f"Healthy{number}Worker"
    body = {
        "perform": perform,
        "feature_category": "not_owned",
        "queue": "healthy",
        "__doc__": "One of 40.",
        "__module__": __name__,
    }
    return type(name, (ApplicationWorker,), body)


CLASSES = [_healthy(number) for number in range(HEALTHY)]
globals().update({one.__name__: one for one in CLASSES})

__all__ = ["CLASSES", "FloodWorker", "FreeFloodWorker", "Job"]
