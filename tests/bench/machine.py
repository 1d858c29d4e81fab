"""Describe the machine: its cores, the use of them by processes, and its name in a report."""

import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Cores:
    """The cores of each part of a run; sets of core numbers."""

    store: frozenset[int]
    worker: frozenset[int]
    producer: frozenset[int]
    """The cores of the producer while a worker runs: those of Redis, as another machine would not disturb the
    worker.
    """

    @classmethod
    def of(cls, available: Iterable[int], *, pinned: bool) -> "Cores":
        """Return Redis on the first core and workers on the second, or all on all."""
        cores = sorted(available)
        if not pinned:
            return cls(*[frozenset(cores)] * 3)
        first, second = frozenset(cores[:1]), frozenset(cores[1:2])
        return cls(store=first, worker=second, producer=first)


def available_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


@contextmanager
def on_cores(cores: Iterable[int]) -> Iterator[None]:
    """Run this thread, and so each child it starts, on these cores within the block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def session_members(leader: int) -> list[int]:
    """Return the living processes of the session that ``leader`` started: a worker and its children."""
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the processor time of the processes' living threads so far, to the nanosecond where the kernel reports it."""
    total = 0.0
    for pid in pids:
        for thread in (PROC / str(pid) / "task").glob("*"):
            try:
                total += int((thread / "schedstat").read_text().split()[0]) / 1e9
            except OSError:
                continue
    return total


def resident_mb(pids: Iterable[int]) -> float:
    """Return the resident memory of the processes together, in MB of 1,000,000 bytes."""
    total = 0
    for pid in pids:
        try:
            status = (PROC / str(pid) / "status").read_text()
        except OSError:
            continue
        total += next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")), 0)
    return total * 1024 / 1e6


def described() -> dict[str, str]:
    """Return the description of this machine for a report."""
    info = (PROC / "cpuinfo").read_text().splitlines() if (PROC / "cpuinfo").exists() else []
    model = next((line.partition(":")[2].strip() for line in info if line.startswith("model name")), platform.machine())
    return {
        "processor": model,
        "cores": str(len(available_cores())),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
