"""A program that can write to Redis, and has no key: what it stores becomes no job, no argument and no result (`required`)."""

import base64
import json
import time
from dataclasses import replace
from typing import Any

import pytest

import framework
from framework import ApplicationWorker, IterableWorker, admin
from framework.admin import add_cron_entry
from framework.all_settings import load
from framework.batches import Batch
from framework.declare.request import PushRequest
from framework.errors import JobRemovedError, ResultRefusedError, TaskRetryError
from framework.execute.job_log import JobLog
from framework.features.batches import keys as batch_keys
from framework.features.cron import keys as cron_keys
from framework.features.cron.scheduler import CronScheduler
from framework.features.cron.store import CronStates
from framework.features.cron.worker import open_cron
from framework.features.results.calls import RESULTS
from framework.features.results.keys import result_facts
from framework.features.tasks.change import EventChange
from framework.features.tasks.store import drain
from framework.features.workflows import keys as workflow_keys
from framework.process.events import ProcessEvents
from framework.process.worker_parts import ProcessContext
from framework.push.protection import open_protection
from framework.route.router import open_router
from framework.tasks import Task
from framework.testing import real
from framework.testing.fake_worker import silent_log
from framework.wire import keys
from framework.wiring import client as wiring
from framework.workflows import Workflow, computed, computes_arguments, results_of
from tests.testing.conftest import write_config
from tests.testing.test_signed import KEY

FORGED = 666
ENTRY = {"cron": "0 0 1 1 *", "class": "RowWorker", "args": [FORGED]}
EVENT = {
    "kind": "end",
    "at": 1.0,
    "status": "error",
    "state": "dead",
    "worker": "RowWorker",
    "queue": "default",
    "shard": "main",
    "params": f"[{FORGED}]",
    "whole": True,
    "messages": [],
}


class Application:
    """The jobs of an application with signatures, and what has run."""

    def __init__(self, jobs, client, redis, folder):
        self.jobs, self.client, self.redis, self.folder = jobs, client, redis, folder
        self.ran = []
        ran = self.ran

        def perform(self, number: int, more: Any = None) -> int:
            ran.append(number)
            return number

        body = {"feature_category": "not_owned", "queue": "default", "perform": perform, "retry": 0}
        self.row = type("RowWorker", (ApplicationWorker,), {"__module__": "workers.row_worker", **body})

    def run(self):
        """Run every job that waits; return the numbers of the jobs that ran."""
        self.ran.clear()
        self.jobs.drain(raise_errors=False)
        return list(self.ran)

    def dead(self):
        return self.redis.zrange(keys.DEAD, 0, -1)

    def ticks(self):
        """Let the leader begin with each entry, and push the job of a tick that is due."""
        for _ in range(2):
            step = self.scheduler().step
            step()
            step()
            for name, state in self.redis.hgetall(cron_keys.cron_states("default")).items():
                self.redis.hset(cron_keys.cron_states("default"), name, b"1 " + state.split(b" ", 1)[1])

    def scheduler(self) -> CronScheduler:
        settings = self.client.settings
        shard = self.client.shards["main"]
        router = open_router(settings)
        log, protection = JobLog(silent_log(), jobs=False), self.client.protection
        process = ProcessContext(settings, router, shard, "host:1:a", (), ProcessEvents("main"), protection, log)
        return open_cron(settings, process)


@pytest.fixture
def application_with_keys(application, monkeypatch, redis, redis_url):
    write_config(application, {"main": {"url": redis_url}}, routing={})
    monkeypatch.setenv("FRAMEWORK_SIGNATURES__KEYS__1", KEY)
    monkeypatch.setenv("FRAMEWORK_SIGNATURES__REQUIRED", "true")
    monkeypatch.setenv("FRAMEWORK_SIGNATURES__UNSIGNED_QUEUES", "ruby")
    monkeypatch.setenv("FRAMEWORK_ENCRYPTION__KEYS__1", KEY)
    monkeypatch.setenv("FRAMEWORK_TASKS__URL", f"sqlite:///{application}/tasks.db")
    monkeypatch.setenv("FRAMEWORK_TASKS__PARAMS", "whole")
    client = wiring.ProcessClient(load())
    wiring.bind(client)
    with real() as found:
        yield Application(found, client, redis, application)
    client.recorder.close()
    client.shards.close()
    wiring.bind_default()


@pytest.fixture
def app(application_with_keys):
    return application_with_keys


def test_cron_entry_of_another_program_pushes_no_job(app):
    add_cron_entry("honest", cron="0 0 1 1 *", cls=app.row, args=[1])
    stored = app.redis.hget(cron_keys.cron_entries("default"), "honest")
    # One that is forged, one that is changed, and one that is moved to another name.
    app.redis.hset(cron_keys.cron_entries("default"), "forged", json.dumps(ENTRY))
    app.redis.hset(cron_keys.cron_entries("default"), "changed", stored.replace(b"[1]", b"[%d]" % FORGED))
    app.redis.hset(cron_keys.cron_entries("default"), "moved", stored)
    app.ticks()
    assert app.run() == [1]
    # It is kept, where an operator finds it.
    assert app.redis.hlen(cron_keys.cron_entries("default")) == 4


def test_cron_entry_keeps_secret_arguments_encrypted(app):
    card = 41111111
    worker = type("CardWorker", (app.row,), {"__module__": "workers.card_worker", "encrypt": True})
    add_cron_entry("card", cron="0 0 1 1 *", cls=worker, args=[card])
    assert str(card).encode() not in app.redis.hget(cron_keys.cron_entries("default"), "card")
    (entry,) = admin.cron_entries()
    assert entry.args == ("[encrypted data]",)
    app.ticks()
    assert str(card) not in repr(app.redis.lrange(keys.queue("default"), 0, -1))
    assert app.run() == [card]


def test_cron_order_of_another_program_counts_as_not_given(app):
    add_cron_entry("honest", cron="0 0 1 1 *", cls=app.row, args=[1])
    app.redis.hset(cron_keys.cron_orders("default"), "honest", json.dumps({"args": [FORGED]}))
    app.ticks()
    assert app.run() == [1]
    # An operator's change of it signs no part of it.
    settings = app.client.settings
    states = CronStates(app.redis, "default", open_protection(settings).state)
    states.change_order("honest", lambda order, _: replace(order, enabled=True))
    assert states.read().orders["honest"].args is None


@computes_arguments
def numbers_from(first):
    yield (first,)


def started_workflow(app):
    run = Workflow("w").step("first", app.row, [(1,)]).then("second", app.row, computed(numbers_from, 2)).start()
    (start,) = app.redis.lrange(keys.queue("default"), 0, -1)
    return run, start


def change_definition(app, run):
    definition = app.redis.hget(workflow_keys.workflow(run.id), "definition")
    changed = definition.replace(b'"args":[2]', b'"args":[%d]' % FORGED)
    assert changed != definition
    app.redis.hset(workflow_keys.workflow(run.id), "definition", changed)


def replace_workflow(app, run):
    app.redis.delete(keys.queue("default"))
    other, _ = started_workflow(app)
    fields = app.redis.hgetall(workflow_keys.workflow(other.id))
    app.redis.delete(workflow_keys.workflow(run.id))
    app.redis.hset(workflow_keys.workflow(run.id), mapping=fields)
    app.redis.lset(workflow_keys.step_jobs(run.id, "first"), 0, json.dumps([[0, [[FORGED]]]]))


def change_part(app, run):
    place = workflow_keys.step_jobs(run.id, "first")
    changed = app.redis.lindex(place, 0).replace(b"[[1]]", b"[[%d]]" % FORGED)
    app.redis.lset(place, 0, changed)


@pytest.mark.parametrize("attack", [change_definition, replace_workflow, change_part])
def test_changed_workflow_starts_no_step(app, attack):
    run, start = started_workflow(app)
    attack(app, run)
    # The old job that starts the step has a right signature, and is repeated.
    app.redis.delete(keys.queue("default"))
    app.redis.lpush(keys.queue("default"), start)
    assert app.run() == []
    assert app.dead() == [start]


def test_part_of_another_place_starts_no_step(app):
    # Two parts, of which one is cut off: the step would succeed without its jobs.
    many = [(number,) for number in range(1_001)]
    run = Workflow("w").step("first", app.row, many).start()
    (start,) = app.redis.lrange(keys.queue("default"), 0, -1)
    app.redis.hset(workflow_keys.workflow(run.id), "first:parts", 1)
    assert app.run() == []
    assert app.dead() == [start]


def test_honest_workflow_runs_every_step(app):
    text = "Größe\\x41 \u2028"
    run = (
        Workflow("w", description=text)
        .step("first", app.row, [(number,) for number in range(1_001)])
        .then("second", app.row, [(2_000,)])
        .also(app.row, computed(numbers_from, 3_000))
        .start()
    )
    assert sorted(app.run()) == [*range(1_001), 2_000, 3_000]
    assert run.status.state == "succeeded"


def test_callback_before_its_time_starts_no_step(app):
    later = app.row.set(queue="later")
    run = Workflow("w", queue="default").step("first", later, [(1,)]).then("second", app.row, [(2,)]).start()
    app.jobs.drain(app.row, raise_errors=False)
    ((_, callback),) = json.loads(app.redis.hget(batch_keys.batch(f"aw-{run.id}.first"), "on_success"))
    # The job that follows the step is signed when the step begins.
    app.redis.lpush(keys.queue("default"), callback)
    app.jobs.drain(app.row, raise_errors=False)
    assert (app.ran, run.status.step("second").state) == ([], "waiting")
    assert app.run() == [1, 2]


def failed_task(app):
    with Task.create(owner="shop") as task:
        task.perform_bulk(app.row, [(1,)])
    assert app.run() == [1]
    return task


def write_spool(app):
    recorder = app.client.recorder
    store = recorder.store
    more = [store.state_signatures] if hasattr(store, "state_signatures") else []
    drain(app.redis, store.database, store.recorder_of("main"), *more)


def test_forged_event_is_not_pushed_again(app):
    task = failed_task(app)
    event = {**EVENT, "jid": "forged", "task_id": task.id}
    job = {"class": "RowWorker", "args": [FORGED], "jid": "made", "queue": "default", "track": True, "aw_task": task.id}
    app.redis.zadd(keys.TASK_EVENTS, {json.dumps(event): 1.0})
    app.redis.zadd(keys.TASK_EVENTS, {json.dumps({"pushed": json.dumps(job), "queue": "default", "at": 1.0}): 2.0})
    failed = {**EVENT, "jid": "made", "task_id": task.id}
    del failed["params"], failed["whole"]
    app.redis.zadd(keys.TASK_EVENTS, {json.dumps(failed): 3.0})
    write_spool(app)
    assert (task.retry_failed(), app.run()) == (0, [])
    assert len(app.dead()) == 3
    assert app.redis.zcard(keys.TASK_EVENTS) == 0
    assert any(b"forged" in base64.b64decode(json.loads(one)["aw_raw"]) for one in app.dead())


@pytest.mark.parametrize("ended", [{"expires_in": 1, "expiry": 1.5}, {}, {"interrupted_count": 99}])
def test_forged_job_that_ends_early_is_not_pushed_again(app, ended):
    task = failed_task(app)
    job = {"class": "RowWorker", "args": [FORGED], "jid": "forged", "queue": "default", "track": True, "retry": 0}
    app.redis.lpush(keys.queue("default"), json.dumps({**job, "aw_task": task.id, **ended}))
    assert app.run() == []
    assert app.client.recorder.flush(30)
    assert task.progress().total == 1
    assert (task.retry_failed(), app.run()) == (0, [])


def test_retry_signs_no_job_of_an_unsigned_queue(app):
    task = failed_task(app)
    job = {"class": "RowWorker", "args": [FORGED], "jid": "ruby", "queue": "ruby", "track": True, "retry": False}
    app.redis.sadd(keys.QUEUES, "ruby")
    app.redis.lpush(keys.queue("ruby"), json.dumps({**job, "aw_task": task.id, "args": ["x"]}))
    app.run()
    assert app.client.recorder.flush(30)
    assert task.progress().counts["error"] == 1
    with pytest.raises(TaskRetryError, match="are not stored"):
        task.retry_failed()


def test_spool_of_a_process_with_the_key_is_written(app):
    task = failed_task(app)
    recorder = app.client.recorder
    spool = recorder.store.writer._spool
    spool.keep([EventChange("a" * 24, "push", time.time(), worker="RowWorker", task_id=task.id, shard="main")])
    write_spool(app)
    assert task.progress().total == 2
    assert app.dead() == []


def test_forged_callback_of_a_batch_is_refused(app):
    batch = Batch()
    batch.on_success(app.row, 5)
    with batch.jobs():
        app.row.perform_async(1)
    forged = json.dumps({"class": "RowWorker", "args": [FORGED], "jid": "f" * 24, "queue": "default", "retry": 0})
    honest = json.loads(app.redis.hget(batch_keys.batch(batch.bid), "on_success"))
    app.redis.hset(batch_keys.batch(batch.bid), "on_success", json.dumps([*honest, ["default", forged]]))
    assert app.run() == [1, 5]
    (dead,) = app.dead()
    assert json.loads(dead)["jid"] == "f" * 24


def test_changed_option_or_context_is_refused(app):
    changes = [
        {"aw_task": "t" * 32, "track": True},
        {"meta.user": "root"},
        {"correlation_id": "x"},
        {"timeout": 1},
        {"retry": 25},
        {"dead": False},
        {"tags": ["x"]},
        {"bid": "aw-x"},
        {"aw_batch_event": ["aw-x", "success"]},
        {"aw_result": [60, ""]},
        {"cron": {"name": "x", "tick": 5}},
    ]
    app.row.perform_bulk([(1,)] * len(changes))
    stored = [json.loads(data) for data in app.redis.lrange(keys.queue("default"), 0, -1)]
    app.redis.delete(keys.queue("default"))
    forged = [{**payload, **change} for payload, change in zip(stored, changes, strict=True)]
    app.redis.lpush(keys.queue("default"), *map(json.dumps, forged))
    assert app.run() == []
    assert len(app.dead()) == len(changes)


def pages(app):
    """Declare an iterable class that fails at its second item, once."""

    def build_enumerator(self, *, cursor):
        return [(number, number) for number in range(cursor or 0, (cursor or 0) + 3)]

    def each_iteration(self, number: int) -> None:
        app.ran.append(number)
        if app.ran == [0, 1]:
            raise ValueError

    body = {"feature_category": "not_owned", "queue": "default", "retry": 1, "build_enumerator": build_enumerator}
    facts = {"__module__": "workers.page_worker", "each_iteration": each_iteration, **body}
    return type("PageWorker", (IterableWorker,), facts)


def test_forged_cursor_is_refused(app):
    jid = pages(app).perform_async()
    # As a run has left it that was killed.
    app.redis.hset(keys.iteration(jid), mapping={"ex": 1, "c": FORGED, "rt": 0})
    (data,) = app.redis.lrange(keys.queue("default"), 0, -1)
    assert app.run() == []
    assert app.dead() == [data]
    assert app.redis.hget(keys.iteration(jid), "c") == b"%d" % FORGED


def test_saved_cursor_is_accepted(app):
    pages(app).perform_async()
    assert app.run() == [0, 1, 1, 2, 3]
    assert app.dead() == []


@pytest.mark.parametrize("answer", [f'{{"value":{FORGED}}}', '{"end":"done"}'])
def test_forged_result_is_refused(app, answer):
    call = app.row.call(1)
    app.redis.set(keys.result(call.jid), answer)
    with pytest.raises(ResultRefusedError, match="no signature"):
        call.result(timeout=10)
    with pytest.raises(ResultRefusedError, match="no signature"):
        framework.result(call.jid)


def test_result_of_another_job_is_refused(app):
    first, second = app.row.call(1), app.row.call(2)
    assert app.run() == [1, 2]
    app.redis.set(keys.result(first.jid), app.redis.get(keys.result(second.jid)))
    with pytest.raises(ResultRefusedError, match="moved from another place"):
        first.result(timeout=10)
    assert second.result(timeout=10) == framework.result(second.jid) == 2


def test_end_without_a_result_needs_no_signature(app):
    call = app.row.call(1)
    admin.Queue("default").clear()
    with pytest.raises(JobRemovedError):
        call.result(timeout=10)


def results_workflow(app):
    """Run the first step of a workflow whose second step receives its results; return it, and the key of the results."""
    first = app.row.set(queue="later")
    flow = Workflow("w", queue="default").step("first", first, [(1,), (2,)])
    run = flow.then("second", app.row, [(3, results_of("first"))]).start()
    app.jobs.drain(app.row, raise_errors=False)
    app.jobs.drain(
        type("LaterWorker", (app.row,), {"__module__": "workers.later", "queue": "later"}), raise_errors=False
    )
    return run, f"{batch_keys.batch(f'aw-{run.id}.first')}:results"


def test_results_of_a_step_are_received(app):
    _, place = results_workflow(app)
    assert app.redis.hlen(place) == 3
    assert app.run() == [3]


@pytest.mark.parametrize("attack", ["forged", "moved", "swapped"])
def test_forged_result_of_a_step_is_not_received(app, attack):
    run, place = results_workflow(app)
    (one, first), (two, second) = sorted(
        ((jid, value) for jid, value in app.redis.hgetall(place).items() if not jid.startswith(b":")),
        key=lambda pair: int(pair[1].split(b" ")[0]),
    )
    places = first.split(b" ")[0], second.split(b" ")[0]
    changes = {
        "forged": {one: b'%b {"value":%d}' % (places[0], FORGED)},
        "moved": {one: second},
        "swapped": {one: first.replace(places[0], places[1], 1), two: second.replace(places[1], places[0], 1)},
    }
    app.redis.hset(place, mapping=changes[attack])
    assert app.run() == []
    assert run.status.step("second").state == "starting"


def test_forged_facts_of_a_result_count_as_missing(app):
    request = PushRequest(app.row.declaration(), [1], None, {})
    results = app.client.service(RESULTS)
    results.note("j" * 24, request, b"{}", 60)
    assert results.noted("j" * 24) == b"{}"
    app.redis.set(result_facts("j" * 24), b'{"task":"forged"}')
    assert results.noted("j" * 24) is None
