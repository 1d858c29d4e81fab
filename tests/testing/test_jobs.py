"""Jobs of a fake, from the push to their end. Each test declares its workers, pushes, drains, and reads where the jobs are."""

import time
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import framework
from framework import (
    ApplicationWorker,
    BusinessError,
    Deduplicate,
    Discard,
    ExceedLimitError,
    IterableWorker,
    LimitedCapacityWorker,
    RetryLater,
    middleware,
    status,
)
from framework.errors import ArgumentsError
from framework.handlers import death_handlers, error_handlers
from framework.wire.job import generate_jid
from tests.harness import until

# A fake runs the scripts of the product. What the mode `real` adds, a process, is tested where payloads are protected.
pytestmark = pytest.mark.parametrize("jobs", ["fake"], indirect=True)

ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_ran():
    ran.clear()


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue = "default"


def args_of(found):
    return [job.args for job in found]


# --- pushes ---------------------------------------------------------------------------------------------------------


def test_isolated_job_runs_in_the_process_of_the_test(jobs):
    class Isolated(Base):
        isolation = "process"

        def perform(self):
            ran.append("thread")

    class IsolatedTask(Base):
        isolation = "process"

        async def perform(self):
            ran.append("task")

    Isolated.perform_async()
    IsolatedTask.perform_async()
    jobs.drain()
    assert ran == ["thread", "task"]


def test_push_waits_until_it_is_drained(jobs):
    class Mail(Base):
        def perform(self, user: int, locale: str = "en"):
            ran.append((user, locale, self.jid))

    jid = Mail.perform_async(42, locale="de")
    (job,) = jobs.enqueued()
    assert (job.jid, job.worker, job.queue, job.args) == (jid, "Testing::Mail", "default", [42, "de"])
    assert (job["retry"], job["correlation_id"]) == (True, jid)
    assert set(job) == {*["class", "args", "jid", "queue", "retry", "created_at", "enqueued_at", "correlation_id"]}
    jobs.assert_enqueued(Mail, 42, "de")
    assert ran == []
    assert jobs.drain() == 1
    assert ran == [(42, "de", jid)]
    assert (jobs.enqueued(), jobs.drain()) == ([], 0)


def test_jobs_run_in_the_order_of_their_pushes(jobs):
    class One(Base):
        def perform(self, number: int):
            ran.append(number)

    class Two(Base):
        def perform(self, number: int):
            ran.append(number)

    One.perform_async(1)
    Two.perform_async(2)
    assert len(One.perform_bulk([(3,), (4,), (5,)])) == 3
    assert args_of(jobs.enqueued(One)) == [[1], [3], [4], [5]]
    jobs.assert_enqueued(Two, count=1)
    assert jobs.drain() == 5
    assert ran == [1, 2, 3, 4, 5]


def test_scheduled_jobs_run_in_the_order_of_their_times(jobs):
    class Later(Base):
        status_expiration = 600

        def perform(self, number: int):
            ran.append(number)

    jid = Later.perform_in(timedelta(hours=1), 1)
    Later.perform_at(datetime.now(UTC) + timedelta(minutes=1), 2)
    Later.perform_bulk_in(120, [(3,), (4,)], batch_size=1, batch_delay=60)
    Later.perform_in(-5, 5)
    assert args_of(jobs.enqueued(Later)) == [[5], [2], [3], [4], [1]]
    jobs.assert_enqueued(Later, 1, at=timedelta(hours=1))
    jobs.assert_enqueued(Later, 4, at=timedelta(minutes=3))
    assert status.of(jid) == "queued"
    assert jobs.drain() == 5
    assert ran == [5, 2, 3, 4, 1]
    assert status.of(jid) == "completed"


def test_old_and_cancelled_jobs_end_without_running(jobs):
    class Reminder(Base):
        status_expiration = 86_400

        def perform(self, number: int):
            ran.append(number)

    began = time.time()
    old = Reminder.set(expires_in=1).perform_async(1)
    late = Reminder.set(expires_in=60).perform_in(timedelta(hours=1), 2)
    waiting, due = Reminder.perform_async(3), Reminder.perform_in(600, 4)
    assert [framework.cancel(jid) for jid in (waiting, due)] == [True, True]
    until(lambda: time.time() > began + 1.1)
    assert jobs.drain() == 4
    assert ran == [2]
    states = {old: "expired", late: "completed", waiting: "cancelled", due: "cancelled"}
    assert status.look_up(states) == states
    assert framework.cancel(due) is False


def test_options_of_a_push_are_in_its_payload(jobs):
    class Chosen(Base):
        def perform(self, number: int):
            ran.append(number)

    Chosen.set(queue="urgent", retry=2, tags=("a",), context={"user": "ada"}).perform_async(1)
    (job,) = jobs.enqueued()
    assert (job.queue, job["retry"], job["tags"], job["meta.user"]) == ("urgent", 2, ["a"], "ada")
    Chosen.set(sync=True).perform_async(2)
    assert ran == [2]
    assert jobs.drain() == 1


def test_refused_pushes_leave_no_job(jobs):
    class Strict(Base):
        idempotent = True

        def perform(self, text: str): ...

    with pytest.raises(ArgumentsError):
        Strict.perform_async(5)
    with pytest.raises(ArgumentsError):
        Strict.perform_bulk([("a",), (("tuple",),)])
    noise = "".join(generate_jid() for _ in range(500_000))
    with pytest.raises(ExceedLimitError):
        Strict.perform_async(noise)
    assert jobs.enqueued() == []
    assert Strict.perform_async("a") is not None


def test_large_arguments_are_compressed_and_arrive(jobs):
    class Large(Base):
        def perform(self, text: str):
            ran.append(len(text))

    Large.perform_async("a" * 200_000)
    assert args_of(jobs.enqueued()) == [["a" * 200_000]]
    jobs.drain()
    assert ran == [200_000]


def test_job_of_another_shard_runs_there(jobs):
    class Far(Base):
        tags = ("second",)

        def perform(self, number: int):
            ran.append(number)

    assert Far.route().shard == "second"
    Far.perform_async(1)
    Far.perform_in(60, 2)
    # A chosen queue and a shard that is not that of the rules.
    Far.set(shard="main").perform_in(30, 3)
    assert len(jobs.enqueued(Far)) == 3
    assert jobs.drain() == 3
    assert ran == [1, 3, 2]


def test_pushed_job_inherits_the_context(jobs):
    class Child(Base):
        def perform(self): ...

    class Parent(Base):
        def perform(self):
            Child.perform_async()

    jid = Parent.set(context={"user": "ada"}).perform_async()
    assert jobs.drain(Parent) >= 1
    if jobs.enqueued(Child):
        (child,) = jobs.enqueued(Child)
        assert (child["correlation_id"], child["meta.user"]) == (jid, "ada")
        assert child["meta.caller_id"] == "Testing::Parent"
    jobs.drain()
    assert jobs.enqueued() == []


# --- ends -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def reported():
    found: list[Any] = []
    error_handlers.append(one := lambda error, facts: found.append(("error", facts["job"]["args"])))
    death_handlers.append(two := lambda job, error: found.append(("death", job.args)))
    yield found
    error_handlers.remove(one)
    death_handlers.remove(two)


def test_failing_job_is_retried_until_it_is_dead(jobs, reported):
    class Failing(Base):
        retry = 2
        status_expiration = 600

        def perform(self, number: int):
            ran.append((number, (self._aw_job or {}).get("retry_count")))
            raise ConnectionError("no answer")

        @classmethod
        def retries_exhausted(cls, job, error):
            ran.append(("exhausted", job.args, str(error)))

    jid = Failing.perform_async(7)
    with pytest.raises(ConnectionError, match="no answer"):
        jobs.drain()
    (job,) = jobs.retries(Failing)
    assert (job["retry_count"], job["error_class"], job["error_message"]) == (0, "ConnectionError", "no answer")
    assert 15 <= job["at"] - job["failed_at"] <= 26
    assert (jobs.enqueued(), status.of(jid)) == ([], "retrying")
    assert jobs.drain(raise_errors=False) == 2
    assert ran == [(7, None), (7, 0), (7, 1), ("exhausted", [7], "no answer")]
    (job,) = jobs.dead()
    assert (job.jid, job["retry_count"], status.of(jid)) == (jid, 2, "failed")
    assert {"failed_at", "retried_at"} <= set(job)
    assert reported == [("error", [7])] * 3 + [("death", [7])]


@pytest.mark.parametrize(("retry", "dead"), [(0, 1), (False, 0)])
def test_job_without_retries_ends_at_once(jobs, reported, retry, dead):
    declared = retry

    class Once(Base):
        retry = declared

        def perform(self):
            raise ValueError("bad")

    Once.perform_async()
    assert jobs.drain(raise_errors=False) == 1
    assert (len(jobs.dead()), jobs.retries(), jobs.enqueued()) == (dead, [], [])
    assert reported == [("error", []), ("death", [])]


def test_hooks_choose_the_end_of_a_failure(jobs):
    class Choosing(Base):
        def perform(self, end: str):
            raise ValueError(end)

        @classmethod
        def retry_in(cls, count, error, job):
            return {"kill": "kill", "discard": "discard", "later": 7_000 if count == 0 else "kill"}[str(error)]

    for end in ("kill", "discard", "later"):
        Choosing.perform_async(end)
    assert jobs.drain(raise_errors=False) == 4
    assert [job.args for job in jobs.dead()] == [["kill"], ["later"]]


def test_flow_control_uses_no_retry(jobs, reported):
    class Flow(Base):
        # The fake's clock moves by hours, and a state expires as it would.
        status_expiration = timedelta(days=1)

        def perform(self, word: str):
            ran.append(word)
            if word == "discard":
                raise Discard("nothing to do")
            if word == "business":
                raise BusinessError("no money")
            if ran.count(word) < 3:
                raise RetryLater(timedelta(hours=1), "not yet")

    jids = {word: Flow.perform_async(word) for word in ("later", "discard", "business")}
    assert jobs.drain(raise_errors=False) == 5
    assert ran == ["later", "discard", "business", "later", "later"]
    assert (jobs.enqueued(), jobs.retries(), jobs.dead()) == ([], [], [])
    assert {word: status.of(jid) for word, jid in jids.items()} == {
        "later": "completed",
        "discard": "discarded",
        "business": "failed",
    }
    assert reported == [("death", ["business"])]


def test_async_jobs_run_too(jobs):
    class Async(Base):
        retry = 0

        async def perform(self, number: int):
            ran.append(number)
            if number == 2:
                raise ValueError("async")

    Async.perform_async(1)
    Async.perform_async(2)
    with pytest.raises(ValueError, match="async"):
        jobs.drain()
    assert ran == [1, 2]
    assert len(jobs.dead()) == 1


def test_arguments_of_another_signature_fail(jobs):
    class Changed(Base):
        wire_name = "Changed"
        retry = 0

        def perform(self, number: int): ...

    Changed.perform_async(1)

    class Changed(Base):
        wire_name = "Changed"
        retry = 0

        def perform(self, text: str): ...

    assert jobs.drain(raise_errors=False) == 1
    (job,) = jobs.dead()
    assert job["error_class"] == "framework.errors.ArgumentsMismatchError"


# --- middleware -----------------------------------------------------------------------------------------------------


@pytest.fixture
def middlewares():
    class Stamp:
        def call(self, worker, job, queue, pool):
            job["stamp"] = job.get("stamp", 0) + 1
            if job["args"] != ["dropped"]:
                yield

    class Around:
        def call(self, worker, job, queue):
            ran.append(("before", job["stamp"]))
            yield
            ran.append("after")

    middleware.client.add(Stamp)
    middleware.server.add(Around)


def test_middlewares_wrap_pushes_and_runs(middlewares, jobs):
    class Wrapped(Base):
        def perform(self, word: str):
            ran.append(word)

    assert Wrapped.perform_async("dropped") is None
    Wrapped.perform_async("now")
    Wrapped.perform_in(60, "later")
    assert jobs.drain() == 2
    assert ran == [("before", 1), "now", "after", ("before", 2), "later", "after"]


def test_job_and_its_middlewares_share_one_context(jobs):
    tenant = ContextVar("tenant", default="none")

    class SetTenant:
        def call(self, worker, job, queue):
            token = tenant.set("north")
            try:
                yield
            finally:
                ran.append(tenant.get())
                tenant.reset(token)

    middleware.server.add(SetTenant)

    class Async(Base):
        async def perform(self, word: str):
            ran.append(f"{tenant.get()} {word}")
            tenant.set(word)

    Async.perform_async("a")
    assert jobs.drain() == 1
    Async.perform_inline("b")
    assert Async.set(sync=True).perform_async("c")
    assert ran == ["north a", "a", "north b", "b", "north c", "c"]
    assert tenant.get() == "none"


# --- policies -------------------------------------------------------------------------------------------------------


def test_duplicate_of_a_waiting_job_is_dropped(jobs):
    class Unique(Base):
        idempotent = True

        def perform(self, number: int):
            ran.append(number)
            if number == 9:
                # The lock is free while the job runs.
                assert Unique.perform_async(1) is not None

    first = Unique.perform_async(1)
    assert (first is not None, Unique.perform_async(1), Unique.perform_async(2) is not None) == (True, None, True)
    assert Unique.perform_bulk([(2,), (3,), (3,)])[0] is None
    assert args_of(jobs.enqueued()) == [[1], [2], [3]]
    assert jobs.drain() == 3
    Unique.perform_async(9)
    assert jobs.drain() == 2
    assert ran == [1, 2, 3, 9, 1]


def test_duplicate_during_a_run_causes_one_more_run(jobs):
    class Again(Base):
        idempotent = True
        deduplicate = Deduplicate("until_executed", if_deduplicated="reschedule_once")

        def perform(self):
            ran.append(Again.perform_async())

    Again.perform_async()
    assert jobs.drain() == 2
    assert ran == [None, None]
    assert Again.perform_async() is not None


def test_scheduled_duplicate_is_dropped_if_declared(jobs):
    class Planned(Base):
        idempotent = True
        deduplicate = Deduplicate("until_executed", including_scheduled=True)

        def perform(self, number: int):
            ran.append(number)
            if len(ran) == 1:
                raise ValueError("once")

    assert Planned.perform_in(60, 1) is not None
    assert (Planned.perform_in(60, 1), Planned.perform_async(1)) == (None, None)
    # A job that waits for its retry keeps its lock.
    with pytest.raises(ValueError, match="once"):
        jobs.drain()
    assert Planned.perform_async(1) is None
    assert jobs.drain() == 1
    assert Planned.perform_async(1) is not None


def test_pushes_within_a_window_become_one_run(jobs):
    class Page(Base):
        idempotent = True
        status_expiration = timedelta(days=1)
        deduplicate = Deduplicate("debounce", window=timedelta(minutes=1), max_window=timedelta(minutes=2))

        def perform(self, page: int, text: str):
            ran.append((page, text))
            if text == "again":
                Page.perform_async(1, "during the run")

        @classmethod
        def idempotency_arguments(cls, args):
            return args[:1]

    class Notes(Base):
        idempotent = True
        deduplicate = Deduplicate("accumulate", window=timedelta(minutes=1), max_items=3)

        def perform(self, page: int, notes: list[str]):
            ran.append((page, notes))

    pages = [Page.perform_async(1, "old"), Page.perform_async(2, "other"), Page.perform_async(1, "again")]
    assert len(set(pages)) == 3
    assert [status.of(jid) for jid in pages] == ["discarded", "queued", "queued"]
    notes = [
        Notes.perform_async(7, []),
        Notes.perform_async(7, ["a", "b"]),
        *Notes.perform_bulk([(7, ["c"]), (7, ["d"])]),
    ]
    assert [jid == notes[0] for jid in notes] == [True, True, True, False]
    assert len(jobs.enqueued()) == 4
    assert jobs.drain() == 5
    assert sorted(map(repr, ran)) == sorted(
        map(repr, [(2, "other"), (1, "again"), (1, "during the run"), (7, ["a", "b", "c"]), (7, ["d"])])
    )


def test_jobs_of_a_fair_queue_run_and_are_retried(jobs):
    class Fair(Base):
        fair_by = staticmethod(lambda args: args[0])
        priority = "low"

        def perform(self, tenant: str, number: int):
            ran.append((tenant, number))
            if number == 1 and ran.count((tenant, number)) == 1:
                raise ValueError("once")

    Fair.perform_async("a", 0)
    Fair.set(priority="high").perform_bulk([("a", 1), ("b", 2), ("a", 3)])
    Fair.perform_in(60, "b", 4)
    assert sorted(job["priority"] for job in jobs.enqueued()) == ["high"] * 3 + ["low"] * 2
    assert {job.queue for job in jobs.enqueued() if job.args != ["b", 4]} == {"default"}
    assert len(jobs.enqueued()) == 5
    assert jobs.drain(raise_errors=False) == 6
    assert sorted(ran) == [("a", 0), ("a", 1), ("a", 1), ("a", 3), ("b", 2), ("b", 4)]
    assert jobs.enqueued() == []


def test_due_duplicate_of_a_retry_is_dropped(jobs):
    class Kept(Base):
        idempotent = True
        status_expiration = timedelta(days=1)
        deduplicate = Deduplicate("until_executed", ttl=timedelta(minutes=10))

        def perform(self, number: int):
            ran.append(number)
            if len(ran) == 1:
                raise ValueError("once")

        @classmethod
        def retry_in(cls, count, error, job):
            return 3_600

    # Longer than the lock of a job that does not wait.
    planned = Kept.perform_in(timedelta(minutes=30), 1)
    first = Kept.perform_async(1)
    assert jobs.drain(raise_errors=False) == 2
    assert (ran, status.of(planned), status.of(first)) == ([1, 1], "discarded", "completed")


def test_negative_limit_holds_jobs(jobs):
    class Paused(Base):
        concurrency_limit = -1

        def perform(self): ...

    class Limited(Base):
        concurrency_limit = 1

        def perform(self):
            ran.append(1)

    Paused.perform_async()
    Limited.perform_async()
    assert jobs.drain() == 1
    assert (ran, jobs.enqueued(), jobs.retries()) == ([1], [], [])


def test_limited_capacity_pushes_what_is_missing(jobs):
    left = [3]

    class Rows(LimitedCapacityWorker):
        feature_category = "not_owned"
        queue = "default"
        max_running_jobs = 2

        def perform_work(self):
            ran.append(left[0])
            left[0] -= 1

        def remaining_work_count(self):
            return left[0]

    assert len(Rows.perform_with_capacity()) == 2
    assert Rows.perform_with_capacity() == []
    assert jobs.drain() == 4
    assert ran == [3, 2, 1, 0]


def test_clear_forgets_jobs_and_locks(jobs):
    class Cleared(Base):
        idempotent = True
        status_expiration = 600

        def perform(self): ...

    jid = Cleared.perform_async()
    Cleared.set(queue="other").perform_in(60)
    jobs.clear()
    assert (jobs.enqueued(), jobs.drain(), status.of(jid)) == ([], 0, "unknown")
    assert Cleared.perform_async() is not None


def test_drain_of_one_class_leaves_the_others(jobs):
    class Mine(Base):
        queue = "mine"

        def perform(self):
            ran.append("mine")

    class Other(Base):
        queue = "other"

        def perform(self):
            ran.append("other")

    Mine.perform_async()
    Other.perform_async()
    Mine.perform_in(60)
    Other.perform_in(60)
    assert jobs.drain(Mine) == 2
    assert ran == ["mine", "mine"]
    assert len(jobs.enqueued(Other)) == 2


# --- iterable jobs --------------------------------------------------------------------------------------------------


def test_iterable_jobs_take_turns_and_resume(jobs):
    class Prune(IterableWorker):
        feature_category = "not_owned"
        queue = "default"
        max_iteration_runtime = 0.000001

        def build_enumerator(self, name: str, *, cursor: int | None):
            return [(item, item) for item in range(cursor or 0, 2)]

        def each_iteration(self, item: int, name: str):
            ran.append((name, item))

        def on_complete(self, name: str):
            ran.append((name, "complete", self.progress.done))

    Prune.perform_bulk([("a",), ("b",)])
    assert jobs.drain() == 4
    assert ran == [("a", 0), ("b", 0), ("a", 1), ("a", "complete", 2), ("b", 1), ("b", "complete", 2)]
    assert (jobs.enqueued(), jobs.retries()) == ([], [])


def test_iterable_job_is_retried_at_its_failed_item(jobs):
    class Prune(IterableWorker):
        feature_category = "not_owned"
        queue = "default"
        retry = 1

        def build_enumerator(self, *, cursor: int | None):
            return [(item, item) for item in range(cursor or 0, 3)]

        def each_iteration(self, item: int):
            ran.append(item)
            if ran == [0, 1]:
                raise ValueError("no")

    Prune.perform_async()
    with pytest.raises(ValueError, match="no"):
        jobs.drain()
    assert ran == [0, 1]
    assert len(jobs.retries()) == 1
