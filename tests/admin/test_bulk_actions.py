"""Test actions on all matching jobs of a set: counts, time limit, resume point, and jobs that others move meanwhile."""

import json
import math
import os
import signal
import time
from types import SimpleNamespace

import pytest

from framework import admin
from framework.admin import access, entries, shard_job_set
from framework.admin.job_record import JobFilter, JobQuota
from framework.admin.search import SET_STEP
from framework.admin.shard_job_set import ShardJobSet
from framework.all_settings import load
from framework.errors import UnknownShardError
from framework.wire import keys
from tests.harness import encoded

NOW = time.time()
PAGE = SET_STEP[1]


def fill(redis, key, count, name="Job", **fields):
    jobs = {encoded(name, jid=f"{name}{number}", **fields): NOW + number for number in range(count)}
    for start in range(0, count, 5_000):
        redis.zadd(key, dict(list(jobs.items())[start : start + 5_000]))


def before_each_step(monkeypatch, act):
    """Call ``act(members)`` before each script call of an action."""
    run = shard_job_set.act

    def interfere(client, terms, members, steps):
        act(members)
        return run(client, terms, members, steps)

    monkeypatch.setattr(shard_job_set, "act", interfere)


def test_bulk_retry_moves_the_matching_jobs_alone(both_shards, redis, second_redis):
    for shard in (redis, second_redis):
        fill(shard, keys.DEAD, 2_500, retry_count=1)
        fill(shard, keys.DEAD, 300, "Other")
    result = admin.dead().where(cls="Job").retry()
    assert (result.matched, result.done, result.gone, result.refused, result.completed) == (5_000, 5_000, 0, {}, True)
    assert (result.resume, result.unanswered, result.in_doubt) == ("", {}, 0)
    assert [shard.llen("queue:default") for shard in (redis, second_redis)] == [2_500, 2_500]
    assert len({json.loads(one)["jid"] for one in redis.lrange("queue:default", 0, -1)}) == 2_500
    assert admin.dead().size == 600
    assert admin.dead().where(cls="Job").retry().matched == 0


def test_bulk_action_ends_at_its_time_limit_and_goes_on(both_shards, redis, second_redis, monkeypatch):
    fill(redis, keys.DEAD, 3 * PAGE)
    fill(second_redis, keys.DEAD, 50)
    clock = iter(range(10_000))
    for module in (shard_job_set, access):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    results = [admin.dead().where().delete(time_limit=15)]
    while not results[-1].completed:
        assert results[-1].resume
        results.append(admin.dead().where().delete(time_limit=15, resume=results[-1].resume))
    assert len(results) > 2
    assert (sum(one.done for one in results), sum(one.gone for one in results)) == (3 * PAGE + 50, 0)
    assert admin.dead().size == 0


def test_count_bounds_an_action_over_all_shards(both_shards, redis, second_redis):
    fill(redis, keys.DEAD, 30)
    fill(second_redis, keys.DEAD, 300)
    matching = admin.dead().where(cls="Job", count=50)
    assert (matching.count(), len(list(matching)), admin.dead().where(count=500).count()) == (50, 50, 330)
    result = matching.retry()
    assert (result.matched, result.done, result.completed, result.resume) == (50, 50, True, "")
    assert admin.dead().size == 280


def test_percent_selects_the_same_jobs_at_every_call(both_shards, redis, second_redis):
    fill(redis, keys.DEAD, 1_000)
    fill(second_redis, keys.RETRY, 1_000)
    tenth, fifth = ({one.jid for one in admin.dead().where(percent=share)} for share in (10, 20))
    assert tenth < fifth
    assert 50 < len(tenth) < 150
    assert {one.jid for one in admin.retries().where(percent=10)} == tenth
    assert admin.dead().where(percent=10).delete().done == len(tenth)
    assert admin.dead().where(percent=10).count() == 0
    assert admin.dead().where(percent=100).count() == 1_000 - len(tenth)


def test_excluded_jobs_stay(shard, redis):
    fill(redis, keys.DEAD, 3, "Mail", error_class="Net::Timeout", tags=["slow"])
    fill(redis, keys.DEAD, 4, "Report", queue="reports")
    fill(redis, keys.DEAD, 5, "Other")
    dead = admin.dead()
    assert dead.where(not_cls="Mail").count() == 9
    assert dead.where(not_cls=("Mail", "Report"), cls=None).count() == 5
    assert (dead.where(not_error="Timeout").count(), dead.where(not_tag="slow").count()) == (9, 9)
    assert dead.where(not_queue="reports", not_tag="slow").delete().done == 5
    for wrong in ({"not_cls": ""}, {"percent": 0}, {"percent": 101}, {"count": 0}):
        with pytest.raises(ValueError, match=r"is empty|give a"):
            dead.where(**wrong)
    with pytest.raises(TypeError, match="did you mean 'not_cls'"):
        dead.where(not_clss="Mail")


def test_frozen_shard_costs_an_action_a_second(both_shards, redis, second_server):
    fill(redis, keys.DEAD, 2)
    os.kill(second_server.pid, signal.SIGSTOP)
    try:
        found, result = admin.stats(), admin.dead().where().retry()
    finally:
        os.kill(second_server.pid, signal.SIGCONT)
    assert (found.dead, result.done, result.completed, result.resume) == (2, 2, False, "second:0")
    for unanswered in (found.unanswered, result.unanswered):
        assert "no answer within 1 s" in str(unanswered["second"])


def test_resume_of_a_finished_shard_is_not_scanned_again(both_shards, redis, second_redis):
    fill(redis, keys.DEAD, 5)
    fill(second_redis, keys.DEAD, 5)
    assert admin.dead().where().delete(resume="second:0").done == 5
    assert redis.zcard(keys.DEAD) == 5
    with pytest.raises(UnknownShardError, match="did you mean 'second'"):
        admin.dead().where().delete(resume="secnd:0")


def test_jobs_taken_by_others_meanwhile_are_gone_and_not_doubled(shard, redis, monkeypatch):
    """Another operator, a poller or Ruby's Web takes every third job between the read and the step."""
    fill(redis, keys.DEAD, 300)
    taken = []
    before_each_step(monkeypatch, lambda members: taken.append(redis.zrem(keys.DEAD, *members[::3])))
    result = admin.dead().where().retry()
    assert (result.matched, result.done, result.gone) == (300, 300 - sum(taken), sum(taken))
    assert redis.llen("queue:default") == 300 - sum(taken)


def test_job_that_fails_again_meanwhile_is_taken_once(shard, redis, monkeypatch):
    fill(redis, keys.RETRY, 2 * PAGE)
    back = []

    def fail_again(members):
        for data in redis.lrange("queue:default", 0, -1):
            redis.zadd(keys.RETRY, {data: NOW})
            back.append(data)
        redis.delete("queue:default")

    before_each_step(monkeypatch, fail_again)
    result = admin.retries().where().retry()
    assert result.done == 2 * PAGE
    assert result.refused.get("again", 0) + result.done == result.matched
    assert len(back) + redis.llen("queue:default") == 2 * PAGE


def test_malformed_jobs_and_transfers_are_counted_and_stay(shard, redis):
    redis.zadd(keys.SCHEDULE, {b"no json": 1, encoded(jid="j1", aw_transfer="t"): 2, encoded(jid="j2"): 3})
    result = admin.scheduled().where().enqueue_now()
    assert (result.matched, result.done, result.refused) == (3, 1, {"malformed": 1, "in transfer": 1})
    assert admin.scheduled().size == 2


def test_bulk_kill_trims_the_dead_set_as_sidekiq_does(shard, redis):
    """The oldest leave as the others come; Sidekiq keeps one job less than the setting."""
    fill(redis, keys.RETRY, 250)
    retries = ShardJobSet(shard, "retry", load({"FRAMEWORK_DEAD__MAX_JOBS": "100"}))
    result = retries.act_on_matching(
        JobFilter(), "kill", math.inf, lambda key, scanned: None, quota=JobQuota(JobFilter())
    )
    assert (result.done, result.trimmed, redis.zcard(keys.DEAD)) == (250, 151, 99)


def test_shard_that_fails_reports_what_was_done(silent_second, redis):
    fill(redis, keys.DEAD, 5)
    result = admin.dead().where().delete()
    assert (result.done, result.completed, result.resume) == (5, False, "second:0")
    assert list(result.unanswered) == ["second"]


def test_lost_reply_leaves_the_step_in_doubt(shard, redis, monkeypatch):
    fill(redis, keys.DEAD, 250)
    script, calls = entries.ACT_ON_ENTRIES, []

    def lose(client, names, arguments):
        reply = script(client, names, arguments)
        calls.append(1)
        if len(calls) == 2:
            raise ConnectionError("the reply is lost")
        return reply

    monkeypatch.setattr(entries, "ACT_ON_ENTRIES", lose)
    result = admin.dead().where().retry()
    first = result.done
    assert (result.matched, result.in_doubt > 0, result.completed) == (first + result.in_doubt, True, False)
    rest = admin.dead().where().retry(resume=result.resume)
    assert (rest.done, rest.completed) == (250 - first - result.in_doubt, True)
    assert redis.llen("queue:default") == 250


def test_large_jobs_move_in_steps_of_bounded_size(shard, redis, monkeypatch):
    fill(redis, keys.DEAD, 12, args=["x" * 300_000])
    steps = []
    before_each_step(monkeypatch, lambda members: steps.append(sum(map(len, members))))
    assert admin.dead().where().delete().done == 12
    assert max(steps) <= entries.SLICE_BYTES
    assert len(steps) >= 4


def test_count_reads_a_set_of_many_jobs_in_pages(shard, redis):
    fill(redis, keys.DEAD, 3_000)
    seen = []
    found = ShardJobSet(shard, "dead", load({})).matching(
        JobFilter(cls="Job"), lambda key, scanned: seen.append(scanned)
    )
    assert sum(1 for _ in found) == 3_000
    assert len(seen) >= 3
