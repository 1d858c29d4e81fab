"""Send the stacks of a job's process to its worker process, at a signal and over a socket.

``faulthandler`` writes the stacks of the threads from within the signal: also when a function in C holds the interpreter. The tasks
of an async job are written by its loop, when that comes to it. Neither writes a variable. The socket does not block: what a full
one does not take is lost.
"""

import asyncio
import faulthandler
import os
import re
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from framework.telemetry.stacks import StackCall, dumped_stacks, stack_of_task
from framework.types import Jid

THREADS, TASKS = signal.SIGUSR2, signal.SIGUSR1
_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)$", re.MULTILINE)
_RECEIVED_BYTES = 1 << 16
_SETTLED_S = 0.05
"""A process that has begun to send has sent all after this time without more."""


class JobProcess(NamedTuple):
    """A process that runs a job, and the socket over which it sends its stacks."""

    pid: int
    stacks: socket.socket
    has_tasks: bool


def send_stacks_on_signal(stacks: socket.socket) -> None:
    """Write the stacks of all threads at each signal."""
    stacks.setblocking(False)
    faulthandler.register(THREADS, file=stacks.fileno(), all_threads=True, chain=False)


def send_task_stacks_on_signal(loop: asyncio.AbstractEventLoop, stacks: socket.socket) -> None:
    """Write the stacks of the tasks that wait, in the form of ``faulthandler``, at each signal."""

    def send() -> None:
        lines: list[str] = []
        for task in asyncio.all_tasks(loop):
            lines.append(f"Task {task.get_name()}:")
            lines += [
                f'  File "{call.file}", line {call.line} in {call.function}' for call in stack_of_task(task, None)
            ]
        with suppress(OSError):
            stacks.send("\n".join([*lines, ""]).encode(errors="replace"))

    loop.add_signal_handler(TASKS, send)


def ask_processes(processes: Mapping[Jid, JobProcess], timeout_s: float) -> dict[Jid, list[list[StackCall]]]:
    """Return the stacks of each process; none for one that does not answer within the time."""
    for one in processes.values():
        # What an earlier call did not wait for.
        _receive(one.stacks)
        for number in (THREADS, TASKS) if one.has_tasks else (THREADS,):
            # Without a handler a signal would end the process: code of the job may have removed it.
            if _catches(one.pid, number):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(one.pid, number)
    received = dict.fromkeys(processes, b"")
    now = time.monotonic()
    deadline, last = now + timeout_s, dict.fromkeys(processes, now)
    waiting = set(processes)
    while waiting and (now := time.monotonic()) < deadline:
        for jid in list(waiting):
            more = _receive(processes[jid].stacks)
            received[jid] += more
            last[jid] = now if more else last[jid]
            if received[jid] and now - last[jid] > _SETTLED_S:
                waiting.discard(jid)
        time.sleep(_SETTLED_S / 5)
    return {jid: dumped_stacks(data.decode(errors="replace")) for jid, data in received.items()}


def _receive(stacks: socket.socket) -> bytes:
    try:
        return stacks.recv(_RECEIVED_BYTES, socket.MSG_DONTWAIT)
    except OSError:
        return b""


def _catches(pid: int, number: int) -> bool:
    """Return whether the process has a handler for the signal. Where the system does not tell, it has."""
    try:
        found = _CAUGHT.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return not Path("/proc/self/status").exists()
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)
