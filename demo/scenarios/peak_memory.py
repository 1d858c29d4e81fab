"""Measure the peak memory of processes (Linux)."""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


class PeakMemory:
    """The largest resident set that any of the processes had. The kernel keeps the peak of each, so rare looks suffice."""

    def __init__(self) -> None:
        self.largest_bytes = 0

    def look(self, pids: Iterable[int]) -> None:
        """Read the peaks of these processes; one that has ended keeps the peak of the look before."""
        for pid in pids:
            with suppress(OSError):
                if found := _PEAK.search(Path(f"/proc/{pid}/status").read_text()):
                    self.largest_bytes = max(self.largest_bytes, int(found[1]) * 1024)

    def __str__(self) -> str:
        return f"{self.largest_bytes / 1e6:,.0f} MB" if self.largest_bytes else "unknown"
