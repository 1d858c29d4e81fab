"""The jobs themselves: every Python contestant runs exactly these, whatever wraps them."""

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
    """The Redis of this run, or the delaying proxy before it."""
    return int(os.environ["BENCH_REDIS_PORT"])


def url() -> str:
    return f"redis://127.0.0.1:{port()}/0"


@functools.cache
def database() -> "Redis":
    """What a job itself writes to: a database apart from the queue's, one pool per process."""
    from redis import Redis  # noqa: PLC0415 -- only the jobs that need it shall pay for the import

    return Redis(port=port(), db=2)


def noop() -> None:
    meter.hit()


def cpu() -> None:
    """Some 0.13 ms of processor time and one INCR."""
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
    """The same wait in a framework whose jobs are coroutines."""
    meter.begin()
    await asyncio.sleep(IO_S)
    meter.hit()


async def wait_async(pause_s: float) -> None:
    """A coroutine that waits as long as told."""
    meter.begin()
    await asyncio.sleep(pause_s)
    meter.hit()


def payload(_text: str) -> None:
    meter.hit()


def latency(sent: float) -> None:
    """Note how long ago the producer was about to push this job."""
    meter.note(meter.clock() - sent)
    meter.hit()


def mixed(sent: float, pause_s: float) -> None:
    """A job that is slow or fast as told, and notes when it was pushed, started and ended."""
    started = meter.clock()
    time.sleep(pause_s)
    meter.note(sent, started, meter.clock())
    meter.hit()
