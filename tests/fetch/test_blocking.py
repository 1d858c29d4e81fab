import select
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest
from redis.exceptions import OutOfMemoryError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.fetch.blocking import BlockingMoves
from framework.fetch.state import WakeUp
from framework.timings import STANDARD
from framework.wire import keys
from tests.harness import IDENTITY, full_memory, opened, until
from tests.servers.guarded import narrowed
from tests.servers.proxy import Proxy

WORKING = keys.working(IDENTITY)


@contextmanager
def blocking_at(url, timings=STANDARD):
    shard = opened(url)
    client = shard.open_client("fetch", read_timeout_s=5.0)
    wake_up = WakeUp()
    one = BlockingMoves(client, WORKING, wake_up, timings)
    yield one
    one.close()
    wake_up.close()
    client.close()
    shard.close()


@pytest.fixture
def blocking(redis, redis_url):
    with blocking_at(redis_url) as one:
        yield one


def blocked(redis):
    return [client["id"] for client in redis.client_list() if "b" in client["flags"]]


def test_blocking_call_moves_a_job_to_the_working_list(blocking, redis):
    blocking.arm("a")
    blocking.arm("b")
    assert blocking.queues == {"a", "b"}
    until(lambda: len(blocked(redis)) == 2)
    redis.lpush("queue:b", "first", "second")
    ((queue, data, waited_s),) = blocking.wait(20.0)
    assert (queue, data) == ("b", b"first")
    assert waited_s > 0
    assert redis.lrange(WORKING, 0, -1) == [b"first"]
    assert redis.lrange("queue:b", 0, -1) == [b"second"]
    assert blocking.queues == {"a"}


def test_blocking_connection_is_reused(blocking, redis):
    for number in range(5):
        blocking.arm("a")
        until(lambda: blocked(redis))
        redis.lpush("queue:a", number)
        assert blocking.wait(20.0)[0][1] == b"%d" % number
    assert len(blocking._idle) == 1


def test_wake_before_or_during_wait_ends_it(blocking):
    for _ in range(100_000):  # more than the socket holds: `wake` never blocks
        blocking._wake_up.wake()
    assert blocking.wait(30.0) == []
    ready, _, _ = select.select([blocking._wake_up], [], [], 0)
    assert ready == []  # all of them are used up


def test_cancel_all_returns_jobs_that_arrived_meanwhile(blocking, redis):
    blocking.arm("a")
    blocking.arm("b")
    until(lambda: len(blocked(redis)) == 2)
    redis.lpush("queue:a", "late")
    assert [(unit.queue, unit.data) for unit in blocking.cancel_all()] == [("a", b"late")]
    assert blocked(redis) == []
    assert blocking.queues == set()
    assert blocking.connection_lost_at is None  # each has answered: nothing can come any more


def test_broken_call_is_closed_and_raises(blocking, redis):
    blocking.arm("a")
    until(lambda: blocked(redis))
    redis.client_kill_filter(_id=blocked(redis)[0])
    with pytest.raises(RedisError):
        blocking.wait(20.0)
    assert blocking.queues == set()
    assert blocking.connection_lost_at is not None


def test_call_refused_at_maxmemory_keeps_its_connection(blocking, redis):
    with full_memory(redis):
        blocking.arm("a")
        with pytest.raises(OutOfMemoryError):
            blocking.wait(20.0)
    assert blocking.queues == set()
    assert blocking.connection_lost_at is None
    blocking.arm("a")
    until(lambda: blocked(redis))


@pytest.mark.proves("R3")
def test_call_without_an_answer_is_closed(blocking, redis):
    blocking.arm("a")
    until(lambda: blocked(redis))
    blocking._overdue_after_s = 0.0
    with pytest.raises(RedisError, match="no answer"):
        blocking.wait(0.0)
    assert blocking.queues == set()
    assert blocking.connection_lost_at is not None


@pytest.mark.proves("R11")
def test_dropped_connections_may_leave_calls_in_redis(blocking, redis):
    blocking.arm("a")
    until(lambda: blocked(redis))
    blocking.drop_connections()
    assert blocking.queues == set()
    assert blocking.connection_lost_at is not None
    until(lambda: not blocked(redis))


def test_job_is_returned_though_another_call_broke(blocking, redis):
    blocking.arm("a")
    blocking.arm("b")
    until(lambda: len(blocked(redis)) == 2)
    broken = blocking._armed["a"].client_id
    redis.client_kill_filter(_id=broken)
    redis.lpush("queue:b", "job")
    ready = {call.descriptor for call in blocking._armed.values()}
    until(lambda: set(select.select(list(ready), [], [], 0)[0]) == ready, "both have something to say")
    assert [(queue, data) for queue, data, _ in blocking.wait(20.0)] == [("b", b"job")]
    assert blocking.queues == set()


@pytest.mark.proves("R3")
def test_cancel_all_waits_once_for_a_server_that_hangs(blocking, redis, monkeypatch):
    for name in "abcd":
        blocking.arm(name)
    until(lambda: len(blocked(redis)) == 4)
    asked = []

    def hang():
        asked.append(1)
        raise RedisTimeoutError("no answer")

    monkeypatch.setattr(blocking, "_unblock", hang)
    assert blocking.cancel_all() == []
    assert len(asked) == 1
    assert blocking.connection_lost_at is not None


# --- connections that die without a sign ----------------------------------------------------------------------------


@pytest.mark.proves("F11", "R3")
def test_call_on_a_dead_network_is_closed_when_overdue(redis, redis_url):
    short = replace(STANDARD, block_timeout_s=1.0, reply_margin_s=0.2)
    with Proxy(redis_url) as proxy, blocking_at(proxy.url, short) as blocking:
        blocking.arm("a")
        until(lambda: blocked(redis))
        proxy.swallow()
        began = time.monotonic()
        with pytest.raises(RedisError, match="no answer"):
            blocking.wait(60.0)  # however long there would be nothing else to do
        assert time.monotonic() - began < 10.0
        assert blocking.queues == set()


@pytest.mark.proves("F11")
def test_call_on_a_dead_connection_is_ended_in_redis(redis, redis_url):
    with Proxy(redis_url) as proxy, blocking_at(proxy.url) as blocking:
        blocking.arm("dead")
        until(lambda: blocked(redis))
        proxy.swallow()
        proxy.heal()
        blocking.arm("healthy")
        until(lambda: len(blocked(redis)) == 2)
        redis.lpush("queue:healthy", "job")
        began = time.monotonic()
        assert [unit.data for unit in blocking.cancel_all()] == [b"job"]
        assert time.monotonic() - began < 10.0  # which its answer could have taken
        assert blocked(redis) == []
        assert blocking.queues == set()
        assert blocking.connection_lost_at is not None


@pytest.mark.proves("F11")
def test_dropped_calls_are_ended_once_redis_is_reached(redis, redis_url):
    with Proxy(redis_url) as proxy, blocking_at(proxy.url) as blocking:
        blocking.arm("a")
        until(lambda: blocked(redis))
        proxy.swallow()
        blocking.drop_connections()
        proxy.heal()
        assert len(blocked(redis)) == 1  # it would take the next job, and the process would not learn of it
        assert blocking.cancel_all() == []
        assert blocked(redis) == []


@pytest.mark.refused("default client|unblock")
def test_cancel_all_without_wait_closes_what_acl_protects(redis, redis_url):
    with narrowed(redis, "-client|unblock"), blocking_at(redis_url) as blocking:
        blocking.arm("a")
        until(lambda: blocked(redis))
        assert blocking.cancel_all(no_wait=True) == []
        assert blocking.connection_lost_at is not None
        until(lambda: not blocked(redis), "closed, which the server sees")
