"""Test the counters and sizes of shards, and their sums."""

from datetime import UTC, datetime, timedelta

import pytest

from framework import admin
from framework.errors import ShardUnavailableError
from framework.wire import keys
from tests.harness import encoded, enqueue


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
