"""Awaited pushes write what their twins write, and never stop the event loop."""

import asyncio
import json
import threading
from contextlib import contextmanager

import pytest

from framework import spread
from framework.declare import port
from framework.errors import ArgumentsError, ShardUnavailableError
from framework.features.concurrency.limited_capacity import LimitedCapacityWorker
from framework.shard import connection as shard_connection
from framework.shard.connection import SLOW_FAILURE_S
from framework.shard.shard import Shard
from framework.store.connect import Endpoint
from framework.telemetry import context
from framework.wire import keys
from tests.harness import opened
from tests.push.conftest import Pusher, worker
from tests.servers.proxy import Proxy

DUE = 4_000_000_000
PUSHES = {
    "async": (lambda job: job.perform_async(1), lambda job: job.aperform_async(1)),
    "in": (lambda job: job.perform_in(600, 1), lambda job: job.aperform_in(600, 1)),
    "at": (lambda job: job.perform_at(DUE, 1), lambda job: job.aperform_at(DUE, 1)),
    "bulk": (lambda job: job.perform_bulk([(1,), (2,)]), lambda job: job.aperform_bulk([(1,), (2,)])),
    "bulk at": (
        lambda job: job.perform_bulk([(1,), (2,)], at=[DUE, DUE + 5]),
        lambda job: job.aperform_bulk([(1,), (2,)], at=[DUE, DUE + 5]),
    ),
    "bulk in": (
        lambda job: job.perform_bulk_in(DUE, [(1,), (2,)], batch_size=1, batch_delay=5),
        lambda job: job.aperform_bulk_in(DUE, [(1,), (2,)], batch_size=1, batch_delay=5),
    ),
    "bulk for": (
        lambda job: job.perform_bulk_for([7], arguments=job.arguments, context=lambda n: {"n": n}),
        lambda job: job.aperform_bulk_for([7], arguments=job.arguments, context=lambda n: {"n": n}),
    ),
    "stream": (lambda job: job.perform_bulk_stream([(1,)]), lambda job: job.aperform_bulk_stream([(1,)])),
}


def written(redis):
    """Return the jobs of all queues and of the schedule, without ids and times, and clear them."""
    found = [(0, data) for key in redis.keys("queue:*") for data in redis.lrange(key, 0, -1)]
    found += [(round(at, -1), data) for data, at in redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)]
    redis.flushall()
    own = {"jid", "created_at", "enqueued_at", "correlation_id"}
    return sorted(str((at, {k: v for k, v in json.loads(data).items() if k not in own})) for at, data in found)


@pytest.mark.parametrize("kind", PUSHES)
def test_awaited_push_writes_what_its_twin_writes(pusher, redis, kind):
    plain, awaited = PUSHES[kind]
    job = worker(queue="default")

    async def act():
        return await awaited(job)

    with context.bound(user="ann"):
        expected = plain(job)
        first = written(redis)
        result = asyncio.run(act())
    assert first
    assert written(redis) == first
    assert type(result) is type(expected)


def test_awaited_push_with_options_uses_them(pusher, jobs):
    chosen = worker(queue="default").set(queue="other", retry=3)
    jid = asyncio.run(chosen.aperform_async(1))
    assert [(job["jid"], job["retry"]) for job in jobs("other")] == [(jid, 3)]


def test_awaited_push_raises_the_errors_of_its_twin(pusher, redis):
    def perform(self, number: int): ...

    job = worker(queue="default", perform=perform)
    with pytest.raises(ArgumentsError, match="number"):
        asyncio.run(job.aperform_async("one"))
    assert redis.dbsize() == 0


@contextmanager
def silent_shard(redis_url, job, *, read_timeout_s):
    """Add a shard that answers one push of the job and nothing more; yield the proxy before it."""
    with Proxy(redis_url) as proxy:
        silent = Shard("silent", Endpoint(proxy.url), role="tests", read_timeout_s=read_timeout_s)
        main = opened(redis_url)
        Pusher({"main": main, "silent": silent})
        job.set(shard="silent").perform_async(0)
        proxy.swallow()
        yield proxy
        silent.close()
        main.close()


def pushes_to_silent_shard(job):
    """Begin more pushes than a shard has threads, so that all threads of the silent shard wait."""
    return [asyncio.create_task(job.set(shard="silent").aperform_async(number)) for number in range(40)]


def test_class_on_several_shards_takes_no_thread_of_others(redis, redis_url, pusher):
    """A push finds its shard in the thread: those to the silent one wait, and so may those of the class to ``main``."""
    job, spread_job = worker(queue="default"), worker("Spread", queue="spread", shard=spread("main", "silent"))

    async def act(proxy):
        waiting = [asyncio.create_task(spread_job.aperform_async(number)) for number in range(80)]
        await asyncio.sleep(0)
        for number in range(3):
            assert await job.aperform_async(number)
        assert not [task for task in waiting if task.done() and task.exception()]
        assert not all(task.done() for task in waiting)
        proxy.close()
        await asyncio.gather(*waiting, return_exceptions=True)

    with silent_shard(redis_url, job, read_timeout_s=240) as proxy:
        asyncio.run(act(proxy))
    assert redis.llen("queue:default") == 4


def test_silent_shard_stops_neither_loop_nor_other_shards(redis, redis_url, pusher):
    job = worker(queue="default")

    async def act(proxy):
        waiting = pushes_to_silent_shard(job)
        await asyncio.sleep(0)
        for number in range(3):
            assert await job.aperform_async(number)
        assert not any(task.done() for task in waiting)
        # Ends the connections of the waiting pushes, so that the test need not wait for the time-out.
        proxy.close()
        return await asyncio.gather(*waiting, return_exceptions=True)

    with silent_shard(redis_url, job, read_timeout_s=240) as proxy:
        errors = asyncio.run(act(proxy))
    assert {type(error) for error in errors} == {ShardUnavailableError}
    assert redis.llen("queue:default") == 4


def test_first_timeout_of_a_silent_shard_fails_waiting_pushes(redis_url, pusher, monkeypatch):
    monkeypatch.setattr(shard_connection, "SLOW_FAILURE_S", SLOW_FAILURE_S)
    job = worker(queue="default")

    async def act():
        return await asyncio.gather(*pushes_to_silent_shard(job), return_exceptions=True)

    with silent_shard(redis_url, job, read_timeout_s=2):
        errors = asyncio.run(act())
    assert {type(error) for error in errors} == {ShardUnavailableError}
    # One push has the open connection; the others may connect in vain at the same time.
    (sent,) = (error for error in errors if "no answer within" in str(error))
    assert sent.maybe_written
    # The timeout opens the circuit, and the pushes that wait for a thread fail at once.
    assert any("nothing was sent" in str(error) for error in errors)


def test_first_awaited_push_builds_the_client_in_a_thread(pusher, redis):
    built = []

    def factory():
        built.append(threading.current_thread())
        return pusher.client

    job = worker(queue="default")
    with port.client.unbound():
        port.bind_factory(factory)
        assert asyncio.run(job.aperform_async(1))
    assert built
    assert threading.main_thread() not in built


def test_cancelled_stream_ends_after_its_chunk(pusher, redis):
    job = worker(queue="default")
    read, release = threading.Event(), threading.Event()

    def jobs():
        yield from ((number,) for number in range(1_000))
        read.set()
        release.wait(30)
        number = 1_000
        while True:
            yield (number,)
            number += 1

    async def act():
        task = asyncio.create_task(job.aperform_bulk_stream(jobs()))
        assert await asyncio.to_thread(read.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        release.set()
        # The thread ends: the next bulks use it.
        await asyncio.gather(*(job.aperform_bulk([(0,)]) for _ in range(8)))

    asyncio.run(act())
    assert redis.llen("queue:default") in (1_008, 2_008)


def test_awaited_push_with_sync_runs_the_job_in_a_thread(pusher, monkeypatch):
    ran = []
    monkeypatch.setattr(
        pusher.client, "perform_inline", lambda *_: ran.append(threading.current_thread()), raising=False
    )
    asyncio.run(worker(queue="default").set(sync=True).aperform_async(1))
    assert ran
    assert threading.main_thread() not in ran


def test_awaited_capacity_pushes_up_to_the_limit(pusher, jobs):
    class ShopWorker(LimitedCapacityWorker):
        feature_category = "not_owned"
        queue = "default"
        max_running_jobs = 3

        def perform_work(self, shop: int) -> None: ...

        def remaining_work_count(self, shop: int) -> int:
            return 0

    jids = asyncio.run(ShopWorker.aperform_with_capacity(7))
    assert [job["jid"] for job in jobs()] == jids
    assert len(jids) == 3
