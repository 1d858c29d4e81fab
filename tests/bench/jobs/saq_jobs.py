"""SAQ: results off. Its jobs are coroutines with keyword arguments."""

import os
from collections.abc import Callable
from typing import Any

import body
from saq import Queue

queue = Queue.from_url(body.url())
KEEP_NOTHING = -1


async def noop(_context: Any) -> None:
    body.noop()


async def cpu(_context: Any) -> None:
    body.cpu()


async def io(_context: Any) -> None:
    await body.io_async()


async def payload(_context: Any, *, value: str) -> None:
    body.payload(value)


async def latency(_context: Any, *, value: float) -> None:
    body.latency(value)


settings = {
    "queue": queue,
    "functions": [noop, cpu, io, payload, latency],
    "concurrency": int(os.environ.get("BENCH_CONCURRENCY", "10")),
}


async def prepare() -> None:
    await queue.connect()


def pusher(kind: str, _queue: str) -> Callable[..., object]:
    async def push(*args: Any) -> None:
        await queue.enqueue(kind, ttl=KEEP_NOTHING, **({"value": args[0]} if args else {}))

    return push


def bulk_pusher(_kind: str, _queue: str) -> None:
    """Return None: it has no bulk push."""
