"""Run the event loop of the process for ``async def perform``: one thread, started by the first async job."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Container, Coroutine
from contextvars import Context, copy_context
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any, cast

from framework.supervised_threads import SupervisedThread
from framework.telemetry.stacks import StackCall, stack_of_task


class EventLoop:
    """Run the coroutines of async jobs. ``submit`` and ``run`` are safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: SupervisedThread | None = None
        self._nested: EventLoop | None = None
        self._blocked = False
        self._submitted: deque[tuple[Coroutine[Any, Any, None], Context, str]] = deque()
        self._wakeup_sent = False
        # asyncio itself keeps only weak references to tasks.
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = threading.Condition()
        self._waited_for = False
        self._closed = threading.Event()

    def submit(self, coroutine: Coroutine[Any, Any, None], context: Context, name: str) -> None:
        """Start ``coroutine`` in ``context`` as a task of this name, and return at once. The coroutine must raise nothing."""
        loop = self._running_loop()
        self._submitted.append((coroutine, context, name))
        # One wake-up for all coroutines submitted before the loop runs: each wake-up costs a system call.
        if not self._wakeup_sent:
            self._wakeup_sent = True
            loop.call_soon_threadsafe(self._start_submitted)

    def run(self, coroutine: Coroutine[Any, Any, Any], context: Context | None = None) -> Any:
        """Run ``coroutine`` on the loop in ``context``; return its result or raise its error.

        Without a context it runs in a copy of this thread's.

        If a coroutine of this loop calls ``run``, it blocks the loop until ``run`` returns. So the new coroutine, and
        every other that ``run`` gets meanwhile, runs on a nested loop: the blocked coroutine may wait for it.
        """
        if threading.current_thread() is self._thread:
            self._blocked = True
            try:
                return self._nested_loop().run(coroutine, context)
            finally:
                self._blocked = False
        if self._blocked:
            return self._nested_loop().run(coroutine, context)
        outcome = _result_or_exit(coroutine, context or copy_context())
        result, error = asyncio.run_coroutine_threadsafe(outcome, self._running_loop()).result()
        if error is not None:
            raise error
        return result

    def tasks(self) -> list[asyncio.Task[None]]:
        return list(self._tasks)

    def stacks(self) -> list[tuple[str, list[StackCall]]]:
        """Return the name and the stack of each submitted task."""
        thread = None if self._thread is None else self._thread.ident
        return [(task.get_name(), stack_of_task(task, thread)) for task in self.tasks()]

    @property
    def idle(self) -> bool:
        return not self._tasks and not self._submitted

    def cancel_all(self) -> None:
        """Cancel every submitted task; each ends when it handles the cancellation."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel)

    def cancel_named(self, names: Container[str]) -> None:
        """Cancel, once, each submitted task with one of these names whose coroutine has begun."""
        if self._loop is not None and any(task.get_name() in names for task in self.tasks()):
            self._loop.call_soon_threadsafe(self._cancel_begun, names)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` for every submitted coroutine to end; return whether all have ended."""
        with self._changed:
            self._waited_for = True
            return self._changed.wait_for(lambda: self.idle, timeout_s)

    def close(self) -> None:
        """End the thread of the loop; a coroutine that has not ended stays where it is."""
        self._closed.set()
        loop, nested = self._loop, self._nested
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
        if nested is not None:
            nested.close()

    def _start_submitted(self) -> None:
        # First: a coroutine that is submitted from now on sends a wake-up of its own.
        self._wakeup_sent = False
        while self._submitted:
            coroutine, context, name = self._submitted[0]
            task = self._running_loop().create_task(coroutine, context=context, name=name)
            self._tasks.add(task)
            task.add_done_callback(self._ended)
            # Last, so that `idle` sees it in one of the two.
            self._submitted.popleft()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # Only a shutdown waits: until then the end of a job takes no lock.
        if self._waited_for:
            with self._changed:
                self._changed.notify_all()

    def _cancel(self) -> None:
        # A submitted coroutine that has no task yet could not be cancelled.
        self._start_submitted()
        for task in self.tasks():
            task.cancel()

    def _cancel_begun(self, names: Container[str]) -> None:
        for task in self.tasks():
            # One that has not begun would end without running its `except` clauses: the next call finds it.
            begun = getcoroutinestate(cast("Coroutine[Any, Any, None]", task.get_coro())) != CORO_CREATED
            if begun and task.get_name() in names and not task.cancelling():
                task.cancel()

    def _nested_loop(self) -> "EventLoop":
        with self._lock:
            self._nested = self._nested or EventLoop()
            return self._nested

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        # Without the lock first, since every submit reads it; checked again under the lock.
        if self._loop is not None:
            return self._loop
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = SupervisedThread("event-loop", _run_forever, loop, self._closed)
                thread.start()
                self._loop, self._thread = loop, thread
            return self._loop


def _run_forever(loop: asyncio.AbstractEventLoop, closed: threading.Event) -> None:
    asyncio.set_event_loop(loop)
    while not closed.is_set():
        # `run_forever` returns if a job stops the shared loop, and raises if a task of a job raises one of these.
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
    if not asyncio.all_tasks(loop):
        loop.close()


async def _result_or_exit(coroutine: Coroutine[Any, Any, Any], context: Context) -> tuple[Any, BaseException | None]:
    """Run the coroutine as a task in this context itself, so that middlewares before and after it share the context."""

    # As values: raised in a task, these two would end the loop of all jobs.
    async def outcome() -> tuple[Any, BaseException | None]:
        try:
            return await coroutine, None
        except (SystemExit, KeyboardInterrupt) as error:
            return None, error

    return await asyncio.get_running_loop().create_task(outcome(), context=context)
