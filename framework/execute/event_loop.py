"""The process's event loop, for ``async def perform``: one thread, started by the first job that needs it."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Coroutine
from contextvars import Context
from typing import Any


class EventLoop:
    """Runs the coroutines of async jobs. ``submit`` and ``run`` may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._nested: EventLoop | None = None
        self._blocked = False
        self._submitted: deque[tuple[Coroutine[Any, Any, None], Context, str]] = deque()
        self._wakeup_sent = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = threading.Condition()
        self._waited_for = False

    def submit(self, coroutine: Coroutine[Any, Any, None], context: Context, name: str) -> None:
        """Run ``coroutine`` in ``context`` as a task of this name, sooner or later; it must raise nothing. Returns at once."""
        loop = self._running_loop()
        self._submitted.append((coroutine, context, name))
        # One poke for all that come before it is heard: each costs a system call.
        if not self._wakeup_sent:
            self._wakeup_sent = True
            loop.call_soon_threadsafe(self._start_submitted)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run ``coroutine`` on the loop in a copy of this thread's context; return or raise what it does.

        Called by a coroutine of this loop, which then waits here and holds up the loop, it runs on another one; and so does
        whatever is run meanwhile, as the waiting one may wait for it.
        """
        if threading.current_thread() is self._thread:
            self._blocked = True
            try:
                return self._nested_loop().run(coroutine)
            finally:
                self._blocked = False
        if self._blocked:
            return self._nested_loop().run(coroutine)
        result, error = asyncio.run_coroutine_threadsafe(_result_or_exit(coroutine), self._running_loop()).result()
        if error is not None:
            raise error
        return result

    def tasks(self) -> list[asyncio.Task[None]]:
        """Return what was submitted and has not ended."""
        return list(self._tasks)

    @property
    def idle(self) -> bool:
        """Whether everything submitted has ended."""
        return not self._tasks and not self._submitted

    def cancel_all(self) -> None:
        """Cancel everything submitted; it ends when it has noticed."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` for everything submitted to end; tell whether it has."""
        with self._changed:
            self._waited_for = True
            return self._changed.wait_for(lambda: self.idle, timeout_s)

    def _start_submitted(self) -> None:
        self._wakeup_sent = False
        while self._submitted:
            coroutine, context, name = self._submitted[0]
            task = self._running_loop().create_task(coroutine, context=context, name=name)
            self._tasks.add(task)
            task.add_done_callback(self._ended)
            self._submitted.popleft()  # last, so that `idle` never overlooks it

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._waited_for:
            with self._changed:
                self._changed.notify_all()

    def _cancel(self) -> None:
        self._start_submitted()
        for task in self.tasks():
            task.cancel()

    def _nested_loop(self) -> "EventLoop":
        with self._lock:
            self._nested = self._nested or EventLoop()
            return self._nested

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is not None:
            return self._loop
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_run_forever, args=(loop,), name="event-loop", daemon=True)
                thread.start()
                self._loop, self._thread = loop, thread
            return self._loop


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    while True:
        # Ends when some job stops the loop, which it shares with all others, or when a task of its own raises one of these.
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


async def _result_or_exit(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """Hand these two over as values: raised in a task, they would end the loop and with it every other job's wait."""
    try:
        return await coroutine, None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error
