import asyncio
import gc
from contextlib import nullcontext

import pytest
from redis import Redis
from redis.exceptions import RedisError

from framework.execute.cancellation import Cancellations
from framework.execute.stats import RunningJobs
from framework.store.absent_keys import AbsentKeys
from framework.wire import keys
from tests.harness import full_memory, server_lines
from tests.servers.guarded import narrowed

KEY = keys.iteration("j")


@pytest.fixture
def cancellations(redis, granted):
    return Cancellations(granted)


@pytest.fixture
def lines():
    with server_lines("info") as read:
        yield read


def calls(redis, command):
    return redis.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]


def test_watch_sees_a_cancellation_by_ruby(redis, cancellations):
    redis.hset(KEY, "cancelled", 1_795_284_241)
    assert cancellations.watch("j").cancelled
    assert not cancellations.watch("another").cancelled
    assert redis.hgetall(KEY) == {b"cancelled": b"1795284241", b"c": b"null"}
    assert 2_000_000 < redis.ttl(KEY) <= 2_592_000


def test_cancellation_keeps_the_cursor_of_a_ruby_job(redis, cancellations):
    redis.hset(KEY, mapping={"ex": 1, "c": "[7]", "rt": "0.5"})
    running = cancellations.watch("j")
    assert not running.cancelled
    redis.hset(KEY, "cancelled", 5)
    cancellations.refresh()
    assert running.cancelled
    assert redis.hget(KEY, "c") == b"[7]"


def test_refresh_asks_once_for_all_watched_jobs(redis, cancellations):
    running = [cancellations.watch(str(number)) for number in range(20)]
    redis.hset(keys.iteration("7"), "cancelled", 5)
    before = calls(redis, "hget")
    cancellations.refresh()
    assert calls(redis, "hget") - before == 20
    assert [one.cancelled for one in running] == [number == 7 for number in range(20)]
    cancellations.refresh()
    assert calls(redis, "hget") - before == 39
    del running[:15]
    gc.collect()
    cancellations.refresh()
    assert calls(redis, "hget") - before == 44  # Redis is not asked about jobs that have ended


def test_watch_on_the_event_loop_does_not_ask_redis(redis, cancellations):
    redis.hset(KEY, "cancelled", 5)

    async def look():
        return cancellations.watch("j")

    running = asyncio.run(look())
    assert not running.cancelled
    cancellations.refresh()
    assert running.cancelled


def test_cancellation_refused_by_redis_cancels_nothing(redis, cancellations):
    redis.set(keys.iteration("odd"), "no hash")
    redis.hset(KEY, "cancelled", 5)
    odd = cancellations.watch("odd")
    with full_memory(redis):
        assert cancellations.watch("j").cancelled
    cancellations.refresh()
    assert not odd.cancelled


def test_cancellation_without_redis_cancels_nothing():
    gone = Cancellations(Redis(port=1, retry=None))
    running = gone.watch("j")
    assert not running.cancelled
    with pytest.raises(RedisError):
        gone.refresh()


def test_job_without_id_is_never_watched(redis, cancellations):
    redis.hset(keys.iteration(""), "cancelled", 5)
    assert not cancellations.watch("").cancelled
    assert not RunningJobs().cancellation("j").cancelled


# --- marks of framework.cancel ----------------------------------------------------------------------------------------


def test_refresh_reads_only_new_marks(redis, cancellations, monkeypatch):
    monkeypatch.setattr("framework.execute.cancellation._PAGE", 3)
    redis.zadd(keys.CANCELLED, {f"j{number}": number // 2 for number in range(10)})
    cancellations.refresh()
    assert cancellations.marked == {f"j{number}" for number in range(10)}
    before = calls(redis, "zrangebyscore")
    redis.zadd(keys.CANCELLED, {"late": 4, "later": 5})
    cancellations.refresh()
    assert calls(redis, "zrangebyscore") - before == 2
    assert {"late", "later"} <= cancellations.marked


def test_refresh_after_a_clock_set_back_reads_all_marks(redis, cancellations):
    redis.zadd(keys.CANCELLED, {"a": 1_000})
    cancellations.refresh()
    redis.zadd(keys.CANCELLED, {"b": 900})
    cancellations.refresh()
    assert cancellations.marked == {"a", "b"}


def test_refresh_forgets_marks_of_ended_jobs(redis, granted, cancellations, monkeypatch):
    monkeypatch.setattr("framework.execute.cancellation._MOST_ENDED", 2)
    marked = cancellations.marked
    redis.zadd(keys.CANCELLED, {str(number): number for number in range(9)})
    cancellations.refresh()
    redis.zrem(keys.CANCELLED, *map(str, range(8)))
    seen, pipeline = [], granted.pipeline
    monkeypatch.setattr(granted, "pipeline", lambda **options: seen.append("8" in marked) or pipeline(**options))
    cancellations.refresh()
    assert marked == {"8"}
    # A job that starts between two reads finds its mark.
    assert seen == [True, True]
    redis.delete(keys.CANCELLED)
    cancellations.refresh()
    assert marked == set()


def test_refresh_keeps_a_bounded_number_of_marks(redis, cancellations, monkeypatch, lines):
    monkeypatch.setattr("framework.execute.cancellation._PAGE", 2)
    monkeypatch.setattr("framework.execute.cancellation._MOST_MARKS", 6)
    redis.zadd(keys.CANCELLED, {f"j{number}": number for number in range(20)})
    for _ in range(3):
        cancellations.refresh()
        assert cancellations.marked == {f"j{number}" for number in range(6)}
    assert [line["message"].split()[0] for line in lines()] == ["20"]
    redis.zremrangebyscore(keys.CANCELLED, 0, 17)
    monkeypatch.setattr("framework.execute.cancellation._MOST_ENDED", 1)
    cancellations.refresh()
    assert cancellations.marked == {"j18", "j19"}


def test_empty_set_of_marks_is_not_read(redis, granted):
    absent = AbsentKeys([keys.CANCELLED], 60.0)
    cancellations = Cancellations(granted, absent)
    cancellations.refresh()
    absent.check(granted)
    before = calls(redis, "zrangebyscore"), calls(redis, "zcard")
    cancellations.refresh()
    assert (calls(redis, "zrangebyscore"), calls(redis, "zcard")) == before
    redis.zadd(keys.CANCELLED, {"j": 1})
    assert absent.check(granted)
    cancellations.refresh()
    assert cancellations.marked == {"j"}


@pytest.mark.parametrize("problem", ["type", pytest.param("right", marks=pytest.mark.refused("default zcard"))])
def test_unreadable_marks_cancel_nothing(redis, granted, problem):
    if problem == "type":
        redis.hset(keys.CANCELLED, "j", 1)
    else:
        redis.zadd(keys.CANCELLED, {"j": 1})
    redis.hset(KEY, "cancelled", 1)
    cancellations = Cancellations(granted)
    running = cancellations.watch("j")
    with narrowed(redis, "-zcard") if problem == "right" else nullcontext():
        cancellations.refresh()
    assert (cancellations.marked, running.cancelled) == (set(), True)


def test_watched_job_sees_its_mark(redis, cancellations):
    running = cancellations.watch("j")
    redis.zadd(keys.CANCELLED, {"j": 1})
    cancellations.refresh()
    assert (running.seen, running.cancelled, running.seen) == (False, True, True)
    assert cancellations.watch("j").cancelled
