"""Undo of deletions: a job returns to its set once, and its batch, lock and trimming are treated as the guide says."""

import asyncio
import json

import pytest

from framework import admin
from framework.admin.audit import audit_log
from framework.errors import JobRefusedError, ReadOnlyError
from framework.features.batches import keys as batch_keys
from framework.wire import keys
from tests.admin.conftest import shard, silent_second
from tests.harness import encoded

__all__ = ["shard", "silent_second"]

SETS = {"scheduled": "schedule", "retry": "retry", "dead": "dead", "interrupted": "interrupted"}


def test_deleted_job_returns_to_its_set_once(shard, redis):
    for number, (place, key) in enumerate(SETS.items()):
        redis.zadd(key, {encoded("Job", jid=place): 1_000.5 + number})
    before = {key: redis.zrange(key, 0, -1, withscores=True) for key in SETS.values()}
    for jobs in (admin.scheduled(), admin.retries(), admin.dead(), admin.interrupted()):
        jobs.where().delete()
    assert not redis.exists(*SETS.values())
    found = {one.jid: one for one in admin.deleted()}
    assert {name: one.place for name, one in found.items()} == {name: name for name in SETS}
    assert 0 < redis.ttl(keys.DELETED) <= 86_400
    assert int(redis.get(f"{keys.DELETED}:bytes")) == sum(len(one.member) for one in found.values())
    assert [one.undo() for one in found.values()] == [True] * 4
    assert {key: redis.zrange(key, 0, -1, withscores=True) for key in SETS.values()} == before
    assert [one.undo() for one in found.values()] == [False] * 4
    assert admin.deleted().find("dead") is None
    assert int(redis.get(f"{keys.DELETED}:bytes")) == 0
    assert {(one.action, one.count) for one in audit_log(action="undo")} == {
        ("DeletedJob.undo", 1),
        ("DeletedJob.undo", 0),
    }


def test_job_of_a_batch_returns_without_it(shard, redis):
    redis.hset(batch_keys.batch("b"), mapping={"pending": 2, "total": 2, "ttl_s": 600, "created_at": 1})
    for name, more in (("J1", {}), ("J2", {"aw_signature": "s"})):
        redis.zadd("retry", {encoded("Job", jid=name, bid="b", **more): 1.0})
        assert admin.retries().find(name).delete()
    removed = redis.hgetall(batch_keys.batch("b"))
    assert admin.deleted().find("J1").undo()
    ((data, _),) = redis.zrange("retry", 0, -1, withscores=True)
    assert "bid" not in json.loads(data)
    # A signature names the batch.
    with pytest.raises(JobRefusedError, match="Push it again"):
        admin.deleted().find("J2").undo()
    assert redis.hgetall(batch_keys.batch("b")) == removed


def test_foreign_entries_and_keys_bring_nothing_back(shard, redis):
    redis.zadd("dead", {b"no json": 1.0})
    admin.dead().where().delete()
    (one,) = admin.deleted()
    redis.set("dead", "x")
    with pytest.raises(JobRefusedError, match="not a sorted set"):
        one.undo()
    redis.delete("dead")
    assert one.undo()
    assert redis.zrange("dead", 0, -1) == [b"no json"]
    redis.zadd(keys.DELETED, {b"elsewhere 1\n{}": redis.time()[0]})
    (one,) = admin.deleted()
    with pytest.raises(JobRefusedError, match="does not name the set"):
        one.undo()


def test_old_deleted_jobs_are_trimmed(shard, redis):
    redis.zadd(keys.DELETED, {b"dead 1\nold": redis.time()[0] - 86_401})
    assert list(admin.deleted()) == []
    for number in range(3):
        redis.set(f"{keys.DELETED}:bytes", 49_999_990)
        redis.zadd("dead", {encoded("Job", jid=f"J{number}"): number + 1.0})
        admin.dead().where().delete()
    # The bytes are above the bound: each deletion removes the oldest first, then itself.
    assert [one.jid for one in admin.deleted()] == []
    assert not redis.exists(keys.DELETED)


def test_all_matching_deletions_are_undone(shard, redis):
    for number in range(4):
        redis.zadd("dead", {encoded("Mail" if number % 2 else "Report", jid=f"J{number}"): number + 1.0})
    admin.dead().where().delete()
    result = asyncio.run(admin.deleted().aundo(cls="Mail"))
    assert (result.matched, result.done, result.completed, result.refused) == (2, 2, True, {})
    assert redis.zcard("dead") == 2
    with admin.read_only(), pytest.raises(ReadOnlyError):
        admin.deleted().undo()
    assert admin.deleted().undo(cls="Other").matched == 0
    assert {(one.action, one.what["jobs"], one.count) for one in audit_log(action="DeletedJobs")} == {
        ("DeletedJobs.undo", "class=Mail", 2),
        ("DeletedJobs.undo", "class=Other", 0),
    }


def test_silent_shard_hides_no_undo_of_the_others(silent_second, redis):
    redis.zadd("dead", {encoded("Mail"): 1.0})
    admin.dead("main").where().delete()
    result = admin.deleted().undo()
    assert (result.done, result.completed, list(result.unanswered)) == (1, False, ["second"])
