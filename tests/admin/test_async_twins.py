"""Test the asynchronous twins of framework.admin: each call that waits for Redis has one, and it runs in a thread."""

import asyncio
import inspect
import threading

import pytest

from framework import admin
from framework.errors import ReadOnlyError
from framework.wire import keys
from tests.harness import encoded, enqueue

NO_REDIS = {
    "deleted",
    "batches",
    "dead",
    "held",
    "interrupted",
    "read_only",
    "retries",
    "scheduled",
    "worker_class",
    "worker_classes",
    "workflows",
}
"""Functions that only return a set, bind, or read what this process has loaded."""
NO_REDIS_METHODS = {"add", "find of Processes", "of_state", "scan", "where"}


def missing_twins(owner, names):
    return [name for name in names if not name.startswith("a") and not hasattr(owner, f"a{name}")]


def test_every_function_that_waits_has_a_twin():
    functions = {name for name in admin.__all__ if inspect.isfunction(getattr(admin, name))}
    assert missing_twins(admin, functions - NO_REDIS) == []
    assert all(
        inspect.iscoroutinefunction(getattr(admin, f"a{name}")) for name in functions - NO_REDIS if name[0] != "a"
    )


SETS = ["JobEntry", "MatchingJobs", "JobSet", "MatchingHeldJobs", "HeldSet"]


@pytest.mark.parametrize("owner", [*SETS, "Queue", "QueuedJob", "WorkerProcess", "Processes"])
def test_every_method_that_waits_has_a_twin(owner):
    cls = getattr(admin, owner)
    own = {name: value for name, value in vars(cls).items() if not name.startswith("_")}
    waiting = {
        name for name, value in own.items() if inspect.isfunction(value) or name in ("size", "latency", "paused")
    }
    waiting = {name for name in waiting if not {name, f"{name} of {owner}"} & NO_REDIS_METHODS}
    assert missing_twins(cls, waiting) == []
    assert hasattr(cls, "__aiter__") == ("__iter__" in vars(cls) or issubclass(cls, admin.MatchingHeldJobs))


def test_twins_do_the_same_in_a_thread(shard, redis):
    for number in range(250):
        enqueue(redis, "Mail", jid=f"j{number}", queue="mailers")
    redis.zadd(keys.DEAD, {encoded("Mail", jid="d1", queue="other"): 1_700_000_000})
    threads = set()

    async def act():
        queue = admin.Queue("mailers")
        assert [one.name for one in await admin.aqueues("main")] == ["mailers"]
        assert (await admin.astats()).enqueued == await queue.asize() == 250
        assert len([job async for job in queue]) == 250
        assert [await job.aretry() async for job in admin.dead()] == [True]
        await queue.apause()
        assert await queue.apaused()
        assert await queue.aclear(on_progress=lambda _: threads.add(threading.current_thread())) == 250
        with admin.read_only(), pytest.raises(ReadOnlyError, match=r"Queue\.unpause\(\) is refused"):
            await queue.aunpause()

    asyncio.run(act())
    assert threads
    assert threading.main_thread() not in threads
    assert redis.smembers(keys.PAUSED) == {b"mailers"}
    assert redis.llen("queue:other") == 1
