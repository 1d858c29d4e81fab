"""Read the stacks of running jobs: function, file and line of each call, and never the values of variables.

A stack begins with the innermost call and ends with the first call of the job's own code.
"""

import asyncio
import gc
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

MAX_CALLS = 60
"""The calls of one stack that are shown: the innermost ones."""
_MAX_TEXT = 300
# A chain of awaits that has more links is one that never ends.
_MAX_AWAITS = 500

_CALLERS = (str(Path(__file__).parent.parent), str(Path(asyncio.__file__).parent), threading.__file__, "<frozen ")
"""The beginnings of the files whose calls lead to ``perform``: the framework, event loops and threads."""

# The forms of Python 3.11 to 3.14; a thread may have a name in brackets.
_DUMPED_CALL = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


class StackCall(NamedTuple):
    """One call of a stack."""

    function: str
    file: str
    line: int

    def text(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


_reading = threading.Lock()
"""Held while the collector is off. A fork waits for it, so that no child begins with the collector off."""
os.register_at_fork(before=_reading.acquire, after_in_parent=_reading.release, after_in_child=_reading.release)


def current_frames() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by thread id.

    ``sys._current_frames`` of Python 3.11.7 makes its objects under a lock of the interpreter. A garbage collection that starts
    there and frees a ``threading.local`` takes the same lock, and the process stands still for ever. So none starts meanwhile.
    """
    with _reading:
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        finally:
            if collects:
                gc.enable()


def stack_of_thread(thread: int) -> list[StackCall]:
    """Return the calls of a thread of this process by its identifier; empty when it has ended."""
    frame = current_frames().get(thread)
    return stack_of_job(_outwards(frame))


def stack_of_task(task: "asyncio.Task[Any]", loop_thread: int | None) -> list[StackCall]:
    """Return the calls of a task: those of the thread of its loop while it runs, else the chain of its awaits.

    The task goes on meanwhile, so the two ends of a chain may belong to different moments.
    """
    if loop_thread is not None and asyncio.current_task(task.get_loop()) is task:
        return stack_of_thread(loop_thread)
    return stack_of_job(reversed(list(_awaits(task.get_coro()))))


def stack_of_job(calls: Iterable[StackCall]) -> list[StackCall]:
    """Return the calls, innermost first, without those that lead to the job's own code; all of them if there is none."""
    found = list(calls)
    end = len(found)
    while end and found[end - 1].file.startswith(_CALLERS):
        end -= 1
    return found[: min(end or len(found), MAX_CALLS)]


def dumped_stacks(text: str) -> list[list[StackCall]]:
    """Return the stacks in a dump of ``faulthandler``, one for each thread, that of the job last in the dump first."""
    stacks: list[list[StackCall]] = []
    for line in text.splitlines():
        if line and not line.startswith(" "):
            stacks.append([])
        elif stacks and (found := _DUMPED_CALL.match(line)) is not None:
            stacks[-1].append(_call(found[3], found[1], int(found[2])))
    return [stack_of_job(stack) for stack in reversed(stacks) if stack]


def _outwards(frame: FrameType | None) -> Iterator[StackCall]:
    while frame is not None:
        yield _of_frame(frame)
        frame = frame.f_back


def _awaits(awaited: Any) -> Iterator[StackCall]:
    """Yield the calls of a suspended coroutine, outermost first: each awaits the next."""
    for _ in range(_MAX_AWAITS):
        for prefix in ("cr", "gi", "ag"):
            frame = getattr(awaited, f"{prefix}_frame", None)
            if frame is not None:
                yield _of_frame(frame)
                awaited = getattr(awaited, "gi_yieldfrom" if prefix == "gi" else f"{prefix}_await", None)
                break
        else:
            return


def _of_frame(frame: FrameType) -> StackCall:
    return _call(frame.f_code.co_qualname, frame.f_code.co_filename, frame.f_lineno or 0)


def _call(function: str, file: str, line: int) -> StackCall:
    return StackCall(function[:_MAX_TEXT], file[:_MAX_TEXT], line)


def module_path(file: str) -> str:
    """Return the path of a file below the folder of ``sys.path`` that has it: ``shop/jobs.py`` names nothing of the host."""
    folders = (f"{Path(one).absolute()}{os.sep}" for one in sys.path)
    return file[max((len(one) for one in folders if file.startswith(one)), default=0) :]


def lines_of(stack: Sequence[StackCall]) -> list[str]:
    """Return the lines of a stack for people, innermost first."""
    return [call.text() for call in stack]
