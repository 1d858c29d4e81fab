"""Test the records of operators' actions, against a real Redis: before the action, at a full server, at a failure."""

import pytest

from framework import admin
from framework.admin import audit
from framework.errors import ReadOnlyError
from framework.process.identity import operator_name
from framework.wire import keys
from tests.admin.test_job_queue import push


def shown(records):
    return [(one.action, one.end, one.count) for one in records]


def test_action_is_recorded_with_actor_object_and_count(both_shards, redis, second_redis):
    push(redis, 3, queue="mail")
    push(second_redis, 1, queue="mail")
    admin.Queue("mail", "second").pause(reason="the server is being changed")
    with admin.acting_as("ann", "dashboard", "10.0.0.7"):
        admin.Queue("mail").clear()
    *others, oldest = admin.audit_log()
    assert (oldest.actor, oldest.source, oldest.action) == (operator_name(), "api", "Queue.pause")
    assert oldest.what == {"queue": "mail", "reason": "the server is being changed"}
    assert sorted((one.shard, one.actor, one.source, one.address, one.count) for one in others) == [
        ("main", "ann", "dashboard", "10.0.0.7", 3),
        ("second", "ann", "dashboard", "10.0.0.7", 1),
    ]
    assert [one.actor for one in admin.audit_log(actor="ann", limit=1)] == ["ann"]
    assert not admin.audit_log(action="kill")


def test_action_on_jobs_of_a_set_is_recorded_with_their_number(shard, redis):
    for jid in "abc":
        redis.zadd(keys.DEAD, {b'{"class":"Job","jid":"%s","args":[],"queue":"default"}' % jid.encode(): 1})
    admin.dead().where(cls="Job", count=2).delete()
    next(iter(admin.dead())).retry()
    records = admin.audit_log()
    assert shown(records) == [("JobEntry.retry", "done", 1), ("MatchingJobs.delete", "done", 2)]
    assert records[0].what["class"] == "Job"
    assert "Job" in records[1].what["jobs"]


def test_record_is_written_before_the_action(shard):
    found = []
    step = audit.audited("act", lambda one: found.extend(audit.read_audit_log(one, None, "", "", 10)), {"a": 1})
    step(shard)
    assert shown(found) == [("act", "unknown", None)]
    assert shown(admin.audit_log()) == [("act", "done", None)]


def test_failed_action_has_the_class_of_its_error(shard):
    def fail(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit.audited("act", fail, {})(shard)
    assert [(one.end, one.error) for one in admin.audit_log()] == [("failed", "KeyboardInterrupt")]


def test_action_is_recorded_where_redis_is_full(shard, redis):
    push(redis, 1, queue="mail")
    redis.config_set("maxmemory", 1)
    try:
        admin.Queue("mail").pause()
    finally:
        redis.config_set("maxmemory", 0)
    assert shown(admin.audit_log()) == [("Queue.pause", "done", 1)]


def test_action_goes_on_with_a_warning_where_the_record_is_refused(shard, redis, caplog):
    push(redis, 1, queue="mail")
    redis.set(keys.AUDIT, "no stream")
    admin.Queue("mail").pause()
    assert redis.smembers(keys.PAUSED) == {b"mail"}
    assert "aw:audit" in caplog.text
    assert not admin.audit_log()


def test_refused_action_is_not_recorded(shard, redis):
    push(redis, 1, queue="mail")
    with admin.read_only(), pytest.raises(ReadOnlyError):
        admin.Queue("mail").clear()
    assert not redis.exists(keys.AUDIT)


def test_log_is_read_in_pages_and_by_age(shard, redis, monkeypatch):
    monkeypatch.setattr(audit, "_PAGE", 3)
    for number in range(5):
        audit.audited("act", lambda _: True, {"number": number})(shard)
    redis.xadd(keys.AUDIT, {"actor": "old", "what": "[", "action": "x"}, id="*")
    assert [one.what.get("number") for one in admin.audit_log()] == [None, "4", "3", "2", "1", "0"]
    assert len(admin.audit_log(limit=2)) == 2
    assert len(admin.audit_log(since=3_600)) == 6


def test_long_and_secret_details_are_cut_and_masked(shard):
    audit.audited("act", lambda _: 1, {"url": "redis://ann:secret@host/0", "text": "x" * 1_000})(shard)
    what = admin.audit_log()[0].what
    assert "secret" not in what["url"]
    assert len(what["text"]) < 300


def test_log_is_bounded(shard, redis, monkeypatch):
    monkeypatch.setattr(audit, "MOST_ENTRIES", 100)
    for _ in range(200):
        audit.audited("act", lambda _: 1, {})(shard)
    assert redis.xlen(keys.AUDIT) <= 200
