import select
import time
from contextlib import contextmanager

import pytest
from redis.exceptions import OutOfMemoryError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.fetch import blocking as blocking_module
from framework.fetch.blocking import BlockingMoves
from framework.wire import keys
from tests.harness import IDENTITY, full_memory, opened, until
from tests.servers.guarded import narrowed
from tests.servers.proxy import Proxy

WORKING = keys.working(IDENTITY)


@contextmanager
def parking_at(url):
    shard = opened(url)
    client = shard.open_client("fetch", read_timeout_s=5.0)
    one = BlockingMoves(client, WORKING)
    yield one
    one.close()
    client.close()
    shard.close()


@pytest.fixture
def parking(redis, redis_url):
    with parking_at(redis_url) as one:
        yield one


def blocked(redis):
    return [client["id"] for client in redis.client_list() if "b" in client["flags"]]


def test_a_job_comes_into_the_working_list_and_to_whoever_waits(parking, redis):
    parking.arm("a")
    parking.arm("b")
    assert parking.queues == {"a", "b"}
    until(lambda: len(blocked(redis)) == 2)
    redis.lpush("queue:b", "first", "second")
    ((queue, data, waited_s),) = parking.wait(20.0)
    assert (queue, data) == ("b", b"first")
    assert waited_s > 0
    assert redis.lrange(WORKING, 0, -1) == [b"first"]
    assert redis.lrange("queue:b", 0, -1) == [b"second"]
    assert parking.queues == {"a"}


def test_a_connection_is_used_again(parking, redis):
    for number in range(5):
        parking.arm("a")
        until(lambda: blocked(redis))
        redis.lpush("queue:a", number)
        assert parking.wait(20.0)[0][1] == b"%d" % number
    assert len(parking._idle) == 1


def test_a_wake_up_before_or_during_the_wait_ends_it(parking):
    for _ in range(100_000):  # more than its pipe holds: whoever wakes never waits
        parking.wake()
    assert parking.wait(30.0) == []
    ready, _, _ = select.select([parking._wake_reader], [], [], 0)
    assert ready == []  # all of them are used up


def test_ending_the_calls_brings_what_came_meanwhile(parking, redis):
    parking.arm("a")
    parking.arm("b")
    until(lambda: len(blocked(redis)) == 2)
    redis.lpush("queue:a", "late")
    assert [(unit.queue, unit.data) for unit in parking.cancel_all()] == [("a", b"late")]
    assert blocked(redis) == []
    assert parking.queues == set()
    assert parking.connection_lost_at is None  # each has answered: nothing can come any more


def test_a_broken_call_is_given_up_and_told(parking, redis):
    parking.arm("a")
    until(lambda: blocked(redis))
    redis.client_kill_filter(_id=blocked(redis)[0])
    with pytest.raises(RedisError):
        parking.wait(20.0)
    assert parking.queues == set()
    assert parking.connection_lost_at is not None


def test_a_full_server_refuses_and_the_connection_stays(parking, redis):
    with full_memory(redis):
        parking.arm("a")
        with pytest.raises(OutOfMemoryError):
            parking.wait(20.0)
    assert parking.queues == set()
    assert parking.connection_lost_at is None
    parking.arm("a")
    until(lambda: blocked(redis))


@pytest.mark.proves("R3")
def test_a_call_that_is_never_answered_is_given_up(parking, redis, monkeypatch):
    parking.arm("a")
    until(lambda: blocked(redis))
    monkeypatch.setattr(blocking_module, "BLOCK_TIMEOUT_S", -blocking_module.REPLY_MARGIN_S)
    with pytest.raises(RedisError, match="no answer"):
        parking.wait(0.0)
    assert parking.queues == set()
    assert parking.connection_lost_at is not None


@pytest.mark.proves("R11")
def test_abandoned_calls_are_closed_and_may_be_left_on_the_server(parking, redis):
    parking.arm("a")
    until(lambda: blocked(redis))
    parking.drop_connections()
    assert parking.queues == set()
    assert parking.connection_lost_at is not None
    until(lambda: not blocked(redis))


def test_a_job_that_came_while_another_call_broke_is_not_overlooked(parking, redis):
    parking.arm("a")
    parking.arm("b")
    until(lambda: len(blocked(redis)) == 2)
    broken = parking._armed["a"].client_id
    redis.client_kill_filter(_id=broken)
    redis.lpush("queue:b", "job")
    ready = {call.descriptor for call in parking._armed.values()}
    until(lambda: set(select.select(list(ready), [], [], 0)[0]) == ready, "both have something to say")
    assert [(queue, data) for queue, data, _ in parking.wait(20.0)] == [("b", b"job")]
    assert parking.queues == set()


@pytest.mark.proves("R3")
def test_a_server_that_hangs_is_waited_for_once(parking, redis, monkeypatch):
    for name in "abcd":
        parking.arm(name)
    until(lambda: len(blocked(redis)) == 4)
    asked = []

    def hang():
        asked.append(1)
        raise RedisTimeoutError("no answer")

    monkeypatch.setattr(parking, "_unblock", hang)
    assert parking.cancel_all() == []
    assert len(asked) == 1
    assert parking.connection_lost_at is not None


# --- connections that die without a sign ----------------------------------------------------------------------------


@pytest.mark.proves("F11", "R3")
def test_a_call_in_a_black_hole_is_given_up_when_its_answer_is_overdue(redis, redis_url, monkeypatch):
    monkeypatch.setattr(blocking_module, "BLOCK_TIMEOUT_S", 1)
    monkeypatch.setattr(blocking_module, "REPLY_MARGIN_S", 0.2)
    with Proxy(redis_url) as proxy, parking_at(proxy.url) as parking:
        parking.arm("a")
        until(lambda: blocked(redis))
        proxy.swallow()
        began = time.monotonic()
        with pytest.raises(RedisError, match="no answer"):
            parking.wait(60.0)  # however long there would be nothing else to do
        assert time.monotonic() - began < 10.0
        assert parking.queues == set()


@pytest.mark.proves("F11")
def test_a_call_whose_connection_is_dead_is_ended_at_the_server_and_not_waited_for(redis, redis_url):
    with Proxy(redis_url) as proxy, parking_at(proxy.url) as parking:
        parking.arm("dead")
        until(lambda: blocked(redis))
        proxy.swallow()
        proxy.heal()
        parking.arm("healthy")
        until(lambda: len(blocked(redis)) == 2)
        redis.lpush("queue:healthy", "job")
        began = time.monotonic()
        assert [unit.data for unit in parking.cancel_all()] == [b"job"]
        assert time.monotonic() - began < 10.0  # which its answer could have taken
        assert blocked(redis) == []
        assert parking.queues == set()
        assert parking.connection_lost_at is not None


@pytest.mark.proves("F11")
def test_calls_abandoned_in_a_black_hole_are_ended_at_the_server_once_it_is_reached(redis, redis_url):
    with Proxy(redis_url) as proxy, parking_at(proxy.url) as parking:
        parking.arm("a")
        until(lambda: blocked(redis))
        proxy.swallow()
        parking.drop_connections()
        proxy.heal()
        assert len(blocked(redis)) == 1  # it would take the next job, and nobody would hear of it
        assert parking.cancel_all() == []
        assert blocked(redis) == []


@pytest.mark.refused("default client|unblock")
def test_where_calls_may_not_be_ended_the_hurried_give_them_up(redis, redis_url):
    with narrowed(redis, "-client|unblock"), parking_at(redis_url) as parking:
        parking.arm("a")
        until(lambda: blocked(redis))
        assert parking.cancel_all(no_wait=True) == []
        assert parking.connection_lost_at is not None
        until(lambda: not blocked(redis), "closed, which the server sees")
