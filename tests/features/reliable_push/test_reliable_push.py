"""Check that a push during an outage is kept in a file and replayed as the push would have been, on a real Redis."""

import asyncio
import json
import threading
import time
from datetime import timedelta

import pytest

from framework import Deduplicate
from framework.errors import ShardUnavailableError
from framework.features.reliable_push.reliable_push import KeepLimits
from framework.process_clock import process_clock
from framework.supervised_threads import report_to
from framework.wire import keys
from tests.features.reliable_push.conftest import DOWN, FullDisk
from tests.harness import forked, full_memory, until
from tests.push.conftest import LetPass, worker


class Clock:
    """A clock of the process that a test sets forward."""

    def __init__(self):
        self.ahead_s = 0.0

    def __call__(self):
        return time.time() + self.ahead_s


@pytest.fixture
def clock():
    made = Clock()
    with process_clock.override(made):
        yield made


def plain(**attributes):
    return worker(**{"queue": "default", **attributes})


def scheduled(redis):
    return [json.loads(data) | {"score": score} for data, score in redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)]


@pytest.mark.parametrize("middleware", [(), (LetPass,)], ids=("quick", "middleware"))
def test_stopped_and_started_redis_gets_jobs_in_order(make_server, producer, lines, middleware):
    server = make_server()
    shop = producer(url=server.url, period_s=0.02, middleware=middleware)
    job = plain()
    job.perform_async(0)
    server.stop()
    jids = [job.perform_async(number) for number in range(1, 4)] + job.perform_bulk([(4,), (5,)])
    assert shop.reliable.kept[0] == 5
    server.start()
    until(lambda: not shop.files)
    with server.open() as redis:
        found = [json.loads(data) for data in reversed(redis.lrange("queue:default", 0, -1))]
    assert [one["args"] for one in found] == [[number] for number in range(6)]
    assert [one["jid"] for one in found[1:]] == jids
    job.perform_async(6)
    until(lambda: shop.reliable.kept == (0, 0))
    with shop.stopped_replay():  # the round that kept nothing more has written its line before it frees the lock
        begin, kept, end = lines()
    assert (begin["event_name"], kept["event_name"], end["event_name"]) == (
        "push.keeping",
        "push.kept",
        "push.replayed",
    )
    assert (kept["kept_jobs"], end["jobs"]) == (1, 5)


def test_replayed_jobs_have_lock_status_and_time(clock, producer, redis, jobs):
    """A plain push with the same arguments writes the same keys."""
    producer(url=DOWN)
    unique = plain(name="Unique", idempotent=True)
    tracked = plain(name="Tracked", status_expiration=600)
    first, second = unique.perform_async(1), unique.perform_async(1)
    later = tracked.perform_in(timedelta(minutes=10), 2)
    clock.ahead_s = 60.0
    producer().reliable.replay()
    assert [one["jid"] for one in jobs()] == [first]
    assert second != first
    (due,) = scheduled(redis)
    assert due["jid"] == later
    assert due["score"] == pytest.approx(time.time() + 540, abs=20)
    assert redis.get(keys.status(later)) == b"queued"
    unique.perform_async(1)
    assert len(jobs()) == 1


def test_overdue_job_goes_to_its_queue(clock, producer, redis, jobs):
    producer(url=DOWN)
    tracked = plain(name="Tracked", status_expiration=600).perform_in(5, 1)
    plain(name="Late", idempotent=True).perform_in(5, 2)
    early = Deduplicate("until_executed", including_scheduled=True)
    unique = plain(name="Early", queue="early", idempotent=True, deduplicate=early)
    locked = unique.perform_in(5, 3)
    clock.ahead_s = 60.0
    producer().reliable.replay()
    assert [one["jid"] for one in jobs()] == [tracked]
    assert jobs()[0]["enqueued_at"] > jobs()[0]["created_at"]
    assert [one["jid"] for one in jobs("early")] == [locked]
    # It owns its lock.
    assert unique.perform_async(3) is None
    assert 590 < redis.ttl(keys.status(tracked)) <= 601
    # A worker process gives it the lock when it moves it to its queue.
    (late,) = scheduled(redis)
    assert late["score"] < time.time()


def test_push_whose_reply_was_lost_is_found_in_redis(producer, proxy, redis, jobs, lines):
    shop = producer()
    job = plain()
    job.perform_async(0)
    proxy.lose_replies(b"LPUSH", {1})
    jid = job.perform_async(1)
    until(lambda: not shop.files)
    assert [one["jid"] for one in jobs()][1:] == [jid]
    assert [line["jid"] for line in lines() if line["event_name"] == "push.duplicate"] == [jid]


def test_push_whose_job_was_taken_meanwhile_may_run_twice(producer, proxy, redis, jobs, lines):
    shop = producer()
    job = plain()
    job.perform_async(0)
    # The worker of another application takes the job before the replay looks for it.
    proxy.lose_replies(b"LPUSH", {1})
    with shop.stopped_replay():
        jid = job.perform_async(1)
        redis.lpop("queue:default")
    until(lambda: not shop.files)
    assert [one["jid"] for one in jobs()][1:] == [jid]
    assert [line["jid"] for line in lines() if line["event_name"] == "push.maybe_twice"] == [jid]


def test_chunk_whose_reply_was_lost_is_written_once(producer, proxy, redis, jobs):
    shop = producer()
    job = plain()
    job.perform_async(0)
    proxy.lose_replies(b"EXEC", {1})
    with shop.stopped_replay():
        jids = job.perform_bulk([(number,) for number in range(1, 4)])
        redis.delete("queue:default")
    until(lambda: not shop.files)
    assert len(jids) == 3
    assert jobs() == []


@pytest.mark.parametrize(("taken", "event", "left"), [(0, "push.duplicate", 3), (3, "push.maybe_twice", 3)])
def test_chunk_whose_token_expired_is_looked_for(clock, producer, proxy, redis, jobs, lines, taken, event, left):
    shop = producer()
    job = plain()
    proxy.lose_replies(b"EXEC", {1})
    with shop.stopped_replay():
        job.perform_bulk([(number,) for number in range(3)])
        redis.delete(*redis.keys("aw:push:*"))
        for _ in range(taken):
            redis.rpop("queue:default")
        clock.ahead_s = 700.0
    until(lambda: not shop.files)
    assert len(jobs()) == left
    assert [line["jobs"] for line in lines() if line["event_name"] == event] == [3]


def test_push_that_waited_for_a_commit_is_kept(producer, jobs, monkeypatch):
    waiting = []
    monkeypatch.setattr("framework.push.client.sources", [lambda: [waiting.append]])
    monkeypatch.setattr("framework.push.transactions.sources", [lambda: [waiting.append]])
    shop = producer(url=DOWN)
    jid = plain().perform_async(1)
    assert shop.files == []
    waiting.pop()()
    producer().reliable.replay()
    assert [one["jid"] for one in jobs()] == [jid]


def test_awaited_push_is_kept(producer, jobs):
    producer(url=DOWN)
    jid = asyncio.run(plain().aperform_async(1))
    producer().reliable.replay()
    assert [one["jid"] for one in jobs()] == [jid]


def test_delayed_bulk_is_kept_with_its_times(producer, redis):
    producer(url=DOWN)
    jids = plain().perform_bulk_in(60, [(1,), (2,)], batch_size=1, batch_delay=30)
    producer().reliable.replay()
    first, second = scheduled(redis)
    assert [first["jid"], second["jid"]] == jids
    assert second["score"] - first["score"] == pytest.approx(30, abs=0.001)
    assert first["score"] == pytest.approx(time.time() + 60, abs=20)


def test_full_file_raises_as_without_reliable_push(producer):
    producer(url=DOWN, limits=KeepLimits(2, 1_000_000))
    job = plain()
    job.perform_async(1)
    job.perform_async(2)
    with pytest.raises(ShardUnavailableError, match=r"reliable_push.max_jobs = 2 would be exceeded"):
        job.perform_async(3)
    shop = producer(url=DOWN, limits=KeepLimits(100, 1_500))
    with pytest.raises(ShardUnavailableError, match=r"reliable_push.max_bytes = 1,500 would be exceeded"):
        job.perform_async("x" * 2_000)
    # The files of the ended process count.
    assert shop.reliable.kept[0] == 2


def test_push_that_redis_refuses_is_not_kept(producer, redis):
    shop = producer()
    redis.set("queue:default", "no list")
    with pytest.raises(ShardUnavailableError, match="WRONGTYPE"):
        plain().perform_async(1)
    assert shop.files == []


def test_push_to_a_full_redis_is_kept(producer, redis, jobs):
    shop = producer()
    with full_memory(redis), shop.stopped_replay():
        jid = plain().perform_async(1)
    until(lambda: not shop.files)
    assert [one["jid"] for one in jobs()] == [jid]


def test_refused_replay_keeps_its_job_and_passes_others(producer, redis, jobs, lines):
    producer(url=DOWN)
    first, second = plain(), plain(name="Other", queue="other")
    first.perform_async(1)
    jid = second.perform_async(2)
    redis.set("queue:default", "no list")
    shop = producer()
    shop.reliable.replay()
    assert [one["jid"] for one in jobs("other")] == [jid]
    assert shop.reliable.kept[0] == 1
    redis.delete("queue:default")
    shop.reliable.replay()
    assert [one["args"] for one in jobs()] == [[1]]
    assert [line["queue"] for line in lines() if line["event_name"] == "push.replay_refused"] == ["default"]


def test_full_disk_raises_and_leaves_no_half_record(producer, jobs):
    disk = FullDisk()
    shop = producer(url=DOWN, files=disk)
    job = plain()
    first = job.perform_async(1)
    disk.full = True
    with pytest.raises(ShardUnavailableError, match=r"cannot be written \(No space left on device\)"):
        job.perform_async(2)
    disk.full = False
    third = job.perform_async(3)
    disk.full = disk.broken = True
    with pytest.raises(ShardUnavailableError) as caught:
        job.perform_async(4)
    assert caught.value.maybe_written
    disk.full = disk.broken = False
    fifth = job.perform_async(5)
    assert len(shop.files) == 2
    producer().reliable.replay()
    assert [one["jid"] for one in jobs()] == [first, third, fifth]


def test_forked_child_leaves_the_file_to_its_parent(producer, jobs):
    shop = producer(url=DOWN)
    job = plain()
    job.perform_async(1)

    def push_in_child():
        assert shop.reliable.kept == (0, 0)
        job.perform_async(2)
        assert shop.reliable.kept[0] == 1

    assert forked(push_in_child) == 0
    assert len(shop.files) == 2
    # Both have ended: their files are taken over.
    producer().reliable.replay()
    assert sorted(one["args"] for one in jobs()) == [[1], [2]]


def test_push_is_kept_although_no_thread_replays_it(producer, monkeypatch):
    deaths = []
    report_to(lambda name, _: deaths.append(name))
    shop = producer(url=DOWN)

    def refused(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        plain().perform_async(1)
    report_to(None)
    assert (shop.reliable.kept[0], deaths) == (1, ["framework-replay"])
