"""Check that a delay counts by Redis's clock, also from a producer whose clock is ten minutes wrong."""

import json
import logging
import time
from dataclasses import replace
from pathlib import Path

import pytest

from framework.declare.policy_options import Deduplicate
from framework.declare.request import DueTime
from framework.errors import ArgumentsError, ShardUnavailableError
from framework.process_clock import process_clock
from framework.push.bulk import ScheduleWriter
from framework.shard.shard import Shard
from framework.wire import keys
from tests.harness import Site, full_memory
from tests.push.conftest import worker
from tests.tables import each_row

PRODUCER = Path(__file__).with_name("slow_clock_producer.py")
SLACK_S = 60.0
"""A loaded machine is slow; ten minutes of skew are more."""


@pytest.fixture
def site(tmp_path, redis_url):
    return Site(tmp_path, redis_url)


def due_in_seconds(redis):
    """Return in how many seconds each job is due, by the clock of Redis."""
    now = redis.time()[0]
    found = redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)
    return {(job["class"], job["args"][0]): due - now for job, due in ((json.loads(data), due) for data, due in found)}


def near(found, expected):
    return expected - SLACK_S <= found <= expected + 1


@pytest.mark.proves("F18", "R50")
@pytest.mark.parametrize(
    ("off_s", "middleware"), [(-600, ()), (600, ("middleware",))], ids=["slow", "fast, middleware"]
)
def test_delay_with_a_wrong_host_clock_counts_by_redis(site, redis, off_s, middleware):
    done = site.run(str(PRODUCER), str(off_s), *middleware)
    result = json.loads(done.stdout)
    found = due_in_seconds(redis)
    for name in ("PlainWorker", "TrackedWorker", "EqualWorker"):
        assert near(found[name, "in"], 300), name
        first = found[name, "first"]
        assert near(first, 300), name
        assert [round(found[name, which] - first, 3) for which in ("second", "third")] == [60, 120]
    assert near(found["PlainWorker", "at"], 1_000 + off_s)  # a fixed time is not corrected
    assert [json.loads(data)["args"] for data in redis.lrange("queue:default", 0, -1)] == [["now"]]
    assert near(redis.ttl(keys.status(result["jids"]["TrackedWorker"])), 350)
    locks = {redis.hget(key, "jid").decode(): redis.pttl(key) / 1_000 for key in redis.keys("aw:lock:*")}
    assert near(locks[result["jids"]["EqualWorker"]], 300 + 600)
    assert done.stderr.count("clock.skew") == 1
    assert f"{'ahead of' if off_s > 0 else 'behind'} the clock of the shard's Redis" in done.stderr
    # The chain sees the due time by the host's clock.
    assert [one for one in result["seen"] if not (300 - SLACK_S < one < 421 or near(one, 1_000))] == []
    assert len(result["seen"]) == (13 if middleware else 0)


def test_delay_with_a_right_host_clock_logs_no_warning(site, redis):
    done = site.run(str(PRODUCER), "0")
    assert "clock.skew" not in done.stderr
    assert near(due_in_seconds(redis)["PlainWorker", "in"], 300)


@each_row("delay", [0, -5, -(10**8)])
def test_delay_of_zero_enqueues_at_once(push_mode, jobs, redis, delay):
    worker(queue="default").perform_in(delay, 1)
    worker(queue="default").perform_bulk_in(delay, [(2,)])
    assert [job["args"] for job in jobs()] == [[1], [2]]
    assert all("enqueued_at" in job and "at" not in job for job in jobs())
    assert not redis.exists(keys.SCHEDULE)


def test_delay_of_a_second_and_a_lock_agree(pusher, redis):
    """The same script computes the due time and the lifetime of the lock."""
    job = worker(queue="default", idempotent=True, deduplicate=Deduplicate(including_scheduled=True))
    jid = job.perform_in(1_000, 1)
    assert job.perform_in(5, 1) is None
    ((_, due),) = redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)
    (lock,) = redis.keys("aw:lock:*")
    assert redis.hget(lock, "jid").decode() == jid
    assert abs(redis.pexpiretime(lock) / 1_000 - 600 - due) < 1


def test_delay_takes_one_round_trip(pusher, calls, redis):
    job = worker(queue="default")
    job.perform_in(60, 1)
    calls("evalsha"), calls("zadd"), calls("time")
    job.perform_in(60, 2)
    assert (calls("evalsha"), calls("zadd"), calls("time")) == (1, 1, 1)
    assert not any("at" in json.loads(data) for data in redis.zrange(keys.SCHEDULE, 0, -1))


def test_delay_on_a_full_server_is_refused_and_leaves_nothing(push_mode, redis):
    job = worker(queue="default", status_expiration=60)
    job.perform_in(60, 0)
    redis.flushdb()
    with full_memory(redis), pytest.raises(ShardUnavailableError, match="OOM") as refused:
        job.perform_in(60, 1)
    assert not refused.value.maybe_written
    assert redis.keys("*") == []


def test_due_time_set_by_a_middleware_is_used(pusher, redis):
    class Later:
        def call(self, cls, job, queue, pool):
            job["at"] = 4_000_000_000
            yield

    pusher.open(Later)
    job = worker(queue="default")
    job.perform_in(60, 1)
    job.perform_bulk_in(60, [(2,), (3,)])
    job.perform_async(4)
    found = redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)
    assert [due for _, due in found] == [4_000_000_000.0] * 3
    assert not any("at" in json.loads(data) for data, _ in found)


@each_row("due", ["soon", None, True, float("nan"), 10**400])
def test_push_invalid_due_time_of_a_middleware_is_refused(pusher, redis, due):
    class Spoil:
        def call(self, cls, job, queue, pool):
            job["at"] = due
            yield

    pusher.open(Spoil)
    with pytest.raises(ArgumentsError, match="epoch seconds into `at`"):
        worker(queue="default").perform_in(60, 1)
    assert not redis.exists(keys.SCHEDULE)


def test_clock_skew_is_logged_once_per_shard(pusher, caplog, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(process_clock, "now", lambda: time.time() - 600)
    monkeypatch.setattr(process_clock, "monotonic", lambda: now[0])
    slow = ScheduleWriter()
    shard = pusher.shards["main"]
    with caplog.at_level(logging.WARNING, logger="framework"):
        for _ in range(3):
            slow.write(shard, b"{}", DueTime(0.0, 5.0), ())
            slow.first_due_at(shard, DueTime(0.0, 5.0))
        now[0] += 3_601
        slow.check_clock(shard)
    assert ["count=1" in record.getMessage() for record in caplog.records] == [True, False]
    assert "skew_s=-" in caplog.records[0].getMessage()


def test_clock_skew_below_a_round_trip_is_not_logged(pusher, caplog, monkeypatch):
    """The reply took an hour: Redis's clock is between the two readings of the host's clock."""
    times = iter([time.time() - 1_800, time.time() + 1_800])
    monkeypatch.setattr(process_clock, "now", lambda: next(times))
    ScheduleWriter().first_due_at(pusher.shards["main"], DueTime(0.0, 5.0))
    assert not caplog.records


@pytest.mark.refused("narrow time")
def test_clock_check_that_fails_does_not_fail_the_push(pusher, redis, redis_url):
    """An ACL without TIME: a push for a fixed time needs no clock."""
    redis.execute_command("ACL", "SETUSER", "narrow", "on", ">secret", "~*", "+@all", "-time")
    endpoint = replace(pusher.shards["main"].endpoint, url=redis_url.replace("unix://", "unix://narrow:secret@"))
    shard = Shard("main", endpoint, role="tests")
    try:
        ScheduleWriter().write(shard, b"{}", DueTime(4_000_000_000.0), ())
        assert redis.zcard(keys.SCHEDULE) == 1
    finally:
        shard.close()
        redis.execute_command("ACL", "DELUSER", "narrow")
