"""Check PUSH_UP_TO on each server: it pushes exactly the missing jobs of a limited capacity worker, or none."""

import pytest
from redis.exceptions import OutOfMemoryError, ResponseError

from framework.store.script import PUSH_UP_TO, TAKE_SLOT
from tests.harness import full_memory
from tests.store.test_scripts import ODD, QUEUE, QUEUES, WORKING, listed, now, redis

__all__ = ["redis"]

BASE = "aw:limit:C"
RUNNING = f"{BASE}:running"


def fill(redis, most, *jobs, queue="q"):
    names = [f"j{at}" for at in range(len(jobs))]
    return PUSH_UP_TO(
        redis,
        [BASE, QUEUES, *[f"queue:{queue}"] * len(jobs)],
        [most, 600, len(jobs), *jobs, *names, *[queue] * len(jobs)],
    )


def test_push_up_to_counts_running_and_waiting_jobs(redis):
    stamp = now(redis)
    redis.zadd(RUNNING, {"me j7": stamp + 60, " j8": stamp + 60, "dead j9": stamp - 1})
    assert fill(redis, 5) == [0, 3]
    assert fill(redis, 5, ODD, b"b", b"c", b"d") == [3, 0]
    assert listed(redis, QUEUE) == [b"c", b"b", ODD]
    assert redis.smembers(QUEUES) == {b"q"}
    assert {member for member, until in redis.zrange(RUNNING, 0, -1, withscores=True) if until > stamp + 590} == {
        b" j0",
        b" j1",
        b" j2",
    }
    assert fill(redis, 5, ODD, "new", "new") == [3, 0]  # jobs with these ids exist
    assert redis.llen(QUEUE) == 3
    assert fill(redis, 6, ODD, "b", "c", "e") == [4, 0]
    assert listed(redis, QUEUE) == [b"e", b"c", b"b", ODD]
    assert fill(redis, 2, *"abcdefg") == [4, 0]
    assert (redis.hget(BASE, "limit"), redis.smembers("aw:limits")) == (b"2", {BASE.encode()})


def test_push_up_to_reserved_slot_is_its_jobs_only(redis):
    fill(redis, 1, "a")

    def ask(data, jid):
        redis.lpush(WORKING, data)
        return TAKE_SLOT(redis, [WORKING, BASE], [data, f"me {jid}", jid, "q", 1, 180, "", "", 0, "refuse", ""])

    assert ask("b", "stranger")[0] == 2
    assert ask("a", "j0")[0] == 1
    assert redis.zrange(RUNNING, 0, -1) == [b"me j0"]
    assert fill(redis, 1, "c") == [0, 0]


def test_push_up_to_prefers_the_operators_limit(redis):
    redis.hset(BASE, mapping={"override": 1, "override_until": ""})
    assert fill(redis, 5, "a", "b") == [1, 0]


def test_push_up_to_refused_write_reserves_nothing(redis):
    fill(redis, 2)  # the limit is known
    with full_memory(redis), pytest.raises(OutOfMemoryError):
        fill(redis, 2, "a")
    redis.set("queue:odd", "no list")
    with pytest.raises(ResponseError):
        fill(redis, 2, "a", queue="odd")
    assert redis.exists(RUNNING, QUEUE) == 0
    redis.set(RUNNING, "x")
    with pytest.raises(ResponseError):
        fill(redis, 2, "a")
    assert redis.exists(QUEUE) == 0
