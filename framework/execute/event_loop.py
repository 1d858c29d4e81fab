"""The process's event loop, for ``async def perform``: one thread, started by the first job that needs it."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any


class EventLoop:
    """Runs coroutines for the slots that wait for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run ``coroutine`` on the loop in a copy of this thread's context; return or raise what it does."""
        result, error = asyncio.run_coroutine_threadsafe(_contained(coroutine), self._started()).result()
        if error is not None:
            raise error
        return result

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="event-loop", daemon=True).start()
            return self._loop


async def _contained(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """Hand these two over as values: raised in a task, they would end the loop and with it every other job's wait."""
    try:
        return await coroutine, None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error
