"""Jobs whose runs are profiled, for real worker processes."""

import asyncio
import os
import sys
import time

from framework import ApplicationWorker

if os.environ.get("WITHOUT_PYINSTRUMENT"):
    sys.modules["pyinstrument"] = None  # type: ignore[assignment]


def add_numbers_slowly() -> None:
    """Run Python code for several samples."""
    end = time.perf_counter() + 0.05
    while time.perf_counter() < end:
        sum(range(100))


class SlowWorker(ApplicationWorker):
    """Run in a thread."""

    feature_category = "not_owned"
    queue = "default"
    retry = 1

    def perform(self, secret: str) -> None:
        add_numbers_slowly()
        if secret == "fail" and "retry_count" not in (self._aw_job or {}):
            raise LookupError(secret)


class AsyncSlowWorker(SlowWorker):
    """Run on the event loop."""

    async def perform(self, secret: str) -> None:
        await self.wait_for_a_page()
        add_numbers_slowly()

    async def wait_for_a_page(self) -> None:
        await asyncio.sleep(0.05)


class TimedSlowWorker(SlowWorker):
    """Run with a timeout."""

    timeout = 20


class IsolatedSlowWorker(SlowWorker):
    """Run in a process of its own."""

    isolation = "process"


class AsyncIsolatedSlowWorker(AsyncSlowWorker):
    """Run on the event loop of a process of its own."""

    isolation = "process"
