"""Run blocking calls of coroutines in threads, so that an event loop never waits for Redis."""

import asyncio
import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeVar

from framework.supervised_threads import SupervisedThread, ThreadStartError

T = TypeVar("T")

_EXIT_WAIT_S = 6.0
"""How long the exit of the process waits for calls that a thread has begun: a little longer than the deadline of one."""


class _Call(NamedTuple):
    """Hold one call: what to call, in which context, and the future that waits for the outcome."""

    function: Callable[[], Any]
    context: Context
    loop: asyncio.AbstractEventLoop
    outcome: "asyncio.Future[tuple[Any, BaseException | None]]"

    def run(self) -> None:
        """Run the function, unless its coroutine was cancelled before, and send the outcome to the loop."""
        # The loop's thread cancels a future in one step, so that it may be asked here.
        if self.outcome.cancelled():
            return
        outcome: tuple[Any, BaseException | None]
        try:
            outcome = self.context.run(self.function), None
        # Whatever a call raises belongs to the coroutine that waits for it.
        except BaseException as error:  # noqa: BLE001
            outcome = None, error
        # The loop was closed meanwhile: no coroutine waits any more.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._set_outcome, outcome)

    def _set_outcome(self, outcome: tuple[Any, BaseException | None]) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)


# A ThreadPoolExecutor takes more time per call, and hangs in the child of a fork.
class CallThreads:
    """A bounded pool of threads, started on demand. Safe from any thread and any number of event loops."""

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._reset()
        # Threads do not survive a fork, and the lock may be held by one of them.
        os.register_at_fork(after_in_child=self._reset)
        atexit.register(self._wait_for_running)

    async def run(self, function: Callable[[], T]) -> T:
        """Call ``function`` in a thread, in a copy of this coroutine's context; return its result or raise its error.

        A cancelled coroutine does not wait. Its call is left out if no thread has begun it, and completed otherwise.
        """
        loop = asyncio.get_running_loop()
        call = _Call(function, copy_context(), loop, loop.create_future())
        self._submit(call)
        result, error = await call.outcome
        if error is None:
            return result  # type: ignore[no-any-return]
        try:
            raise error
        finally:
            # The error refers to this frame: without the cycle it is freed at once.
            del error

    def _reset(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._calls: deque[_Call] = deque()
        self._threads = 0
        self._waiting = 0
        self._running = 0

    def _submit(self, call: _Call) -> None:
        with self._changed:
            if not self._waiting and self._threads < self._max_threads:
                self._start_thread()
            self._calls.append(call)
            if self._waiting:
                self._waiting -= 1
                self._changed.notify()

    def _start_thread(self) -> None:
        try:
            # A daemon: an idle thread does not keep the process alive.
            SupervisedThread("awaited-pushes", self._work, elastic=bool(self._threads)).start()
        except ThreadStartError:
            # Later, or by the threads that there are. Without any, the call would wait for ever.
            if not self._threads:
                raise
        else:
            self._threads += 1

    def _work(self) -> None:
        try:
            self._run_calls()
        except BaseException:
            # Its place is free for another thread.
            self._threads -= 1
            raise

    def _run_calls(self) -> None:
        ended = 0
        while True:
            with self._changed:
                self._running -= ended
                while not self._calls:
                    self._waiting += 1
                    self._changed.wait()
                call = self._calls.popleft()
                self._running += 1
            call.run()
            ended = 1
            # Else the arguments of the last call would stay in memory until the next.
            del call

    def _wait_for_running(self) -> None:
        """At the exit of the process, drop calls that no thread has begun, and let the others end."""
        self._calls.clear()
        deadline = monotonic() + _EXIT_WAIT_S
        while self._running and monotonic() < deadline:
            sleep(0.01)
