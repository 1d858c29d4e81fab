"""Check HOLD_PAUSED and RELEASE_PAUSED on each server: unchanged bytes, the order, once, and nothing after the pause."""

import pytest
from redis.exceptions import ResponseError

from framework.features.pause.store import HOLD_PAUSED, RELEASE_PAUSED
from framework.wire.keys import MEMORY_PRESSURE
from tests.store.test_scripts import KEPT, ODD, QUEUE, QUEUES, WORKING, listed, memory, now, redis

__all__ = ["memory", "redis"]

HELD, PAUSES, FLAGS, MARK = "held", "pauses", "flags", "mark"
KEYS = [HELD, PAUSES, QUEUES, FLAGS, MARK]


def hold_job(redis, data, queue="q", *, expected="", strategy="", holds=""):
    payload = data if isinstance(data, bytes) else data.encode()
    entry = b'["%b"]\n%b' % (queue.encode(), payload)
    pause = ["C", "f", expected, strategy, 60_000]
    held_here, _ = HOLD_PAUSED(
        redis, [WORKING, HELD, PAUSES, FLAGS, MARK], [*pause, payload, 0, "", "", 0, entry, holds]
    )
    return held_here


def release(redis, most=100, *, size=1_000_000, seen="", heed="", skip=0):
    return RELEASE_PAUSED(redis, KEYS, ["C", "f", seen, heed, most, size, skip])


def test_hold_and_release_keep_bytes_and_order(redis, memory):
    jobs = [ODD, b"b", b"c\nd", b"e"]
    redis.lpush(WORKING, *jobs)
    redis.lpush(QUEUE, "before")
    with memory():
        assert [hold_job(redis, job) for job in [*jobs, b"not ours", ODD]] == [1, 1, 1, 1, 0, 0]
    assert listed(redis, WORKING) == []
    assert redis.smembers(PAUSES) == {b"C"}
    entries = redis.zrange(HELD, 0, -1, withscores=True)
    assert [member for member, _ in entries] == [b'["q"]\n' + job for job in jobs]
    scores = [score for _, score in entries]
    assert scores == sorted(set(scores))
    assert now(redis) - 60 < scores[0] < now(redis) + 60
    with memory():
        assert release(redis, 3) == [1, 3, 0]
        assert listed(redis, QUEUE) == [b"c\nd", b"b", ODD, b"before"]
        assert redis.smembers(PAUSES) == {b"C"}
        assert release(redis, 3) == [1, 1, 0]
        assert release(redis, 3) == [1, 0, 0]
    assert listed(redis, QUEUE) == [*reversed(jobs), b"before"]
    assert (redis.exists(HELD, PAUSES), redis.smembers(QUEUES)) == (0, {b"q"})


def test_release_near_full_memory_fills_the_queue_to_a_depth(redis):
    redis.zadd(HELD, {b'["q"]\n%d' % number: number for number in range(6)})
    redis.lpush(QUEUE, *["x"] * 998)
    redis.set(MEMORY_PRESSURE, "short")
    assert [release(redis), release(redis)] == [[1, 2, 0], [1, 0, 0]]
    assert listed(redis, QUEUE)[:3] == [b"1", b"0", b"x"]
    redis.rpop(QUEUE)
    assert release(redis, skip=1) == [1, 1, 0]
    # The next is a block: it stays, and the caller does not unpack it.
    redis.zadd(HELD, {b'{ "class":"aw.Packed","queue":"q"}\nbytes': -1})
    assert release(redis) == [1, 0, 0]
    redis.set(MEMORY_PRESSURE, "near")
    assert release(redis) == [2, 0, 0]
    redis.zrem(HELD, b'{ "class":"aw.Packed","queue":"q"}\nbytes')
    assert release(redis) == [1, 3, 0]


def test_release_forgets_a_class_whose_held_jobs_were_dropped(redis, memory):
    redis.lpush(WORKING, "a")
    assert hold_job(redis, "a") == 1
    redis.delete(HELD)
    with memory():
        assert release(redis) == [1, 0, 0]
    assert not redis.exists(PAUSES)


def test_held_jobs_keep_order_despite_clock_and_equal_bytes(redis):
    redis.zadd(HELD, {b'["q"]\nfirst': now(redis) + 3_600})
    redis.lpush(WORKING, "a", "a", "b", "a")
    assert [hold_job(redis, job) for job in (b"a", b"b", b"a", b"a")] == [1, 1, 1, 1]
    assert redis.zrange(HELD, 0, -1) == [b'["q"]\nfirst', b'["q"]\na', b'["q"]\nb', b'["q",2]\na', b'["q",3]\na']
    assert release(redis)[1] == 5
    assert listed(redis, QUEUE)[::-1] == [b"first", b"a", b"b", b"a", b"a"]


def test_hold_and_release_changed_pause_write_nothing(redis):
    redis.lpush(WORKING, "a")
    assert hold_job(redis, "a", expected="paused") == -1
    redis.hset(FLAGS, "f", "paused")
    assert hold_job(redis, "a", expected="other") == -1
    assert (listed(redis, WORKING), redis.exists(HELD)) == ([b"a"], 0)
    assert hold_job(redis, "a", expected="paused") == 1
    assert not redis.exists(MARK)
    assert release(redis) == [-1, 0, 0]
    assert release(redis, seen="paused") == [1, 1, 0]  # garbage, or expired: the caller has read it


def test_release_paused_marker_blocks_unknown_class(redis, memory):
    redis.lpush(WORKING, "a")
    with memory():
        assert hold_job(redis, "a", strategy="reindexing") == 1
    assert (redis.get(MARK), 50_000 < redis.pttl(MARK) <= 60_000) == (b"reindexing", True)
    assert release(redis, heed="heed") == [-1, 0, 0]
    assert release(redis) == [1, 1, 0]
    redis.lpush(WORKING, "b")
    hold_job(redis, "b", strategy="reindexing")
    redis.delete(MARK)
    assert release(redis, heed="heed") == [1, 1, 0]
    redis.lpush(WORKING, "c")
    hold_job(redis, "c", strategy="=breaker: deaths")
    assert release(redis) == [-1, 0, 0]
    assert release(redis, heed="=breaker: deaths") == [1, 1, 0]


def test_hold_keeps_the_lock_and_releases_slots(redis, memory):
    redis.hset("lock", mapping={"jid": "j1"})
    redis.zadd("limit:running", {"me j1": 1, "me j2": 1})
    redis.lpush(WORKING, "a")
    with memory():
        assert hold_job(redis, "not ours", holds=KEPT) == 0
        assert redis.zcard("limit:running") == 2
        assert hold_job(redis, "a", holds=KEPT) == 1
    assert redis.zrange("limit:running", 0, -1) == [b"me j2"]
    assert 50_000 < redis.pttl("lock") <= 60_000


def test_release_skips_jobs_of_an_unusable_queue(redis, memory):
    redis.set("queue:odd", "no list")
    redis.lpush(WORKING, *"abcde")
    for job in "abcde":
        hold_job(redis, job, "odd" if job in "bd" else "q")
    redis.zadd(HELD, {b"no ticket": 1})
    before = redis.zrange(HELD, 0, -1, withscores=True)
    with memory():
        assert release(redis, 2) == [1, 1, 1]
        assert release(redis, 2, skip=1) == [1, 1, 1]
        assert release(redis, 2, skip=2) == [1, 1, 1]
        assert release(redis, 2, skip=3) == [1, 0, 0]
    assert listed(redis, QUEUE) == [b"e", b"c", b"a"]
    assert redis.zrange(HELD, 0, -1, withscores=True) == [
        one for one in before if b"odd" in one[0] or one[0] == b"no ticket"
    ]
    assert redis.smembers(PAUSES) == {b"C"}


def test_release_step_is_bounded_by_bytes(redis):
    redis.lpush(WORKING, "a" * 100, "b" * 100, "c" * 100)
    for job in "abc":
        hold_job(redis, job * 100)
    assert release(redis, size=1) == [1, 1, 0]
    assert release(redis, size=300) == [1, 2, 0]


def test_hold_and_release_with_wrong_types_lose_no_job(redis, memory):
    redis.lpush(WORKING, ODD)
    redis.set(HELD, "x")
    with memory(), pytest.raises(ResponseError):
        hold_job(redis, ODD)
    assert listed(redis, WORKING) == [ODD]
    assert release(redis) == [1, 0, 0]
    redis.delete(HELD)
    for key in (PAUSES, FLAGS, MARK, QUEUES):
        redis.delete(key)
        redis.lpush(key, "x")
    with memory():
        assert hold_job(redis, ODD, strategy="s") == 1
        assert release(redis) == [1, 1, 0]
    assert listed(redis, QUEUE) == [ODD]
