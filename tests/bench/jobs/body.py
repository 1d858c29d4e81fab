"""The jobs themselves: every Python contestant runs exactly these."""

import asyncio
import functools
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import meter

if TYPE_CHECKING:
    from redis import Redis

IO_S = 0.010
DOCUMENT = (Path(__file__).parent / "document.json").read_text()


def port() -> int:
    """Return the port of the Redis of this run, or of the delaying proxy before it."""
    return int(os.environ["BENCH_REDIS_PORT"])


def url() -> str:
    return f"redis://127.0.0.1:{port()}/0"


@functools.cache
def database() -> "Redis":
    """Return the database of the jobs' own writes, apart from the queue's; one pool per process."""
    from redis import Redis  # noqa: PLC0415 -- only the jobs that need it shall pay for the import

    return Redis(port=port(), db=2)


def noop() -> None:
    meter.hit()


def cpu() -> None:
    """Use some 0.13 ms of processor time and one INCR."""
    meter.begin()
    text = DOCUMENT
    for _ in range(5):
        text = json.dumps(json.loads(text))
    database().incr("bench:incr")
    meter.hit()


def io() -> None:
    """Wait as for a database."""
    meter.begin()
    time.sleep(IO_S)
    meter.hit()


async def io_async() -> None:
    """Wait in the same way in a framework whose jobs are coroutines."""
    meter.begin()
    await asyncio.sleep(IO_S)
    meter.hit()


async def wait_async(pause_s: float) -> None:
    """Wait for the given time, as a coroutine."""
    meter.begin()
    await asyncio.sleep(pause_s)
    meter.hit()


def payload(_text: str) -> None:
    meter.hit()


def latency(sent: float) -> None:
    """Record the time since the push of this job."""
    meter.note(meter.clock() - sent)
    meter.hit()


def mixed(sent: float, pause_s: float) -> None:
    """Run slowly or fast, and record the times of push, start and end."""
    started = meter.clock()
    time.sleep(pause_s)
    meter.note(sent, started, meter.clock())
    meter.hit()
