"""Test that jobs which a flag defers wait without cost, and come back when the flag lets them run."""

import pytest

from framework.features.deferral.parked import PARKED_S, REASON, ParkedJobs
from framework.features.flags.flag import Flag, run_flag
from framework.features.flags.redis_flags import RedisFlags, set_flag, unset_flag
from framework.fetch.deferred_blocks import name_block
from framework.store.absent_keys import AbsentKeys
from framework.store.connect import server_time
from framework.wire import keys
from tests.harness import IDENTITY, encoded, full_memory, until

RATE = 500.0
FLAG = Flag(run_flag("NoopWorker"), 0, "off", "me")


def deferred(number, cls="NoopWorker", by="feature_flag"):
    return encoded(cls, jid=f"j{number}", deferred=True, deferred_by=by)


@pytest.fixture
def flags(redis, granted):
    set_flag(redis, FLAG, None)
    made = RedisFlags(granted, "main")
    made.read()
    return made


def test_jobs_come_back_at_a_rate_once_their_flag_lets_them_run(redis, granted, flags):
    parked = ParkedJobs(granted, IDENTITY, flags, AbsentKeys(), RATE)
    now = server_time(granted)
    jobs = [deferred(number) for number in range(300)]
    others = [deferred(901, "Other"), deferred(902, by="database_health_check"), encoded("NoopWorker", jid="later")]
    redis.zadd(keys.SCHEDULE, {data: now + PARKED_S + at for at, data in enumerate([*jobs, *others])})
    parked.note("NoopWorker")
    parked.release()
    assert redis.smembers(keys.DEFERRED_CLASSES) == {b"NoopWorker"}
    assert redis.zcount(keys.SCHEDULE, "-inf", now + PARKED_S - 1) == 0
    unset_flag(redis, FLAG.name)
    flags.expect_change()
    flags.read()
    with full_memory(redis):
        parked.release()
    assert redis.sismember(keys.DEFERRED_CLASSES, "NoopWorker")
    parked.release()
    assert redis.zcount(keys.SCHEDULE, now, now + 1 + 300 / RATE + 10) == 300
    assert all(redis.zscore(keys.SCHEDULE, one) > now + PARKED_S for one in others)
    assert not redis.exists(keys.DEFERRED_CLASSES, keys.deferred_release("NoopWorker"))


def test_packed_jobs_come_back_as_blocks_behind_the_others(redis, granted, flags):
    unset_flag(redis, FLAG.name)
    flags.expect_change()
    flags.read()
    now = server_time(granted)
    redis.zadd(keys.SCHEDULE, {deferred(number): now + PARKED_S + number for number in range(20)})
    redis.sadd(keys.DEFERRED_CLASSES, "NoopWorker")
    names = [name_block("NoopWorker", REASON, 10) for _ in range(3)]
    other = name_block("NoopWorker", "database_health_check", 10)
    redis.zadd(keys.DEFERRED_PACKED, {name: now + PARKED_S + at for at, name in enumerate([*names, other])})
    ParkedJobs(granted, IDENTITY, flags, AbsentKeys(), RATE).release()
    times = [redis.zscore(keys.DEFERRED_PACKED, name) for name in names]
    assert [round((one - times[0]) * RATE) for one in times] == [0, 10, 20]
    assert redis.zcount(keys.SCHEDULE, now, times[0]) == 20
    assert redis.zscore(keys.DEFERRED_PACKED, other) > now + PARKED_S
    assert not redis.exists(keys.DEFERRED_CLASSES)


def test_another_process_waits_until_the_first_has_died(redis, granted, flags):
    unset_flag(redis, FLAG.name)
    flags.expect_change()
    flags.read()
    redis.zadd(keys.SCHEDULE, {deferred(1): server_time(granted) + PARKED_S})
    redis.sadd(keys.DEFERRED_CLASSES, "NoopWorker")
    redis.set(keys.deferred_release("NoopWorker"), "another", px=60_000)
    second = ParkedJobs(granted, IDENTITY, flags, AbsentKeys(), RATE)
    second.release()
    assert redis.sismember(keys.DEFERRED_CLASSES, "NoopWorker")
    redis.delete(keys.deferred_release("NoopWorker"))
    second.release()
    assert redis.zcount(keys.SCHEDULE, "-inf", server_time(granted) + 60) == 1


def test_due_job_stays_while_its_flag_lets_none_run(site, redis):
    set_flag(redis, FLAG, None)
    site.hurried_worker("-q", "default").ready()
    redis.zadd(keys.SCHEDULE, {deferred(1): 1})
    until(lambda: redis.zcount(keys.SCHEDULE, server_time(redis) + PARKED_S / 3, "+inf"), "the job is postponed")
    until(lambda: redis.sismember(keys.DEFERRED_CLASSES, "NoopWorker"), "its class is noted")
    unset_flag(redis, FLAG.name)
    until(lambda: redis.lrange("proof:noop", 0, -1) == [b"j1"], "the job runs")
