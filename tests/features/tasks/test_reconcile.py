"""Events of jobs that moved without an event, compared with a real Redis."""

import base64
import json
import time

import pytest

from framework.features.tasks import reconcile as module
from framework.features.tasks.change import EventChange
from framework.features.tasks.reconcile import EventReconciler, OpenEvent, mend_of
from framework.features.tasks.store import drain
from framework.wire import keys
from tests.features.tasks.task_bench import TaskBench, change


@pytest.fixture
def memory(tmp_path):
    one = TaskBench(f"sqlite:///{tmp_path}/tasks.db")
    yield one
    one.close()


def payload(jid, **fields):
    return json.dumps({"class": "Job", "args": [], "jid": jid, "track": True, **fields}, separators=(",", ":"))


def open_event(status="enqueue", stands_for=None):
    return OpenEvent(1, "j", status, "x", stands_for, 1.0)


def test_place_of_a_job_decides_about_its_event():
    for event, place, expected in (
        (open_event(), None, ("error", "deleted")),
        (open_event(stands_for="owner"), None, ("finish", "duplicate")),
        (open_event(), "dead", ("error", "dead")),
        (open_event(), "interrupted", ("error", "quarantined")),
        (open_event("working"), "in flight", None),
        (open_event("working"), "queue", ("enqueue", "interrupted")),
        (open_event("working"), "retry", ("enqueue", "interrupted")),
        (open_event(), "paused", None),
    ):
        found = mend_of(event, place)
        assert (found and found[0]) == expected, (event, place)


def test_events_are_mended_by_the_places_of_their_jobs(memory, redis):
    redis.lpush("queue:default", payload("queued"), payload("recovered"), payload("unmarked", track=None))
    redis.zadd("dead", {payload("killed"): 1})
    redis.zadd(keys.paused_jobs("Job"), {"[1]\n" + payload("held"): 1})
    redis.lpush(keys.working("host:1:" + "ab" * 6), payload("running"))
    redis.zadd("schedule", {payload("owner"): time.time() + 100})
    jids = ("queued", "recovered", "unmarked", "killed", "held", "running", "gone", "copy")
    memory.apply(
        *(change(jid, "push", 1.0) for jid in jids),
        change("copy", "end", 1.0, "enqueue", "duplicate", stands_for="owner"),
    )
    memory.apply(*(change(jid, "start", 2.0, "working", "working") for jid in ("recovered", "running", "gone")))
    reconciler = EventReconciler(redis, "main", memory.database)

    def states():
        return {jid: (memory.event(jid).status, memory.event(jid).state) for jid in jids}

    waiting = dict.fromkeys(("queued", "unmarked", "held"), ("enqueue", "queued")) | {"copy": ("enqueue", "duplicate")}
    mended = {"recovered": ("enqueue", "interrupted"), "killed": ("error", "dead"), "running": ("working", "working")}
    assert reconciler.step() == 2
    assert states() == {**waiting, **mended, "gone": ("working", "working")}
    redis.delete("schedule")
    assert reconciler.step() == 1  # in two passes no key had it
    assert states() == {**waiting, **mended, "gone": ("error", "deleted")}
    assert reconciler.step() == 1
    assert states()["copy"] == ("finish", "duplicate")
    assert "deleted by hand" in memory.event("gone").reason
    assert memory.event("recovered").messages[0].text == "its process ended; the job waits again"
    assert reconciler.step() == 0


def test_duplicates_are_mended_by_the_last_job_of_their_chain(memory, redis):
    redis.zadd("schedule", {payload("c2"): time.time() + 100})
    memory.apply(*(change(jid, "push", 1.0) for jid in ("a1", "b1", "c1", "c2")))
    memory.apply(
        change("a1", "end", 1.0, "enqueue", "duplicate", stands_for="b1"),
        change("b1", "end", 1.0, "enqueue", "duplicate", stands_for="c1"),
        change("c1", "end", 1.0, "enqueue", "duplicate", stands_for="c2"),
    )
    reconciler = EventReconciler(redis, "main", memory.database)
    # The job in the middle of the chain is in no key, and that of its end waits.
    assert [reconciler.step() for _ in range(3)] == [0, 0, 0]
    with memory.database.writing() as connection:
        # As another transaction leaves them that has read the duplicates before they were written.
        connection.exec_driver_sql("UPDATE aw_events SET status = 'failed', state = 'expired' WHERE jid = 'c2'")
    assert reconciler.step() == 3
    assert {memory.event(jid).status for jid in ("a1", "b1", "c1")} == {"failed"}
    assert memory.event("a1").reason == "the job c2 stands for it: expired"


def test_event_that_changes_during_a_pass_stays(memory, redis, monkeypatch):
    memory.apply(change("j", "push", 1.0))
    reconciler = EventReconciler(redis, "main", memory.database)
    assert reconciler.step() == 0
    original = reconciler._stale

    def ended_meanwhile(connection, now):
        found = original(connection, now)
        connection.rollback()
        memory.apply(change("j", "end", 5.0, "finish", "completed"))
        return found

    monkeypatch.setattr(reconciler, "_stale", ended_meanwhile)
    reconciler.step()
    assert memory.event("j").status == "finish"


def test_lost_jobs_on_several_pages_are_found(memory, redis, monkeypatch):
    monkeypatch.setattr(module, "_PAGE", 2)
    memory.apply(*(change(f"j{number}", "push", 1.0) for number in range(5)))
    reconciler = EventReconciler(redis, "main", memory.database)
    assert [reconciler.step() for _ in range(6)] == [0, 0, 0, 2, 2, 1]
    assert memory.event("j4").state == "deleted"


def test_fresh_events_and_those_of_other_shards_are_left_alone(memory, redis):
    memory.apply(change("fresh", "push", time.time()))
    memory.apply(EventChange("other", "push", 1.0, worker="Job", queue="q", shard="second"))
    reconciler = EventReconciler(redis, "main", memory.database)
    assert (reconciler.step(), reconciler.step()) == (0, 0)


def test_job_that_moved_to_another_shard_is_not_lost(memory, redis, second_redis):
    memory.apply(change("moved", "push", 1.0), change("gone", "push", 1.0))
    second_redis.lpush("queue:default", payload("moved"))
    reconciler = EventReconciler(redis, "main", memory.database, others=[second_redis])
    assert (reconciler.step(), reconciler.step()) == (0, 1)
    assert (memory.event("moved").state, memory.event("gone").state) == ("queued", "deleted")


def test_spool_is_written_once_and_in_order(memory, redis):
    found = [
        change("j", "push", 1.0),
        change("j", "start", 2.0, "working", "working"),
        change("j", "end", 3.0, "finish", "x"),
    ]
    redis.zadd(keys.TASK_EVENTS, {one.encode(): one.at for one in found})
    redis.zadd(keys.TASK_EVENTS, {b"no change": 0.5})
    assert drain(redis, memory.database, memory.recorder) == 3
    # What is no change is kept, where an operator finds it.
    (kept,) = redis.zrange(keys.DEAD, 0, -1)
    assert base64.b64decode(json.loads(kept)["aw_raw"]) == b"no change"
    assert (memory.event("j").status, memory.event("j").runs) == ("finish", 1)
    assert (redis.exists(keys.TASK_EVENTS), drain(redis, memory.database, memory.recorder)) == (0, 0)
