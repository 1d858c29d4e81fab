"""Taskiq: BENCH_BROKER names the broker, a list or a stream; no result backend. Its jobs are coroutines."""

import os
from collections.abc import Callable
from typing import Any

import body
from taskiq_redis import ListQueueBroker, RedisStreamBroker

# Without a limit on reads, as the client library's own (5 s) would end the list's endless BRPOP in an idle worker.
broker = (
    RedisStreamBroker(url=body.url())
    if os.environ["BENCH_BROKER"] == "stream"
    else ListQueueBroker(url=body.url(), socket_timeout=None)
)


async def noop() -> None:
    body.noop()


async def cpu() -> None:
    body.cpu()


async def payload(text: str) -> None:
    body.payload(text)


async def latency(sent: float) -> None:
    body.latency(sent)


TASKS: dict[str, Any] = {
    kind: broker.task(task_name=kind)(work)
    for kind, work in {"noop": noop, "cpu": cpu, "io": body.io_async, "payload": payload, "latency": latency}.items()
}


async def prepare() -> None:
    await broker.startup()


def pusher(kind: str, _queue: str) -> Callable[..., object]:
    push: Callable[..., object] = TASKS[kind].kiq
    return push


def bulk_pusher(_kind: str, _queue: str) -> None:
    """Return None: it has no bulk push."""
