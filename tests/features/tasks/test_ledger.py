"""The ledger: jobs that the database says wait, and that a real Redis has lost, are enqueued again, each once."""

import json
import time

import pytest

from framework.errors import ShardUnavailableError, TaskError
from framework.features.tasks import ledger as module
from framework.features.tasks.ledger import Healed, Ledger
from framework.settings.model import SizeLimitSettings
from framework.wire import keys
from tests.features.tasks.task_bench import TaskBench, change
from tests.harness import RUBY, opened, register_process


@pytest.fixture
def memory(tmp_path):
    one = TaskBench(f"sqlite:///{tmp_path}/tasks.db")
    yield one
    one.close()


@pytest.fixture
def shards(redis, redis_url, second_redis, second_redis_url):
    made = {"main": opened(redis_url), "second": opened(second_redis_url, "second")}
    yield made
    for one in made.values():
        one.close()


@pytest.fixture
def ledger(shards, memory):
    return Ledger(shards, memory.database, SizeLimitSettings(), sleep=lambda _: None)


def payload(jid, **fields):
    return json.dumps({"class": "Job", "args": [], "track": True, "jid": jid, **fields}, separators=(",", ":"))


def pushed(jid, **facts):
    return change(jid, "push", 1.0, **{"payload": payload(jid), **facts})


def found(ledger, **options):
    return [one.jid for one in ledger.lost("main", **options)]


PLACES = ("queued", "scheduled", "retrying", "held", "running", "reported", "dead", "moved", "argument")


def fill(redis, second_redis):
    """Put a job into each place."""
    redis.lpush("queue:default", payload("queued"), payload("argument", args=[{"jid": "lost"}]))
    redis.zadd("schedule", {payload("scheduled"): 5e9})
    redis.zadd("retry", {payload("retrying"): 5e9})
    redis.zadd(keys.paused_jobs("Job"), {"[1]\n" + payload("held"): 1})
    redis.lpush(keys.working("host:1:" + "ab" * 6), payload("running"))
    redis.zadd("dead", {payload("dead"): 1})
    second_redis.lpush("queue:default", payload("moved"))
    # A process of Ruby without a working list.
    register_process(redis, {}, busy=1, beat=time.time())
    redis.hset(f"{RUBY}:work", "tid", json.dumps({"queue": "default", "payload": payload("reported"), "run_at": 1}))


@pytest.mark.proves("F8")
def test_lost_jobs_are_enqueued_again_once(memory, ledger, redis, second_redis):
    fill(redis, second_redis)
    memory.apply(*map(pushed, PLACES), pushed("lost"), pushed("unkept", payload=None))
    memory.apply(pushed("later", due_at=6e9), change("ended", "push", 1.0, payload=payload("ended")))
    memory.apply(change("ended", "end", 2.0, "finish", "completed"), change("fresh", "push", time.time()))
    memory.apply(pushed("given up"), change("given up", "end", time.time() - 60, "error", "deleted"))
    assert found(ledger) == ["lost", "unkept", "later"]
    lost = list(ledger.lost("main", given_up_s=600))
    assert [one.jid for one in lost] == ["lost", "unkept", "later", "given up"]
    memory.apply(change("unkept", "start", 3.0, "working", "working"))
    assert ledger.heal(lost) == Healed(enqueued=3, cancelled=0, moved=0, without_payload=1)
    assert ledger.heal(lost) == Healed(enqueued=0, cancelled=0, moved=3, without_payload=1)
    jobs = [json.loads(one) for one in redis.lrange("queue:default", 0, -1)]
    assert sorted(one["jid"] for one in jobs) == ["argument", "given up", "lost", "queued"]
    healed = next(one for one in jobs if one["jid"] == "lost")
    assert healed.pop("enqueued_at") > 1
    assert healed == json.loads(payload("lost"))
    assert redis.zscore("schedule", payload("later")) == 6e9
    event = memory.event("given up")
    assert (event.status, event.state, event.messages[0].text) == ("enqueue", "queued", event.reason)
    assert found(ledger, given_up_s=600) == ["unkept"]


def test_job_in_movement_is_not_lost(memory, ledger, redis, shards, monkeypatch):
    """The job is hidden from three walks: it leaves each key before the walk reads it."""
    memory.apply(pushed("j"))
    walks, original = [], module.locate

    def locate(client, jids, *, backwards):
        if client is not shards["main"].client:
            return original(client, jids, backwards=backwards)
        walks.append(backwards)
        if len(walks) == 4:
            redis.lpush(keys.working("host:1:" + "ab" * 6), payload("j"))
        return original(client, jids, backwards=backwards)

    monkeypatch.setattr(module, "locate", locate)
    assert found(ledger) == []
    assert walks == [False, True, False, True]
    redis.flushall()
    walks.clear()
    # It ran meanwhile, and the walks missed it: its event has changed.
    monkeypatch.setattr(ledger, "_sleep", lambda _: memory.apply(change("j", "start", 2.0, "working", "working")))
    walks.append(False)
    monkeypatch.setattr(module, "locate", original)
    assert found(ledger) == []


def test_kill_between_claim_and_write_loses_nothing(memory, ledger, shards, redis, monkeypatch):
    with memory.database.writing() as connection:
        for name, cancelled in (("alive", None), ("stopped", 5.0)):
            connection.exec_driver_sql(
                f"INSERT INTO aw_tasks (id, created_at, closed_at, cancelled_at) VALUES ('{name}', 1, 2, {cancelled or 'NULL'})"
            )
    memory.apply(pushed("a", task_id="alive"), pushed("b", task_id="stopped"))
    redis.zadd(keys.TASK_EVENTS, {b"waits": 1.0})
    with pytest.raises(TaskError, match="keeps 1 event for the database"):
        found(ledger)
    redis.delete(keys.TASK_EVENTS)

    def away(*_):
        raise ShardUnavailableError("main", "reset")

    lost = list(ledger.lost("main"))
    with monkeypatch.context() as patch:
        patch.setattr(shards["main"], "enqueue", away)
        with pytest.raises(ShardUnavailableError):
            ledger.heal(lost)
    assert (memory.event("a").state, redis.llen("queue:default")) == ("queued", 0)
    assert found(ledger) == []  # its event has just changed
    monkeypatch.setattr(ledger, "_grace_s", -1.0)
    assert ledger.heal(list(ledger.lost("main"))).enqueued == 1
    assert [json.loads(one)["jid"] for one in redis.lrange("queue:default", 0, -1)] == ["a"]
    row = memory.task("stopped")
    assert (row["failed"], row["enqueue"], memory.event("b").state) == (1, 0, "cancelled")
    assert row["completed_at"] is not None
