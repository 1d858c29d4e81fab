"""The events of jobs that scripts make: they are in Redis with their jobs, whatever becomes of the process that called the script."""

import json
import time

import pytest

from framework import ApplicationWorker, LimitedCapacityWorker
from framework.batches import Batch
from framework.cron_expression import CronExpression
from framework.features.cron.cron_worker import CronWorker
from framework.features.cron.entries import CronEntry
from framework.features.cron.push import TickJobs
from framework.features.cron.store import CronStates
from framework.features.tasks.store import count_changes, drain
from framework.store.script import FINISH
from framework.wire import keys
from tests.features.tasks.task_bench import change
from tests.push.conftest import pusher

__all__ = ["pusher"]


class KilledProcess:
    """The recorder of a process that ends right after its script."""

    def written(self, destination, batch):
        pass


def declared(name, base=ApplicationWorker, **body):
    def perform(self, row=0):
        pass

    facts = {"feature_category": "not_owned", "wire_name": name, "queue": "default", "track": True, **body}
    return type(name, (base,), {"perform": perform, **facts})


def limited():
    work = {name: lambda self: 0 for name in ("perform_work", "remaining_work_count")}
    facts = {"feature_category": "not_owned", "wire_name": "Few", "queue": "default", "track": True, "idempotent": True}
    return type("Few", (LimitedCapacityWorker,), {**facts, **work, "max_running_jobs": 2})


def refused(*_, **__):
    raise ConnectionError


def push_a_tick(pusher, redis, shard):
    entry = CronEntry("tick", declared("Tick", CronWorker).declaration(), CronExpression("* * * * *"))
    job = TickJobs(pusher.client).make(entry, 60)
    assert CronStates(shard.client, "default").push("tick", b"", 60, entry.fingerprint, job, "run").outcome == "pushed"


def rerun(redis):
    """End a job whose duplicate came during its run (``reschedule_once``)."""
    redis.hset("aw:lock:x", mapping={"jid": "former", "duplicates": 1})
    redis.rpush("working", "job")
    again = json.dumps({"class": "Again", "args": [1], "jid": "again", "track": True}, separators=(",", ":"))
    names = ["working", keys.QUEUES, "queue:default", "aw:lock:x"]
    assert FINISH(redis, names, ["job", "", "former", again, "again", "Again", "default", 60_000, "", "", 0]) == 2


def test_job_of_a_script_has_its_event_despite_a_kill(memory, redis, pusher, monkeypatch):
    pusher.open(recorder=KilledProcess())
    batch = Batch(callback_queue="default")
    batch.on_success(declared("Publish"), 7)
    batch.on_complete(declared("Unrecorded", track=False), 1)
    # Another field of that name records nothing.
    batch.on_finished(declared("Other", track=False, perform=lambda self, one: None), {"track": True})
    with batch.jobs():
        pass
    push_a_tick(pusher, redis, pusher.shards["main"])
    assert len(limited().perform_with_capacity()) == 2
    rerun(redis)
    stored = [json.loads(data) for data in redis.lrange("queue:default", 0, -1)]
    jids = {one["jid"]: one["class"] for one in stored if one["class"] not in ("Unrecorded", "Other")}
    assert sorted(jids.values()) == ["Again", "Few", "Few", "Publish", "Tick"]
    assert count_changes(redis) == 0  # the ledger knows what is lost: no end of a job is kept here
    # A job may start before the leader writes its push.
    (begun,) = [jid for jid, name in jids.items() if name == "Publish"]
    memory.apply(change(begun, "start", time.time() + 1, "working", "working", params="[7]"))
    # Or its process is killed, so that the first that the event says is that the job waits again.
    (again,) = [one for one in stored if one["class"] == "Again"]
    memory.recorder.ended_elsewhere(again, "default", "interrupted", "its process died")
    assert memory.event("again").params == [1]
    # A process that is killed after the commit has removed nothing: the next leader writes the same again.
    with monkeypatch.context() as killed, pytest.raises(ConnectionError):
        killed.setattr(redis, "pipeline", refused)
        drain(redis, memory.database, memory.recorder)
    assert drain(redis, memory.database, memory.recorder) == 6
    found = {jid: memory.event(jid) for jid in jids}
    assert {jid: (one.worker if jid != begun else "Publish", one.queue) for jid, one in found.items()} == {
        jid: (name, "default") for jid, name in jids.items()
    }
    states = {jids[jid]: (one.status, one.state, one.runs) for jid, one in found.items()}
    waits = dict.fromkeys(("Few", "Tick"), ("enqueue", "queued", 0))
    begun = {"Publish": ("working", "working", 1), "Again": ("enqueue", "interrupted", 0)}
    assert states == {**waits, **begun}
    with memory.database.reading() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM aw_events").scalar() == len(jids)
    assert (redis.exists(keys.TASK_EVENTS), drain(redis, memory.database, memory.recorder)) == (0, 0)
    # The end of a job keeps the ledger back.
    redis.zadd(keys.TASK_EVENTS, {b'{"pushed":"{}","queue":"q","at":1}': 1, change("j", "end", 2.0).encode(): 2})
    assert count_changes(redis) == 1
    # Two entries that other programs may have written are left out.
    redis.zadd(keys.TASK_EVENTS, {b'{"pushed":1,"queue":"q","at":1}': 3, b'{"pushed":"[]","queue":"q","at":1}': 4})
    assert drain(redis, memory.database, memory.recorder) == 2
    assert redis.zcard(keys.DEAD) == 2
    with memory.database.reading() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM aw_events").scalar() == len(jids) + 1
