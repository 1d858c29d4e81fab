"""Test the held jobs of the data API, and its readers of limits, locks, pauses and flags."""

import time

import pytest

from framework import admin
from framework.errors import ReadOnlyError, ShardUnavailableError
from framework.features.flags.flag import Flag, pause_flag
from framework.features.flags.redis_flags import set_flag
from framework.wire import keys
from tests.harness import encoded

NOW = time.time()


def pause(redis, jid, worker="MailJob", age=60, **fields):
    redis.zadd(keys.paused_jobs(worker), {b'["mail"]\n' + encoded(worker, jid=jid, queue="mail", **fields): NOW - age})
    redis.sadd(keys.PAUSED_CLASSES, worker)


def wait(redis, jid, limit="Report", age=600, **fields):
    redis.zadd(
        f"{keys.limit(limit)}:waiting:", {b'["r","%b"]\n' % jid.encode() + encoded(limit, jid=jid, **fields): NOW - age}
    )
    redis.sadd(keys.LIMITS_WAITING, keys.limit(limit))
    redis.zadd(f"{keys.limit(limit)}:turns", {"": 1})


def test_held_jobs_are_listed_found_and_filtered(both_shards, redis, second_redis):
    pause(redis, "p1", **{"meta.user": "ann"})
    pause(redis, "p2", tags=["slow"])
    wait(second_redis, "w1")
    held = admin.held()
    assert sorted(one.jid for one in held) == ["p1", "p2", "w1"]
    assert held.size == held.count() == 3
    assert [(one.shard, one.kind, one.name, one.jobs) for one in held.places()] == [
        ("main", "paused", "MailJob", 2),
        ("second", "waiting", "Report", 1),
    ]
    assert held.indexed_places() == held.places()
    found = held.find("w1")
    assert (found.kind, found.held_by, found.since) == ("waiting", "Report", pytest.approx(NOW - 600))
    assert held.find("nope") is None
    assert [one.jid for one in held.where(context={"user": "ann"})] == ["p1"]
    assert [one.jid for one in held.where(tag="slow", queue="mail")] == ["p2"]
    # The ages count from ``NOW``: on a loaded machine this test may come long after it.
    assert held.where(older_than=300 + time.time() - NOW).count() == 1


def test_held_delete_drops_the_matching_jobs_alone(shard, redis):
    for number in range(3):
        pause(redis, f"p{number}", idempotency_key=keys.lock("ab") if number == 0 else None)
    redis.hset(keys.lock("ab"), "jid", "p0")
    pause(redis, "other", worker="OtherJob")
    with admin.read_only(), pytest.raises(ReadOnlyError, match=r"MatchingHeldJobs\.delete\(\) is refused"):
        admin.held().where(cls="MailJob").delete()
    done = admin.held().where(cls="MailJob").delete()
    assert (done.matched, done.done, done.completed, done.unanswered) == (3, 3, True, {})
    assert ([one.jid for one in admin.held()], redis.exists(keys.lock("ab"))) == (["other"], 0)
    assert not admin.held().where().delete(time_limit=0).completed


def test_held_jobs_of_a_silent_shard_are_reported(silent_second, redis):
    pause(redis, "p1")
    assert list(admin.held().places().unanswered) == ["second"]
    done = admin.held().where().delete()
    assert (done.done, done.completed, list(done.unanswered)) == (1, False, ["second"])
    with pytest.raises(ShardUnavailableError, match="'second' is unavailable"):
        _ = admin.held().size


def test_policies_are_read_by_shard(silent_second, redis):
    wait(redis, "w1")
    pause(redis, "p1")
    set_flag(redis, Flag(pause_flag("MailJob"), 100, "reindexing", "ann"), 600)
    redis.hset(keys.lock("ab"), mapping={"jid": "j1", "class": "MailJob"})
    assert [(one.name, one.waiting.jobs) for one in admin.limits().by_shard["main"]] == [("Report", 1)]
    assert [one.jid for one in admin.locks(cls="MailJob").by_shard["main"]] == ["j1"]
    assert admin.locks("main", cls="Other").by_shard == {"main": []}
    assert [(one.kind, one.name, one.jobs) for one in admin.paused().by_shard["main"]] == [("class", "MailJob", 1)]
    assert [flag.reason for flag in admin.flags().by_shard["main"].values()] == ["reindexing"]
    assert all(list(read().unanswered) == ["second"] for read in (admin.limits, admin.locks, admin.paused, admin.flags))
