"""ARQ: results off; BENCH_ARQ=tuned polls every 10 ms for up to 100 jobs at a time. Its jobs are coroutines."""

import os
from collections.abc import Callable
from typing import Any

import body
from arq import create_pool, func
from arq.connections import ArqRedis, RedisSettings

TUNED = os.environ.get("BENCH_ARQ") == "tuned"
LOGGING = {"version": 1, "disable_existing_loggers": False, "root": {"level": "WARNING"}}

_pool: list[ArqRedis] = []


async def noop(_context: Any) -> None:
    body.noop()


async def cpu(_context: Any) -> None:
    body.cpu()


async def io(_context: Any) -> None:
    await body.io_async()


async def payload(_context: Any, text: str) -> None:
    body.payload(text)


async def latency(_context: Any, sent: float) -> None:
    body.latency(sent)


class WorkerSettings:
    """The settings for ``python -m arq``."""

    functions = [func(work, keep_result=0) for work in (noop, cpu, io, payload, latency)]
    redis_settings = RedisSettings(port=body.port())
    max_jobs = 100 if TUNED else int(os.environ.get("BENCH_CONCURRENCY", "10"))
    poll_delay = 0.01 if TUNED else 0.5


async def prepare() -> None:
    _pool.append(await create_pool(WorkerSettings.redis_settings))


def pusher(kind: str, _queue: str) -> Callable[..., object]:
    async def push(*args: Any) -> None:
        await _pool[0].enqueue_job(kind, *args)

    return push


def bulk_pusher(_kind: str, _queue: str) -> None:
    """Return None: it has no bulk push."""
