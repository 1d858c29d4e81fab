"""The classes of the flood: one that fills Redis, and 40 healthy ones. A run appends what it saw to a file of its process."""

import os
import struct
import time

from framework import ApplicationWorker, Job

HEALTHY = 40
SERIAL, HEALTHY_RUN = struct.Struct("<Q"), struct.Struct("<Qdd")
"""What a run writes. Of the flood: the serial of its job. Of a healthy job: also when it was pushed, and the seconds until it ran."""


def _note(kind: str, record: bytes) -> None:
    # One write: a killed process leaves whole records.
    os.write(_file(kind), record)


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
        _note("flood", SERIAL.pack(serial))


class FreeFloodWorker(ApplicationWorker):
    """The same without a limit."""

    feature_category = "not_owned"
    queue = "flood"

    def perform(self, serial: int, pushed_at: float, text: str) -> None:
        _note("flood", SERIAL.pack(serial))


def _healthy(number: int) -> type[ApplicationWorker]:
    def perform(self: ApplicationWorker, serial: int, pushed_at: float) -> None:
        _note("healthy", HEALTHY_RUN.pack(serial, pushed_at, time.time() - pushed_at))

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
