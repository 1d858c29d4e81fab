"""Cancel matching jobs in every place of a real server."""

import json
import time

import pytest

from framework import admin
from framework.admin import cancel as cancelling
from framework.errors import ReadOnlyError
from framework.finish.endings import CANCELLED_JOBS
from framework.store.script import MARK_CANCELLED
from framework.wire import keys
from tests.harness import encoded, hold

LOCK = keys.lock("c")
FAR = time.time() + 9_000


@pytest.fixture
def everywhere(shard, redis):
    """One job of the class in each place, and one of another class."""
    wanted = {"worker": "Job", "status_expiration": 60, "meta.tenant": "acme"}

    def job(jid):
        return encoded(wanted["worker"], jid=jid, **{k: v for k, v in wanted.items() if k != "worker"})

    redis.zadd(keys.SCHEDULE, {job("scheduled"): FAR, encoded("Other", jid="other1"): FAR})
    redis.zadd(keys.RETRY, {job("retry"): FAR})
    redis.lpush(keys.queue("mail"), job("queued"), encoded("Other", jid="other2"))
    redis.sadd(keys.QUEUES, "mail")
    redis.zadd(keys.paused_jobs("Job"), {json.dumps(["mail"]).encode() + b"\n" + job("paused"): 1})
    redis.zadd(keys.limit("Job") + ":waiting:", {json.dumps(["mail", "waits"]).encode() + b"\n" + job("waits"): 1})
    redis.sadd(keys.LIMITS, keys.limit("Job"))
    hold(redis, job("running"), "host:1:aa")
    redis.zadd(keys.DEAD, {job("dead"): 1})
    redis.sadd(keys.QUEUES, "mail")


def test_old_marks_leave_in_bounded_steps(granted, redis):
    redis.zadd(keys.CANCELLED, {f"old{number}": 1 + number for number in range(1_500)})
    left = []
    for jid in ("a", "b"):
        MARK_CANCELLED(granted, [keys.CANCELLED, keys.status(jid)], [keys.CANCELLED_TTL_S, jid])
        left.append(redis.zcard(keys.CANCELLED))
    assert left == [501, 2]


@pytest.mark.parametrize("iterated", [(), ("b",)], ids=["none is iterated", "one is"])
def test_mark_for_ruby_keeps_the_cursor_of_an_iterated_job(granted, redis, iterated):
    for jid in iterated:
        redis.hset(keys.iteration(jid), mapping={"c": "7", "ex": "1"})
    jids = ["a", "b"]
    assert MARK_CANCELLED(granted, [keys.CANCELLED, *map(keys.status, jids)], [60, *jids]) == [1, 1]
    for jid in jids:
        mark = redis.hgetall(keys.iteration(jid))
        assert float(mark.pop(b"cancelled")) > 0
        assert mark == ({b"c": b"7", b"ex": b"1"} if jid in iterated else {b"c": b"null"})
        assert 0 < redis.ttl(keys.iteration(jid)) <= 60


def marks(redis):
    return {jid.decode() for jid in redis.zrange(keys.CANCELLED, 0, -1)}


def test_cancel_ends_or_marks_matching_jobs_everywhere(everywhere, redis):
    result = admin.cancel_jobs(cls="Job", context={"tenant": "acme"})
    assert (result.matched, result.ended, result.marked, result.refused, result.completed) == (6, 4, 2, 0, True)
    assert marks(redis) == {"queued", "running"}
    assert (redis.zcard(keys.RETRY), redis.zcard(keys.paused_jobs("Job")), redis.zcard(keys.DEAD)) == (0, 0, 1)
    assert [json.loads(one)["jid"] for one in redis.zrange(keys.SCHEDULE, 0, -1)] == ["other1"]
    for jid in ("scheduled", "retry", "paused", "waits"):
        assert redis.get(keys.status(jid)) == b"cancelled", jid
    assert redis.hgetall(keys.COUNTERS) == {f'{CANCELLED_JOBS}{{worker="Job"}}'.encode(): b"4"}
    again = admin.cancel_jobs(cls="Job", context={"tenant": "acme"})
    assert (again.matched, again.ended, again.marked) == (2, 0, 2)


def test_cancel_by_another_tenant_matches_nothing(everywhere, redis):
    assert admin.cancel_jobs(cls="Job", context={"tenant": "other"}).matched == 0
    assert marks(redis) == set()


def test_cancel_releases_the_lock_of_a_waiting_job(shard, redis):
    redis.hset(LOCK, mapping={"jid": "j", "class": "Job"})
    redis.zadd(keys.SCHEDULE, {encoded("Job", jid="j", idempotency_key=LOCK): FAR})
    assert admin.cancel_jobs(cls="Job").ended == 1
    assert redis.exists(LOCK) == 0


def test_cancel_in_its_time_limit_says_that_it_is_not_done(everywhere, redis):
    result = admin.cancel_jobs(cls="Job", time_limit=0)
    assert (result.completed, result.matched, marks(redis)) == (False, 0, set())
    assert admin.cancel_jobs(cls="Job", time_limit=None).completed


def test_cancel_of_many_queued_jobs_goes_in_steps(shard, redis, monkeypatch):
    monkeypatch.setattr(cancelling, "_MARKS_AT_ONCE", (7, 7))
    redis.lpush(keys.queue("mail"), *(encoded("Job", jid=str(number), queue="mail") for number in range(40)))
    result = admin.cancel_jobs(queue="mail")
    assert (result.marked, len(marks(redis))) == (40, 40)


def test_cancel_without_a_criterion_is_refused(everywhere, redis):
    with pytest.raises(ValueError, match="criterion"):
        admin.cancel_jobs()
    with admin.read_only(), pytest.raises(ReadOnlyError):
        admin.cancel_jobs(cls="Job")
    assert marks(redis) == set()


def test_cancel_leaves_a_job_in_transfer(shard, redis):
    redis.zadd(keys.SCHEDULE, {encoded("Job", jid="j", aw_transfer="token"): 1})
    result = admin.cancel_jobs(cls="Job")
    assert (result.matched, result.ended, result.refused) == (1, 0, 1)
    assert redis.zcard(keys.SCHEDULE) == 1
