"""Workers of ``test_expansion.py``: their payloads may take much memory."""

import json
import os
import threading

from jobs import Base, prove

RUNNING = set()
LOCK = threading.Lock()


class RowsWorker(Base):
    """Reports how many rows it got, and how many such jobs have their rows at the same time."""

    def perform(self, name: str, rows: list[object]) -> None:
        with LOCK:
            RUNNING.add(name)
            at_once = len(RUNNING)
        prove("rows", json.dumps([name, len(rows), at_once]))
        with LOCK:
            RUNNING.remove(name)


class PeakWorker(Base):
    """Reports the peak memory of the process, in MB."""

    def perform(self) -> None:
        with open(f"/proc/{os.getpid()}/status") as status:  # noqa: PTH123
            (line,) = (line for line in status if line.startswith("VmHWM"))
        prove("peak", int(line.split()[1]) // 1024)
