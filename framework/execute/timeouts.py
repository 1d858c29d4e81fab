"""End runs of ``perform`` that last longer than their ``timeout``.

A thread gets a ``JobTimeoutError`` at its next instruction in the job's own code (``PyThreadState_SetAsyncExc``). One thread of the
process watches all timed calls. The error is raised at most once per call, only after ``perform`` was entered and before it has
returned, and never while the job is in code of the framework or of redis-py: a push that is interrupted would leave a connection
with half a reply. A thread that waits in C code gets it when that call returns.

An async job's task is cancelled at its ``await``, as ``asyncio.timeout`` does it.
"""

import asyncio
import ctypes
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import redis

from framework.declare.declaration import Declaration
from framework.errors import JobTimeoutError
from framework.supervised_threads import SupervisedThread
from framework.telemetry.stacks import current_frames
from framework.wire.job import TIMEOUT

_GUARDED = (f"{Path(__file__).parent.parent}{os.sep}", f"{Path(redis.__file__).parent}{os.sep}")
"""The folders of the framework and of redis-py."""

# After a look at a thread that is in guarded code.
_POSTPONED_S = 0.01


def timeout_of(declaration: Declaration | None, payload: Mapping[str, Any]) -> float | None:
    """Return for how many seconds one run of the job may last; ``None`` for any time. Without the class the payload decides."""
    own = payload.get(TIMEOUT)
    if isinstance(own, int | float) and not isinstance(own, bool) and own > 0:
        return float(min(own, threading.TIMEOUT_MAX))
    if declaration is None or declaration.timeout is None:
        return None
    return declaration.timeout.total_seconds()


class _TimedCall:
    """One call of ``perform``. The lock of ``Timeouts`` guards all fields."""

    __slots__ = ("due", "error", "open", "raised", "thread")

    def __init__(self, due: float) -> None:
        self.thread = threading.get_ident()
        self.due = due
        self.error: type[BaseException] = JobTimeoutError
        self.open = False
        """Whether the error may still be raised."""
        self.raised = False


class Timeouts:
    """Watch the timed calls of one process. Its thread starts with the first."""

    def __init__(self) -> None:
        self.after_fork_in_child()

    def after_fork_in_child(self) -> None:
        """Begin again in a child process that a job has forked: the watching thread is the parent's."""
        self._lock: Any = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._calls = set[_TimedCall]()
        self._thread: SupervisedThread | None = None
        self._wakes_at = math.inf

    def call(self, perform: Callable[..., Any], arguments: Sequence[Any], timeout_s: float) -> Any:
        """Call ``perform`` in this thread; raise what it raises, or JobTimeoutError once it has lasted too long."""
        one = _TimedCall(time.monotonic() + timeout_s)
        try:
            try:
                self._open(one)
                return perform(*arguments)
            finally:
                self._close(one)
        except BaseException as error:
            # The error may have come inside of `_close` itself. It comes once, so this second call is not interrupted.
            self._close(one)
            if one.raised and isinstance(error, JobTimeoutError):
                error.explain(timeout_s)
            raise

    def interrupt(self, thread: int, error: type[BaseException], *, still: Callable[[], bool]) -> bool:
        """Raise ``error`` in the timed call of a thread as soon as that is safe; return whether the thread has such a call.

        ``still``: whether the call that is open now is the meant one. It is asked while no call opens or closes.
        """
        with self._changed:
            for one in self._calls:
                if one.thread == thread and one.open and still():
                    one.due, one.error = time.monotonic(), error
                    self._changed.notify()
                    return True
        return False

    def _open(self, one: _TimedCall) -> None:
        with self._changed:
            if self._thread is None:
                thread = SupervisedThread("timeouts", self._watch)
                thread.start()
                self._thread = thread
            self._calls.add(one)
            one.open = True
            if one.due < self._wakes_at:
                self._changed.notify()

    def _close(self, one: _TimedCall) -> None:
        """Let no error come from now on: neither a new one, nor one that is on its way to this thread."""
        # No `with`: the error may come between two instructions of it, and would leave the lock taken.
        try:
            self._lock.acquire()
            self._calls.discard(one)
            if one.open and one.raised:
                _withdraw_error()
            one.open = False
        finally:
            while self._lock._is_owned():
                self._lock.release()

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for one in [one for one in self._calls if one.due <= now]:
                    self._raise(one, now)
                self._wakes_at = min((one.due for one in self._calls), default=math.inf)
                wait_s = None if self._wakes_at == math.inf else max(0.0, self._wakes_at - time.monotonic())
                self._changed.wait(None if wait_s is None else min(wait_s, threading.TIMEOUT_MAX))

    def _raise(self, one: _TimedCall, now: float) -> None:
        # The look and the call are one step, unless another thread of the host keeps this one off for 5 ms in between.
        if is_in_guarded_code(current_frames().get(one.thread)):
            one.due = now + _POSTPONED_S
            return
        one.raised = True
        self._calls.discard(one)
        _set_error(one.thread, one.error)


def is_in_guarded_code(frame: FrameType | None) -> bool:
    """Return whether the code that runs in this frame was called by the framework or redis-py, below the job's own code."""
    if frame is None:
        return True
    guarded: list[bool] = []
    # From the innermost frame to the call of `perform`.
    while frame is not None and frame.f_code is not Timeouts.call.__code__:
        guarded.append(frame.f_code.co_filename.startswith(_GUARDED))
        frame = frame.f_back
    if frame is None or not guarded or guarded[0]:
        return True
    # The outermost frames may be a `perform` of the framework, which calls the job's code.
    while guarded and guarded[-1]:
        guarded.pop()
    return any(guarded)


async def await_within(coroutine: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
    """Await the coroutine of an async job; raise JobTimeoutError if it has lasted too long, and has not handled that."""
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            return await coroutine
    except TimeoutError as error:
        if limit.expired():
            raise JobTimeoutError().explain(timeout_s) from error
        raise


class _Withdrawn(BaseException):
    """Reset the interpreter's mark of a waiting error; it never leaves ``_withdraw_error``."""


def _withdraw_error() -> None:
    """Withdraw an error that this thread has not received yet."""
    thread = threading.get_ident()
    _set_error(thread, None)
    if sys.version_info >= (3, 13):
        return
    # Before 3.13 that call itself marks the interpreter, and only an error that arrives resets the mark. Until then every call and
    # loop of the process would look for one, and code that is traced by instruction would never go on.
    try:
        _set_error(thread, _Withdrawn)
        while True:
            pass
    except _Withdrawn:
        pass


def _set_error(thread: int, error: type[BaseException] | None) -> None:
    """Let the interpreter raise ``error`` in a thread at its next instruction; ``None`` withdraws one that was not raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if error is None else ctypes.py_object(error)
    )
