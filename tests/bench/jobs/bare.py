"""The lower bounds: redis-py and the job's body without a framework. ``bare.py KIND CONCURRENCY`` is the worker."""

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import body
import redis

CLASSES: dict[str, Callable[..., None]] = {"Noop": body.noop, "Payload": body.payload, "Latency": body.latency}


def encoded(kind: str, args: Sequence[Any]) -> bytes:
    """Return a payload of the size and shape that Sidekiq's client writes."""
    head = {
        "retry": True,
        "queue": "default",
        "class": kind.capitalize(),
        "args": args,
        "jid": "2af7c3de5b2c4e1f8a9b0c1d",
    }
    return json.dumps({**head, "created_at": 1750000000.123456, "enqueued_at": 1750000000.123457}).encode()


def connected() -> "redis.Redis":
    return redis.Redis(port=body.port(), socket_timeout=None)


client = connected()


def prepare() -> None:
    client.ping()


def pusher(kind: str, queue: str) -> Callable[..., object]:
    key = f"queue:{queue}"
    if kind == "noop":  # always the same bytes: the bound is the LPUSH, without any encoding
        data = encoded(kind, [])
        return lambda: client.lpush(key, data)
    return lambda *args: client.lpush(key, encoded(kind, args))


def bulk_pusher(kind: str, queue: str) -> Callable[[Sequence[Sequence[Any]]], object]:
    key = f"queue:{queue}"
    if kind == "noop":
        data = encoded(kind, [])
        return lambda jobs: client.lpush(key, *[data] * len(jobs))
    return lambda jobs: client.lpush(key, *[encoded(kind, args) for args in jobs])


def serve() -> None:
    """Run one BRPOP after another in one thread."""
    while True:
        found: Any = client.brpop(["queue:default"], timeout=0)
        job = json.loads(found[1])
        CLASSES[job["class"]](*job["args"])


def serve_moving() -> None:
    """Run one BLMOVE after another into a list of its own, from which each job is removed at its end."""
    while True:
        data: Any = client.blmove("queue:default", "working", timeout=0, src="RIGHT", dest="LEFT")
        job = json.loads(data)
        CLASSES[job["class"]](*job["args"])
        client.lrem("working", 1, data)


def in_threads(work: Callable[[], None], concurrency: int) -> None:
    """Run the body alone, over and over in so many threads."""

    def run() -> None:
        while True:
            work()

    for _ in range(concurrency):
        threading.Thread(target=run, daemon=True).start()
    threading.Event().wait()


async def on_a_loop(pause_s: float, concurrency: int) -> None:
    """Run the coroutine alone, over and over in so many tasks."""

    async def run() -> None:
        while True:
            await body.wait_async(pause_s)

    await asyncio.gather(*(run() for _ in range(concurrency)))


def main() -> None:
    kind, concurrency = sys.argv[1], int(sys.argv[2])
    if kind in ("cpu", "io"):
        in_threads({"cpu": body.cpu, "io": body.io}[kind], concurrency)
    elif kind in ("async", "async25"):
        asyncio.run(on_a_loop({"async": 0.050, "async25": 0.025}[kind], concurrency))
    elif kind == "latency":
        serve_moving()
    else:
        serve()


if __name__ == "__main__":
    main()
