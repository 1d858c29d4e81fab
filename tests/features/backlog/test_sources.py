"""Test max_waiting for jobs that no single push writes: those of batches and workflows, and the ticks of a schedule."""

import json
from types import SimpleNamespace

import pytest

from framework import MaxWaiting
from framework.application_worker import ApplicationWorker
from framework.batches import Batch
from framework.cron_expression import CronExpression
from framework.declare import port, registry
from framework.declare.policy_options import Deduplicate
from framework.errors import BacklogFullError, RetryLater
from framework.features.backlog.push import DROPPED, limit_pushes
from framework.features.batches import push as batches
from framework.features.cron import keys as cron_keys
from framework.features.cron.cron_worker import CronWorker
from framework.features.cron.entries import CronEntry
from framework.features.cron.events import CronEvents
from framework.features.cron.leadership import Leadership
from framework.features.cron.push import TickJobs
from framework.features.cron.scheduler import CronScheduler
from framework.features.cron.store import CronStates
from framework.features.deduplication.push import Deduplicator
from framework.features.workflows import definition, step_worker
from framework.push.client import Client
from framework.route.router import Router
from framework.shard import held_back
from framework.shard.memory_report import HeldClass, MemoryReport
from framework.shard.shards import Shards
from framework.telemetry.logs import LogRateLimit
from framework.wire import keys
from framework.wiring.client import bind_default
from framework.workflows import Workflow
from tests.harness import opened


def worker(max_waiting=5, name="Mail", base=ApplicationWorker, **attributes):
    def perform(self, number: int = 0):
        """Accept a number."""

    body = {"feature_category": "not_owned", "wire_name": name, "queue": "mail", "perform": perform}
    return type(name, (base,), {**body, "max_waiting": max_waiting, **attributes})


@pytest.fixture
def client(redis, redis_url):
    shards = Shards({"main": opened(redis_url)})
    with registry.isolated():
        made = Client(shards, Router([], ["main"]), locks=Deduplicator(lambda *_: True), steps=[limit_pushes])
        port.bind(made)
        yield made
    port.unbind()
    bind_default()
    shards["main"].close()


@pytest.fixture
def hold_back(client, redis, monkeypatch):
    """Return a function that lets the shard hold a class back for its memory."""

    def hold(name):
        monkeypatch.setattr(held_back, "READ_PERIOD_S", 0.0)
        redis.set(keys.MEMORY, MemoryReport(100, 50, {name: HeldClass(7, 70)}).encode())
        client.shards["main"].held_back._read_at = client.shards["main"].held_back.next_at = 0.0

    return hold


def accepted(redis, name="Mail"):
    return [int(redis.hget(key, name) or 0) for key in (keys.ACCEPTED_JOBS, keys.ACCEPTED_BYTES)]


def waiting(redis):
    return [json.loads(data) for data in redis.lrange("queue:mail", 0, -1)]


def fill(batch, cls, count, **options):
    with batch.jobs(**options):
        cls.perform_bulk([(number,) for number in range(count)])


def test_jobs_of_a_batch_count_with_their_bytes(client, redis):
    mail, other = worker(idempotent=True), worker(None, "Other")
    batch = Batch()
    with batch.jobs():
        mail.perform_bulk([(1,), (1,), (2,)])
        other.perform_async(3)
        mail.perform_in(60, 4)
    jobs = [*waiting(redis), json.loads(redis.zrange(keys.SCHEDULE, 0, 0)[0])]
    counted = [job["aw_accepted"] for job in jobs if job["class"] == "Mail"]
    assert len(counted) == 3
    assert accepted(redis) == [3, sum(counted)]
    assert batch.status.total == 4


@pytest.mark.parametrize("on_full", ["refuse", "keep", "drop"])
def test_batch_without_room_is_refused_whole(client, redis, on_full):
    mail, other = worker(on_full=on_full), worker(None, "Other")
    mail.perform_bulk([(1,), (2,)])
    batch = Batch()
    with pytest.raises(BacklogFullError, match=r"Mail: its backlog .* 2 jobs"), batch.jobs(autoflush=2):
        mail.perform_async(1)
        other.perform_bulk([(number,) for number in range(6)])
        mail.perform_bulk([(1,), (2,), (3,)])
    assert len(waiting(redis)) == accepted(redis)[0] == 2
    assert not redis.exists(f"aw:batch:{batch.bid}")
    redis.delete("queue:mail", keys.ACCEPTED_JOBS)
    fill(batch, mail, 5, autoflush=2)
    assert (accepted(redis)[0], batch.status.total, batch.status.open) == (5, 5, False)


def test_further_jobs_of_a_batch_are_refused_whole(client, redis):
    mail, batch = worker(), Batch()
    fill(batch, mail, 3)
    with pytest.raises(BacklogFullError):
        fill(Batch(batch.bid), mail, 3)
    assert (accepted(redis)[0], batch.status.total, batch.status.open) == (3, 3, False)
    fill(Batch(batch.bid), mail, 2)
    assert batch.status.total == 5


def test_large_block_without_room_leaves_its_batch_open(client, redis, monkeypatch):
    monkeypatch.setattr(batches, "_MOST_HELD_BYTES", 1)
    mail, batch = worker(), Batch()
    with pytest.raises(BacklogFullError) as caught, batch.jobs(autoflush=2):
        for number in range(6):
            mail.perform_async(number)
    assert "4 jobs are written of the block" in str(caught.value.__notes__)
    assert (accepted(redis)[0], batch.status.total, batch.status.open) == (4, 4, True)
    fill(batch, mail, 1)
    assert (batch.status.total, batch.status.open) == (5, False)


def test_bytes_of_a_batch_are_limited(client, redis):
    mail = worker(MaxWaiting(bytes=1_500))
    fill(Batch(), mail, 3)
    with pytest.raises(BacklogFullError):
        fill(Batch(), mail, 4)
    assert accepted(redis)[0] == 3


def test_lost_reply_of_a_batch_counts_once(client, redis, monkeypatch):
    mail, script = worker(), batches.write_batch

    def twice(shard, write):
        script(shard, write)
        return script(shard, write)

    monkeypatch.setattr(batches, "write_batch", twice)
    fill(Batch(), mail, 5)
    assert accepted(redis)[0] == len(waiting(redis)) == 5


def test_class_that_is_held_back_is_refused_in_a_batch(client, redis, hold_back):
    mail, other, batch = worker(None), worker(None, "Other"), Batch()
    run, begin = start(Workflow("mails").step("send", mail, [(1,)]))
    redis.delete("queue:mail")
    hold_back("Mail")
    for push in (lambda: mail.perform_async(2), lambda: mail.perform_bulk([(2,), (3,)])):
        with pytest.raises(BacklogFullError, match="fair share"), batch.jobs():
            other.perform_async(1)
            push()
    with pytest.raises(RetryLater):
        begin()
    assert (waiting(redis), run.status.step("send").state) == ([], "starting")
    fill(Batch(), other, 2)
    with pytest.raises(BacklogFullError, match="fair share"):
        Workflow("one").step("first", other).then("second", mail).start()
    assert len(waiting(redis)) == 2


def start(workflow):
    """Start a workflow, and return the call of the job that starts its first step."""
    run = workflow.start()
    step = registry.find("Framework::WorkflowStep")
    return run, lambda: step().perform(run.id, "", "start")


def test_step_of_a_workflow_waits_for_room(client, redis, caplog, monkeypatch):
    monkeypatch.setattr(definition, "_MOST_JOBS", 3)
    # Other tests of the process have used up its line of a minute.
    monkeypatch.setattr(step_worker, "_log_limit", LogRateLimit(60.0))
    mail = worker(5, on_full="drop")
    mail.perform_bulk([(number,) for number in range(5)])
    run, begin = start(Workflow("mails").step("send", mail, [(number,) for number in range(100, 107)]))
    with pytest.raises(RetryLater):
        begin()
    assert (len([job for job in waiting(redis) if job["class"] == "Mail"]), accepted(redis)[0]) == (5, 5)
    assert "waits until there is room" in caplog.text
    # Room for one: a part passes, which may have more jobs than the limit.
    redis.hset(keys.ACCEPTED_JOBS, "Mail", 4)
    with pytest.raises(RetryLater):
        begin()
    assert run.status.step("send").state == "starting"
    assert accepted(redis)[0] == 7
    redis.hset(keys.ACCEPTED_JOBS, "Mail", 0)
    begin()
    written = [job["args"][0] for job in waiting(redis) if job["class"] == "Mail" and job["args"][0] >= 100]
    assert sorted(written) == list(range(100, 107))
    assert (run.status.step("send").state, accepted(redis)[0]) == ("running", 4)


@pytest.fixture
def ticks(client, redis):
    """Return a function that lets a tick of a class be due, and returns its scheduler with the states."""
    states = CronStates(client.shards["main"].client, "default")
    leadership = Leadership(client.shards["main"].client, cron_keys.leader("default"), "host:1:a")

    def due(max_waiting=1, **attributes):
        made = worker(max_waiting, base=CronWorker, **attributes)
        entry = CronEntry("tick", made.declaration(), CronExpression("* * * * *"), overlap="run")
        redis.hset(cron_keys.cron_states("default"), "tick", f"{redis.time()[0] - 61} {entry.fingerprint} before")
        scheduler = CronScheduler(states, leadership, {"tick": entry}, TickJobs(client), CronEvents("main"))
        return SimpleNamespace(step=scheduler.step, states=states, cls=made, retry_at=scheduler._retry_at)

    return due


def outcomes(due):
    return [one.outcome for one in due.states.last_ticks("tick")]


@pytest.mark.parametrize("on_full", ["refuse", "keep"])
def test_tick_without_room_waits(ticks, redis, caplog, on_full):
    due = ticks(on_full=on_full)
    due.cls.perform_async(1)
    for _ in range(2):
        due.retry_at.clear()
        due.step()
    assert (outcomes(due), len(waiting(redis))) == ([], 1)
    assert [record.message for record in caplog.records if "waits for room" in record.message] != []
    redis.delete(keys.ACCEPTED_JOBS, "queue:mail")
    due.retry_at.clear()
    due.step()
    assert set(outcomes(due)) == {"pushed"}
    assert len(waiting(redis)) == accepted(redis)[0] == 1


def test_tick_without_room_is_dropped_where_declared(ticks, redis):
    due = ticks(on_full="drop")
    due.cls.perform_async(1)
    due.step()
    assert set(outcomes(due)) == {"full"}
    assert len(waiting(redis)) == 1
    assert int(redis.hget(keys.COUNTERS, f'{DROPPED}{{worker="Mail"}}')) == len(outcomes(due))


def test_tick_of_a_class_that_is_held_back_waits(ticks, redis, hold_back):
    due = ticks(max_waiting=None)
    hold_back("Mail")
    due.step()
    assert (outcomes(due), waiting(redis)) == ([], [])


def test_tick_of_a_duplicate_is_not_counted(ticks, redis):
    due = ticks(max_waiting=2, idempotent=True, deduplicate=Deduplicate("until_executed"))
    due.cls.perform_async()
    due.step()
    assert set(outcomes(due)) == {"duplicate"}
    assert accepted(redis)[0] == 1
