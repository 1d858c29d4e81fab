"""Check the lines of `jobs explain` about a job's lock."""

import pytest

from framework.admin.explain_reader import ShardSnapshot
from framework.features.deduplication.explain import LockReader, describe_lock
from framework.features.deduplication.store import OUTLIVED
from framework.wire import keys
from framework.wire.resources import IDEMPOTENCY_KEY

KEY = f"{keys.LOCKS}digest"
JOB = {"class": "W", "jid": "a" * 24, IDEMPOTENCY_KEY: KEY, "queue": "default"}


def test_describe_lock_of_a_job_without_one_is_empty(granted):
    assert describe_lock(granted, {"class": "W", "jid": "a" * 24}) == []


def test_describe_lock_tells_an_expired_lock(granted):
    assert describe_lock(granted, JOB) == [f"no lock: {KEY} has expired or was released; an equal job may be pushed"]


@pytest.mark.parametrize(("ttl_s", "left"), [(60, "for 1 min"), (None, "without end")])
def test_describe_lock_tells_the_lock_of_its_owner(granted, redis, ttl_s, left):
    redis.hset(KEY, "jid", JOB["jid"])
    if ttl_s is not None:
        redis.pexpire(KEY, ttl_s * 1000)
    assert describe_lock(granted, JOB) == [f"the lock {KEY} {left}: equal jobs are dropped"]
    redis.hset(KEY, "member", "{}")
    waits = "while the job waits in the schedule set, equal pushes replace it or add to it"
    assert describe_lock(granted, JOB) == [f"the lock {KEY} {left}: {waits}"]


def test_describe_lock_of_a_job_that_never_runs_holds_no_push(granted, redis):
    redis.hset(KEY, "jid", JOB["jid"])
    expired = {**JOB, "expires_in": 60, "expiry": 1.0}
    none = [f"no lock: {KEY} holds up no push, because its job is to end: an equal job may be pushed"]
    assert describe_lock(granted, expired) == none
    redis.zadd(keys.CANCELLED, {JOB["jid"]: 1.0})
    assert describe_lock(granted, JOB) == none
    redis.hset(KEY, "begun", "period")
    assert describe_lock(granted, JOB) != none


def test_describe_lock_tells_another_owner(granted, redis):
    redis.hset(KEY, "jid", b"\xff")
    assert describe_lock(granted, JOB) == [rf"no lock: {KEY} now belongs to the job \xff, without end"]


def test_class_tells_how_many_jobs_outlived_their_locks(granted, redis):
    reader = LockReader(ShardSnapshot(granted, "main"))
    assert reader.of_class("Mail") == ([], {})
    redis.hset(keys.COUNTERS, f'{OUTLIVED}{{worker="Mail"}}', 1_200)
    lines, facts = reader.of_class("Mail")
    assert facts == {"locks_outlived": 1_200}
    assert lines[0][1].startswith("1,200 jobs have waited for longer")
