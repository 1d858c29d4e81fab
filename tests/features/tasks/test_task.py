"""Tasks in the fake mode of ``framework.testing``: the product's own code, with the database in memory."""

import asyncio
import json
from datetime import timedelta
from functools import partial

import pytest

from framework import (
    ApplicationWorker,
    BusinessError,
    Deduplicate,
    LimitedCapacityWorker,
    background,
    middleware,
    testing,
)
from framework.batches import Batch, BatchError
from framework.declare import registry
from framework.errors import TaskError, TaskNotFoundError, TaskRetryError
from framework.features.tasks import access
from framework.features.tasks.task import _may_be_on
from framework.tasks import Task, story


@pytest.fixture
def jobs(own_classes, tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path))
    shards = {name: {"url": "redis://127.0.0.1:1"} for name in ("main", "second")}
    (tmp_path / "redis.yml").write_text(json.dumps({"shards": shards}))
    with testing.fake() as found:
        yield found


def declared(**attributes):
    def perform(self, number: int, name: str = "") -> None:
        self.record(f"checked {number}", sku=f"A{number}")
        if number == 3:
            raise BusinessError("product 3 has no price")
        if number == 4:
            raise ValueError("oops")

    facts = {"feature_category": "not_owned", "track": True, "retry": 0, "perform": perform, **attributes}
    return type("EnrolWorker", (ApplicationWorker,), facts)


@background(feature_category="not_owned", queue="default")
def enrol(number: int) -> None:
    assert number


def test_task_takes_a_function(jobs):
    registry.register(enrol.worker)
    with Task.create(enrol) as task:
        task.perform_bulk(enrol, [(1,), (2,)])
    testing.drain()
    assert (task.worker, task.wait(30).counts["finish"]) == (enrol.worker.declaration().wire_name, 2)


def test_task_tells_what_became_of_every_job(jobs):
    worker = declared()
    with Task.create(worker, title="spring", owner="seller-7", tenant="shop") as task:
        jids = task.perform_bulk(worker, [(number, "secret") for number in range(6)])
        assert not task.progress().is_complete
    assert task.progress().counts == {"enqueue": 6, "working": 0, "finish": 0, "failed": 0, "error": 0}
    testing.drain(raise_errors=False)
    found = task.wait(30)
    assert found.counts == {"enqueue": 0, "working": 0, "finish": 4, "failed": 1, "error": 1}
    assert (found.total, found.ended, found.failed, found.share, found.eta_s) == (6, 6, 2, 1.0, 0.0)
    first, second = task.failures()
    assert (first.jid, first.status, first.reason) == (jids[3], "failed", "product 3 has no price")
    assert first.params == [3, "[FILTERED]"]
    assert (first.messages[0].text, first.messages[0].fields["sku"]) == ("checked 3", "A3")
    assert (second.status, second.state, second.error_class) == ("error", "dead", "ValueError")
    assert [one.jid for one in task.failures(after=first.id)] == [second.jid]
    event, messages = story(jids[4])
    assert (event.runs, [one.text for one in messages]) == (1, ["checked 4", "oops"])
    assert [one.id for one in Task.all(owner="seller-7", tenant="shop")] == [task.id]
    assert Task.all(owner="another") == [] == Task.all(before=task)
    # JSON would give back another value.
    for wrong, place in (
        ({1: 2}, r"result\[1\] has a key of type int"),
        ([{"at": (1,)}], r"result\[0\]\['at'\] is a tuple"),
    ):
        with pytest.raises(ValueError, match=f"set_result: {place}"):
            task.set_result(wrong)
    task.set_result({"rows": 6})
    assert Task.get(task.id).result() == {"rows": 6}
    with pytest.raises(TaskError, match="is complete"):
        task.perform_bulk(worker, [(1,)])
    with pytest.raises(TaskNotFoundError, match="no task 'x'"):
        Task.get("x")
    with pytest.raises(TaskNotFoundError, match="no event of a job x"):
        story("x")


def test_failed_jobs_run_again_in_their_events(jobs):
    worker = declared(loggable_arguments=("name",))
    with Task.create() as task:
        task.perform_bulk(worker, [(3, "a"), (4, "b"), (5, "c")])
    testing.drain(raise_errors=False)
    assert task.retry_failed() == 2
    assert task.progress().counts["enqueue"] == 2
    testing.drain(raise_errors=False)
    assert [(one.params, one.runs) for one in task.failures()] == [([3, "a"], 2), ([4, "b"], 2)]


def test_retry_without_stored_arguments_pushes_nothing(jobs):
    worker = declared()
    with Task.create() as task:
        task.perform_bulk(worker, [(3, "secret")])
    testing.drain(raise_errors=False)
    with pytest.raises(TaskRetryError, match="whole, before"):
        task.retry_failed()
    assert testing.enqueued() == []


def test_cancelled_task_ends_without_running_its_jobs(jobs, monkeypatch):
    worker = declared()
    with Task.create() as task:
        task.perform_bulk(worker, [(1,), (2,)])
        marked = []
        for name, shard in access.current().shards.items():
            cancel = partial(lambda name, original, jids: marked.append((name, len(jids))) or original(jids), name)
            monkeypatch.setattr(shard, "cancel", partial(cancel, shard.cancel))
        assert task.cancel() == 2
        assert marked == [("main", 2)]
        assert _may_be_on("second", {"shard": "main", "state": "scheduled"})
        with pytest.raises(TaskError, match="was cancelled"):
            task.perform_bulk(worker, [(1,)])
    testing.drain()
    found = task.wait(30)
    assert (found.is_cancelled, found.counts["failed"]) == (True, 2)
    assert {one.state for one in task.failures()} == {"cancelled"}


def test_task_that_is_cancelled_during_a_push_runs_no_job(jobs, monkeypatch):
    monkeypatch.setattr("framework.features.tasks.task.PUSH_CHUNK", 2)
    worker, task = declared(), Task.create()

    def rows():
        yield from [(1,), (2,), (5,)]
        # The next chunk is on its way, so that `cancel` cannot see the events of its jobs.
        task.cancel()
        yield (6,)
        raise AssertionError("no further chunk is pushed")

    with pytest.raises(TaskError, match="was cancelled"):
        task.perform_bulk(worker, rows())
    testing.drain()
    assert {(one.state, one.runs) for one in task.failures()} == {("cancelled", 0)}
    assert (task.progress().total, task.progress().is_complete) == (4, True)


def test_items_are_split_into_jobs(jobs):
    seen = []

    def perform(self, items: list[int], note: str) -> None:
        seen.append((items, note))

    worker = declared(perform=perform, track=False)
    with Task.create() as task:
        assert len(task.perform_split(worker, range(5), 2, "x")) == 3
    testing.drain()
    assert seen == [([0, 1], "x"), ([2, 3], "x"), ([4], "x")]
    found = task.wait(30)
    assert (found.total, found.items) == (3, 5)
    with pytest.raises(ValueError, match="size = 0"):
        task.perform_split(worker, [], 0)


def test_dropped_and_duplicate_jobs_have_events(jobs):
    class DropTwo:
        def call(self, worker, job, queue, pool):
            if job["args"][0] != 2:
                yield

    middleware.client.allow_changes()
    middleware.client.add(DropTwo)
    try:
        with testing.fake():
            worker = declared(idempotent=True, deduplicate=Deduplicate("until_executed", ttl=timedelta(hours=1)))
            with Task.create() as task:
                pushed = task.perform_bulk(worker, [(1,), (2,), (1,)])
            assert [jid is None for jid in pushed] == [False, True, True]
            testing.drain()
            assert task.wait(30).counts["finish"] == 2
            states = {one.params[0]: (one.status, one.state, one.reason) for one in task.events("failed")}
            assert states == {2: ("failed", "dropped", "a client middleware did not yield")}
            (copy,) = [one for one in task.events("finish") if one.stands_for]
            assert (copy.state, copy.stands_for) == ("duplicate", pushed[0])
    finally:
        middleware.client.allow_changes()
        middleware.client.remove(DropTwo)


def test_recorded_class_is_recorded_without_a_task(jobs):
    worker = declared()
    jid, unrecorded = worker.perform_async(1), worker.set(track=False).perform_async(2)
    later = worker.perform_in(60, 3)
    assert (story(jid)[0].state, story(later)[0].state) == ("queued", "scheduled")
    testing.drain(worker, raise_errors=False)
    assert story(jid)[0].status == "finish"
    with pytest.raises(TaskNotFoundError):
        story(unrecorded)
    facts = {"feature_category": "not_owned", "track": True, "idempotent": True, "max_running_jobs": 2}
    work = {name: lambda self: 0 for name in ("perform_work", "remaining_work_count")}
    few = type("FewWorker", (LimitedCapacityWorker,), {**facts, **work})
    assert [story(jid)[0].state for jid in few.perform_with_capacity()] == ["queued", "queued"]


def test_async_code_uses_the_twins(jobs):
    worker = declared()

    async def use():
        async with await Task.acreate(worker) as task:
            await task.aperform_bulk(worker, [(1,)])
        return (await task.aprogress()).total, await task.afailures()

    assert asyncio.run(use()) == (1, [])


def test_wait_and_sync_name_what_is_wrong(jobs):
    worker = declared()
    with Task.create() as task:
        task.perform_bulk(worker, [(1,)])
        with pytest.raises(TimeoutError, match="1 of 1 job not ended"):
            task.wait(0)
        with pytest.raises(ValueError, match="perform_inline"):
            task.perform_bulk(worker, [(1,)], sync=True)
    with pytest.raises(ValueError, match="owner must be"):
        Task.create(owner="x" * 256)
    for wrong in (lambda: Task.create(owner=5), lambda: Task.all(owner=5)):
        with pytest.raises(TypeError, match="owner must be a text, not 5 of the type int"):
            wrong()
    with pytest.raises(TypeError, match="title must be a text"):
        Task.create(title=5)
    with pytest.raises(ValueError, match=r"'finished' is no status of an event.*finish"):
        task.events("finished")


def test_jobs_of_a_batch_have_events_before_they_run(jobs):
    worker = declared(loggable_arguments=("name",))
    batch = Batch()
    with batch.jobs(autoflush=1), Task.create() as task:
        first = task.perform_bulk(worker, [(3, "a"), (1, "b")])
    assert task.progress().counts["enqueue"] == 2
    testing.drain(raise_errors=False)
    assert (task.progress().is_complete, batch.status.dead) == (True, 1)
    with Batch().jobs():
        assert task.retry_failed() == 1
    (again,) = task.events("enqueue")
    assert (again.params, again.jid in first) == ([3, "a"], False)


def test_refused_jobs_of_a_batch_are_not_pushed(jobs):
    worker, batch = declared(), Batch()
    with batch.jobs():
        waiting = worker.perform_async(1)
    batch.cancel()
    with pytest.raises(BatchError, match="was cancelled"), batch.jobs():
        refused = worker.perform_async(2)
    assert story(waiting)[0].state == "queued"
    # At once: the producer may end now.
    assert story(refused)[0].state == "not_pushed"
    assert "was cancelled" in story(refused)[0].reason
