"""Set the properties of a process that Linux has for it: its end with its parent, its orphans, its limit of memory."""

import ctypes
import os
import resource
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
RESERVE_BYTES = 64 << 20
"""The memory beyond its limit with which a process reports the end of its job."""


def end_with_parent(number: int) -> None:
    """Let the system send the signal ``number`` to this process when its parent ends. (The thread that started it, to be exact.)"""
    _control(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Become the parent of processes whose parent ends below this one: daemons in sessions of their own cannot get away."""
    _control(_PR_SET_CHILD_SUBREAPER, 1)


def _control(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def kill_group(pid: int) -> None:
    """Kill a job's process, and the processes of its group."""
    # It may have no group of its own yet.
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def own_children() -> set[int]:
    """Return the processes that this process has started or adopted; empty where the system does not tell."""
    try:
        return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))
    except OSError:
        return set()


def kill_marked(variable: str) -> None:
    """Kill each process that was started with ``variable`` (``NAME=value``) in its environment. Does nothing without ``/proc``."""
    for entry in Path("/proc").glob("[0-9]*"):
        # It has ended, or belongs to another user.
        with suppress(OSError):
            if variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)


def thread_count() -> int:
    """Return the number of this process's threads, those of libraries in C included where the system lists them."""
    try:
        return sum(1 for _ in Path("/proc/self/task").iterdir())
    except OSError:
        return threading.active_count()


def used_memory() -> int:
    """Return the bytes that ``limit_memory`` counts; 0 where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
    except (OSError, StopIteration):
        return 0


def limit_memory(limit: int) -> None:
    """Limit the private memory of this process, and of each process that it starts. Raises OSError or ValueError."""
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit + RESERVE_BYTES))


def use_reserve() -> None:
    """Permit the reserve beyond the limit of memory: from now on the process only reports."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
