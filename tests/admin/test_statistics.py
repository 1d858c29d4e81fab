"""Test the counters and sizes of shards, their sums, and the counts of jobs by class, in bounded steps."""

import itertools
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from framework import admin
from framework.admin import pages
from framework.admin.statistics import count_jobs_by_class
from framework.errors import ShardUnavailableError
from framework.wire import keys
from tests.harness import encoded, enqueue, hold


def test_stats_are_sums_over_the_shards(both_shards, redis, second_redis):
    for client in (redis, second_redis):
        enqueue(client, "Job", queue="a")
        enqueue(client, "Job", queue="b")
        client.set(keys.STAT_PROCESSED, 10)
        client.set(keys.STAT_FAILED, 3)
        client.zadd(keys.SCHEDULE, {encoded(): 1})
        client.zadd(keys.RETRY, {encoded(): 1, encoded("Other"): 1})
        client.zadd(keys.DEAD, {encoded(): 1})
    redis.zadd(keys.INTERRUPTED, {encoded(): 1})
    redis.sadd(keys.PAUSED_CLASSES, "Job")
    redis.zadd(keys.paused_jobs("Job"), {b'["a"]\n' + encoded(): 1})
    found = admin.stats()
    assert found == admin.Stats(
        processed=20,
        failed=6,
        enqueued=4,
        scheduled=2,
        retry=4,
        dead=2,
        interrupted=1,
        held=1,
        shards=found.shards,
    )
    assert found.shards["second"] == admin.ShardStats(processed=10, failed=3, enqueued=2, scheduled=1, retry=2, dead=1)
    assert admin.stats("second").shards == {"second": found.shards["second"]}


def test_times_of_redis_are_read_where_it_answers(silent_second, redis):
    found = admin.server_times()
    assert found.by_shard["main"] == pytest.approx(redis.time()[0], abs=30)
    assert list(found.unanswered) == ["second"]


def test_stats_leave_out_a_silent_shard_and_name_it(silent_second, redis):
    redis.set(keys.STAT_PROCESSED, 7)
    found = admin.stats()
    assert (found.processed, list(found.shards), list(found.unanswered)) == (7, ["main"], ["second"])
    with pytest.raises(ShardUnavailableError, match="shard 'second'"):
        admin.stats("second")


def test_stats_take_keys_of_other_types_for_zero(shard, redis):
    redis.set(keys.STAT_PROCESSED, "many")
    redis.set(keys.RETRY, "no set")
    redis.sadd(keys.QUEUES, "odd")
    redis.set(keys.queue("odd"), "no list")
    assert admin.stats() == admin.Stats(shards={"main": admin.ShardStats()})


def test_history_has_the_days_of_utc(both_shards, redis, second_redis):
    today = datetime.now(UTC).date()
    yesterday = today - timedelta(days=1)
    redis.set(f"{keys.STAT_PROCESSED}:{yesterday}", 5)
    redis.set(f"{keys.STAT_FAILED}:{yesterday}", 2)
    second_redis.set(f"{keys.STAT_PROCESSED}:{yesterday}", 1)
    found = admin.history(2)
    assert found.days[yesterday] == (6, 2)
    assert found.shards["second"][yesterday] == (1, 0)
    assert next(iter(found.days)) >= today
    assert len(found.days) == 2


@pytest.mark.parametrize("days", [0, 1_826])
def test_history_has_five_years_at_most(shard, days):
    with pytest.raises(ValueError, match="from 1 to 1,825"):
        admin.history(days)


def count(redis, *names):
    return count_jobs_by_class(redis, names, lambda place, looked: None)


def test_job_counts_every_place_is_counted(redis):
    enqueue(redis, "Old", queue="a")
    enqueue(redis, "Old", queue="a", jid="2")
    enqueue(redis, "Old", queue="b")
    redis.lpush("queue:unlisted", encoded("Old"))  # the set `queues` lacks the name
    for key in (keys.SCHEDULE, keys.RETRY, keys.DEAD, keys.INTERRUPTED):
        redis.zadd(key, {encoded("Old", jid=key): 1})
    hold(redis, encoded("Old", jid="held"), "host:1:00000000000e")
    redis.zadd(keys.REGISTRY, {"host:1:00000000000e": 1})
    for job in ("New", "Older", "old"):
        enqueue(redis, job, args=["Old"], queue="a")  # the text `Old` as an argument is no class
    places = ["schedule", "retry", "queue a", "queue b", "queue unlisted", "in flight", "dead", "interrupted"]
    assert count(redis, "Old", "Gone") == {
        "Old": Counter(dict.fromkeys(places, 1) | {"queue a": 2}),
        "Gone": Counter(),
    }


@pytest.mark.proves("R53")
def test_job_counts_malformed_jobs_are_ignored(redis):
    redis.lpush("queue:a", b"Old \xff{", b"[]", b'{"class":5,"args":["Old"]}', encoded("Old"))
    redis.zadd(keys.DEAD, {b"Old \x00": 1})
    redis.sadd(keys.QUEUES, "a", "gone", "wrong", b"\xff")
    redis.set("queue:wrong", "Old")
    redis.lpush(b"queue:\xff", encoded("Old"))
    assert count(redis, "Old")["Old"] == {"queue a": 1, "queue \ufffd": 1}


def test_job_counts_escaped_name_is_found(redis):
    redis.lpush("queue:a", encoded("Old::Job"), encoded("Old::Job").replace(b"Old::Job", b"Old\\u003a\\u003aJob"))
    assert count(redis, "Old::Job")["Old::Job"] == {"queue a": 2}


@pytest.mark.proves("R55")
@pytest.mark.parametrize("number", [0, 1, 99, 100, 101, 2_101])
def test_job_counts_long_list_is_read_in_bounded_steps(redis, number):
    jobs = [encoded("Old", jid=str(n)) for n in range(number)]
    if jobs:
        redis.rpush("queue:a", *jobs)
        redis.zadd(keys.DEAD, dict.fromkeys(jobs, 1))
    steps = []
    found = count_jobs_by_class(redis, ["Old"], lambda place, looked: steps.append((place, looked)))
    assert found["Old"] == ({"queue a": number, "dead": number} if number else {})
    looked = [0, *(count for _, count in steps)]
    assert looked[-1] == 2 * number
    assert all(after - before <= pages.MOST for before, after in itertools.pairwise(looked))


@pytest.mark.proves("R62")
def test_job_counts_concurrent_pushes_hide_no_job(redis):
    redis.rpush("queue:a", *(encoded("Old", jid=str(n)) for n in range(1_200)))

    def push(place, looked):
        redis.lpush("queue:a", encoded("New"))
        redis.rpop("queue:a")

    # A process takes jobs at the right end during the count. A job counts if it was in the queue when its page was read.
    assert count_jobs_by_class(redis, ["Old"], push)["Old"]["queue a"] >= 1_195
