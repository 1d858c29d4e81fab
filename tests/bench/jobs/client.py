"""Run a producer: ``client.py MODULE ACTION JSON`` pushes with one framework's own client and prints its figures.

MODULE has ``prepare()``, ``pusher(kind, queue)`` and ``bulk_pusher(kind, queue)``, which return a function that pushes
one job with these arguments, and one that pushes a list of argument lists (or None: not supported). Pushers may be
coroutine functions.
"""

import asyncio
import base64
import importlib
import inspect
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import meter

SLICE = 1000
WARM = 200  # pushes before the clock starts: connections, imports, caches
PROBES = 5  # pushes before the first that is measured, so that none pays for the connection
# just under the size from which the framework's client compresses, so that all move the same bytes
PAYLOAD_BYTES = 98_000

NUMBERED = frozenset(
    {"plain", "health", "limited", "deduplicated", "tracked", "recorded", "guidelines"}
    | {"dying", "retried", "deferred", "paused", "fair"}
)
"""Kinds whose jobs have a number of their own: equal ones would be duplicates."""

Pusher = Callable[..., Any]


def argument_lists(kind: str, numbers: range) -> Sequence[list[Any]]:
    """Return the arguments of jobs of this kind when they carry no measurement."""
    if kind in NUMBERED:
        return [[number] for number in numbers]
    if kind == "payload":
        text = base64.b64encode(random.Random(7).randbytes(PAYLOAD_BYTES * 3 // 4)).decode()
        return [[text]] * len(numbers)
    return [[meter.clock()] if kind == "latency" else []] * len(numbers)


async def settled(value: Any) -> Any:
    return await value if inspect.iscoroutine(value) else value


async def push_all(module: Any, kind: str, queue: str, jobs: Sequence[list[Any]]) -> None:
    bulk = module.bulk_pusher(kind, queue)
    if bulk is None:
        await push_one_by_one(module.pusher(kind, queue), jobs)
        return
    for start in range(0, len(jobs), SLICE):
        await settled(bulk(jobs[start : start + SLICE]))


async def push_one_by_one(push: Pusher, jobs: Sequence[list[Any]]) -> None:
    if inspect.iscoroutinefunction(push):
        for args in jobs:
            await push(*args)
    else:
        for args in jobs:
            push(*args)


async def fill(module: Any, kind: str, queues: list[str], count: int) -> dict[str, float]:
    """Spread ``count`` jobs evenly over the queues."""
    jobs = argument_lists(kind, range(count))
    share, rest = divmod(count, len(queues))
    start = 0
    for number, queue in enumerate(queues):
        end = start + share + (number < rest)
        await push_all(module, kind, queue, jobs[start:end])
        start = end
    return {"count": count}


async def push(module: Any, kind: str, count: int) -> dict[str, float]:
    """Push one at a time from one client."""
    pusher = module.pusher(kind, "default")
    await push_one_by_one(pusher, argument_lists(kind, range(WARM)))
    jobs = argument_lists(kind, range(WARM, WARM + count))
    began, used = meter.clock(), time.process_time()
    await push_one_by_one(pusher, jobs)
    return _rate(count, began, used)


async def bulk(module: Any, kind: str, count: int) -> dict[str, float]:
    """Push in calls of 1,000."""
    pusher = module.bulk_pusher(kind, "default")
    await settled(pusher(argument_lists(kind, range(SLICE))))
    jobs = argument_lists(kind, range(SLICE, SLICE + count // SLICE * SLICE))
    began, used = meter.clock(), time.process_time()
    for start in range(0, len(jobs), SLICE):
        await settled(pusher(jobs[start : start + SLICE]))
    return _rate(count // SLICE * SLICE, began, used)


def _rate(count: int, began: float, used: float) -> dict[str, float]:
    return {"rate": count / (meter.clock() - began), "cpu_us": (time.process_time() - used) / count * 1e6}


def sleep_until(due: float) -> None:
    # It blocks, also in an event loop: no other task must run, and a loop's timer would be less exact.
    time.sleep(max(0.0, due - meter.clock()))


async def latency(
    module: Any, queues: list[str], count: int, period_s: float, kind: str = "latency"
) -> dict[str, float]:
    """Push one job per period, each with the time just before its push."""
    await push_one_by_one(module.pusher("noop", "default"), [[]] * PROBES)
    pushers = [module.pusher(kind, queue) for queue in queues]
    due = meter.clock()
    for number in range(count):
        due += period_s
        sleep_until(due)
        await settled(pushers[number % len(pushers)](meter.clock()))
    return {"count": count}


async def mixed(
    module: Any, count: int, burst: int, period_s: float, slow_every: int, slow_s: float, fast_s: float
) -> dict[str, float]:
    """Push bursts of jobs, every n-th of them slow."""
    pusher = module.bulk_pusher("mixed", "default")
    due = meter.clock()
    for start in range(0, count, burst):
        due += period_s
        sleep_until(due)
        now = meter.clock()
        numbers = range(start, min(start + burst, count))
        await settled(pusher([[now, fast_s if (number + 1) % slow_every else slow_s] for number in numbers]))
    return {"count": count}


async def repeat(module: Any, kind: str, count: int) -> dict[str, float]:
    """Do something so often, one at a time."""
    call = module.caller(kind)
    for _ in range(count):
        call()
    return {"count": count}


def read_plan(path: str) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads(Path(path).read_text())
    return plan


async def guideline(module: Any, plan: str) -> dict[str, float]:
    """Push the planned jobs one at a time, in their order."""
    given = read_plan(plan)
    push_one = module.guideline_pusher()
    for number, namespace, policies, large in given["jobs"]:
        push_one(namespace, policies, number, *([given["records"]] if large else []))
    return {"count": len(given["jobs"])}


ACTIONS = {action.__name__: action for action in (fill, push, bulk, latency, mixed, guideline, repeat)}


async def main() -> None:
    name, action, given = sys.argv[1:]
    module = importlib.import_module(name)
    await settled(module.prepare())
    print(json.dumps(await ACTIONS[action](module, **json.loads(given))))


asyncio.run(main())
