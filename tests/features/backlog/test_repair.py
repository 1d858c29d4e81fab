"""Test the repair of the counts of accepted jobs: after what other programs delete, and only then."""

import pytest

from framework.features.backlog.repair import CountRepair
from framework.settings.model import SizeLimitSettings
from framework.wire import keys
from tests.harness import encoded


def jobs(count, start=0, **fields):
    return [encoded("Mail", jid=f"j{start + at}", aw_accepted=100, **fields) for at in range(count)]


@pytest.fixture
def repair(granted, redis):
    """Put 20 counted jobs of a class with a limit of 20 into several places."""
    redis.sadd("queues", "mail")
    redis.lpush("queue:mail", *jobs(10))
    redis.zadd("schedule", dict.fromkeys(jobs(5, 10), 4e9))
    redis.zadd("retry", dict.fromkeys(jobs(4, 15), 4e9))
    redis.zadd("aw:limit:Mail:waiting:", {b'["mail","j19",""]\n' + jobs(1, 19)[0]: 1})
    redis.zadd("aw:limit:Mail:turns", {"": 1})
    redis.sadd(keys.LIMITS_WAITING, "aw:limit:Mail")
    redis.zadd("dead", dict.fromkeys(jobs(3, 30), 1))
    redis.hset(keys.ACCEPTED_JOBS, "Mail", 20)
    redis.hset(keys.ACCEPTED_BYTES, "Mail", 2_000)
    return CountRepair(granted, "main", SizeLimitSettings(), {"Mail": 20, "Other": 5})


def counts(redis):
    return int(redis.hget(keys.ACCEPTED_JOBS, "Mail")), int(redis.hget(keys.ACCEPTED_BYTES, "Mail"))


def check(repair, times=3):
    for _ in range(times):
        repair.check()


def test_right_count_stays(repair, redis):
    check(repair)
    assert counts(redis) == (20, 2_000)


def test_count_of_deleted_jobs_is_corrected_at_the_second_check(repair, redis, caplog):
    redis.ltrim("queue:mail", 0, 5)
    check(repair, 1)
    assert counts(redis) == (20, 2_000)
    check(repair, 1)
    assert counts(redis) == (16, 1_600)
    assert "the count of accepted jobs of Mail was too high" in caplog.text
    check(repair)
    assert counts(redis) == (16, 1_600)


def test_count_of_revived_jobs_is_corrected(repair, redis):
    redis.lpush("queue:mail", *jobs(2, 40))
    check(repair)
    assert counts(redis) == (22, 2_200)


def test_small_difference_of_one_check_is_left_alone(repair, redis):
    redis.ltrim("queue:mail", 1, -1)
    check(repair, 1)
    redis.hincrby(keys.ACCEPTED_JOBS, "Mail", 1)
    # Another difference than before: jobs move.
    check(repair, 1)
    assert counts(redis)[0] == 21


def test_class_far_below_its_limit_is_not_read(repair, redis):
    redis.hset(keys.ACCEPTED_JOBS, "Mail", 9)
    before = redis.info("commandstats").get("cmdstat_lrange", {}).get("calls", 0)
    check(repair)
    assert counts(redis)[0] == 9
    assert redis.info("commandstats").get("cmdstat_lrange", {}).get("calls", 0) == before
