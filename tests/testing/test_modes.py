"""Check what only fakes have: a clock, stubs, middlewares of a test, and their borders."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

import framework
from framework import (
    ApplicationWorker,
    Deduplicate,
    DeferOnHealth,
    Discard,
    IterableWorker,
    RetryLater,
    databases,
    flags,
    middleware,
    status,
)
from framework.declare import registry
from framework.errors import BulkPushError, PushError, ShardUnavailableError
from framework.sharding import router
from framework.testing import (
    EmptyQueueError,
    EndlessJobsError,
    FakeClock,
    ModeError,
    assert_enqueued,
    clear,
    drain,
    enqueued,
    fake,
    inline,
    perform_one,
)
from framework.testing import fake_jobs as fake_jobs_module
from framework.wire import keys
from framework.wire.job import LOAD_BALANCING_STRATEGY
from framework.wiring import client as wiring
from tests.execute.processor_bench import worker
from tests.testing.conftest import write_config

ran: list[Any] = []
START = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue = "default"


@pytest.fixture(autouse=True)
def fresh(application):
    ran.clear()


def counting(**attributes):
    """Return a worker that notes its argument."""

    def perform(self, number: int):
        ran.append(number)

    return type("Counting", (Base,), {"perform": perform, **attributes})


# --- borders of a mode ----------------------------------------------------------------------------------------------


def test_boot_neither_before_nor_inside_ends_a_fake():
    worker = counting()
    framework.boot()
    with fake():
        framework.boot()
        worker.perform_async(1)
        assert drain() == 1
    assert isinstance(wiring.process_client.current(), wiring.ProcessClient)
    with pytest.raises(PushError, match="unavailable"):
        worker.perform_async(1)
    wiring.bind_default()


def test_modes_nest_and_each_has_its_own_jobs():
    worker = counting()
    with fake():
        worker.perform_async(1)
        with fake():
            assert enqueued() == []
            worker.perform_async(2)
        with inline():
            worker.perform_async(3)
        assert [job.args for job in enqueued()] == [[1]]
    assert ran == [3]


def test_push_of_another_thread_is_faked_too():
    worker = counting()
    with fake():
        thread = threading.Thread(target=worker.perform_async, args=(1,))
        thread.start()
        thread.join()
        assert_enqueued(worker, 1)


def test_functions_without_a_mode_say_what_to_do():
    for function in (enqueued, drain, clear):
        with pytest.raises(ModeError, match="fixture application_worker"):
            function()


def test_pool_of_a_faked_shard_sees_its_jobs():
    worker = counting()
    with fake() as jobs:
        worker.perform_async(1)
        with router.via(worker) as pool:
            assert pool.llen("queue:default") == 1
            with jobs.unavailable(), pytest.raises(RedisConnectionError, match="the test says so"):
                pool.llen("queue:default")


# --- inline ---------------------------------------------------------------------------------------------------------


def test_inline_runs_each_push_at_once_with_its_errors():
    class Inner(Base):
        def perform(self, number: int):
            ran.append(("inner", number))
            if number == 2:
                raise ValueError("two")

    class Outer(Base):
        def perform(self, number: int):
            Inner.perform_in(60, number)
            ran.append(("outer", number))

    with inline() as jobs:
        Outer.perform_async(1)
        assert ran == [("inner", 1), ("outer", 1)]
        with pytest.raises(ValueError, match="two"):
            Outer.perform_async(2)
        # Both have failed: the inner error is the outer's too.
        assert len(jobs.retries()) == 2
        Inner.perform_bulk([(3,), (4,)])
    assert ran[-2:] == [("inner", 3), ("inner", 4)]


def test_inline_keeps_what_a_job_postpones():
    class Waiting(Base):
        def perform(self, word: str):
            ran.append(word)
            raise (RetryLater(60) if word == "later" else Discard("done"))

    with inline() as jobs:
        Waiting.perform_async("later")
        Waiting.perform_async("discard")
        assert [job.args for job in jobs.enqueued()] == [["later"]]
    assert ran == ["later", "discard"]


# --- the clock ------------------------------------------------------------------------------------------------------


def test_frozen_clock_runs_only_what_is_due():
    worker = counting()
    clock = FakeClock(START)
    with fake(clock=clock) as jobs:
        worker.perform_at(START + timedelta(hours=1), 1)
        worker.perform_in(timedelta(hours=2), 2)
        # In the past by this clock, whatever the host's clock says.
        worker.perform_at(START - timedelta(seconds=1), 0)
        jobs.assert_enqueued(worker, 1, at=START + timedelta(hours=1))
        assert jobs.drain() == 1
        clock.advance(timedelta(hours=1))
        assert (jobs.drain(), ran) == (1, [0, 1])
        with pytest.raises(EmptyQueueError, match="1 due later than the frozen clock"):
            perform_one(worker)
        clock.move_to(START + timedelta(hours=3))
        assert (perform_one(worker).args, ran) == ([2], [0, 1, 2])
        with pytest.raises(ModeError, match="cannot go back"):
            clock.advance(-1)
        with pytest.raises(ModeError, match="no time zone"):
            clock.move_to(datetime(2031, 1, 1))  # noqa: DTZ001 - the mistake


def test_time_of_a_push_is_judged_by_the_frozen_clock():
    worker = counting()
    past = datetime(2020, 1, 1, tzinfo=UTC)
    with fake(clock=FakeClock(past)) as jobs:
        worker.perform_at(past + timedelta(hours=1), 1)
        worker.perform_bulk_in(past.timestamp() + 7_200, [(2,)])
        assert jobs.drain() == 0
        jobs.clock.advance(7_200)
        assert (jobs.drain(), ran, jobs.clock.now) == (2, [1, 2], past + timedelta(hours=2))


def test_frozen_clock_shows_each_retry():
    class Failing(Base):
        retry = 1

        def perform(self):
            ran.append(1)
            raise ValueError("bad")

    clock = FakeClock(START)
    with fake(clock=clock) as jobs:
        Failing.perform_async()
        assert jobs.drain(raise_errors=False) == 1
        (job,) = jobs.retries()
        assert START.timestamp() + 15 <= job["at"] <= START.timestamp() + 26
        assert jobs.drain() == 0
        clock.move_to(job["at"])
        assert jobs.drain(raise_errors=False) == 1
        assert [job["failed_at"] for job in jobs.dead()] == [pytest.approx(START.timestamp())]


def test_locks_and_states_expire_by_the_clock():
    worker = counting(idempotent=True, status_expiration=600)
    with fake(clock=FakeClock(START)) as jobs:
        jid = worker.perform_async(1)
        assert worker.perform_async(1) is None
        jobs.clock.advance(timedelta(minutes=11))
        assert status.of(jid) == "unknown"
        assert worker.perform_async(1) is not None


# --- running --------------------------------------------------------------------------------------------------------


def test_perform_one_runs_the_first_job_and_returns_it():
    worker = counting()
    with fake():
        with pytest.raises(EmptyQueueError, match=r"no job of Counting can run now\.$"):
            perform_one(worker)
        worker.perform_bulk([(1,), (2,)])
        assert (perform_one(worker).args, ran) == ([1], [1])


def test_jobs_without_end_are_named(monkeypatch):
    class Endless(Base):
        def perform(self):
            Endless.perform_async()

    monkeypatch.setattr(fake_jobs_module, "MAX_STEPS", 50)
    with fake():
        Endless.perform_async()
        with pytest.raises(EndlessJobsError, match="50 steps, 51 of them by Testing::Endless"):
            drain()


def test_keyboard_interrupt_in_a_job_ends_the_drain():
    class Interrupted(Base):
        def perform(self):
            raise KeyboardInterrupt

    with fake() as jobs:
        Interrupted.perform_async()
        with pytest.raises(KeyboardInterrupt):
            jobs.drain(raise_errors=False)


def test_failing_client_middleware_delays_a_due_job():
    class Refusing:
        def call(self, worker, job, queue, pool):
            if "at" not in job:
                raise ValueError("refused")
            yield

    worker = counting()
    middleware.client.add(Refusing)
    with fake() as jobs:
        worker.perform_in(60, 1)
        assert jobs.drain() == 0
        (job,) = jobs.enqueued()
        assert job["at"] == pytest.approx(jobs.now + 60, abs=1)


class Around:
    def call(self, worker, job, queue):
        ran.append("before")
        yield


@pytest.mark.parametrize(("chosen", "seen"), [(None, ["before", 1]), ((), [1]), ((Around,), ["before", 1])])
def test_server_middlewares_are_those_of_the_test(chosen, seen):
    worker = counting()
    if chosen is None:
        middleware.server.add(Around)
    with fake(server_middlewares=chosen) as jobs:
        worker.perform_async(1)
        jobs.drain()
        assert ran == seen
        worker.perform_inline(1)
        assert ran == seen * 2
    # A mode does not use up the chain.
    middleware.server.add(Around)


# --- stubs ----------------------------------------------------------------------------------------------------------


def test_stubbed_flags_drop_defer_and_pause():
    worker = counting(wire_name="Flagged")
    with fake() as jobs:
        jobs.flags.set("drop_jobs_Flagged")
        worker.perform_async(1)
        assert (jobs.drain(), jobs.enqueued()) == (1, [])
        jobs.flags.clear()
        jobs.flags.set("pause_jobs_Flagged")
        worker.perform_async(2)
        assert (jobs.drain(), [job.args for job in jobs.held(worker)]) == (0, [[2]])
        jobs.flags.clear("pause_jobs_Flagged")
        assert (jobs.drain(), jobs.held()) == (1, [])
        assert ran == [2]


def test_deferring_flag_sends_a_job_away():
    worker = counting(wire_name="Flagged")
    with fake() as jobs:
        jobs.flags.set("run_jobs_Flagged", 0)
        worker.perform_async(1)
        assert jobs.drain() == 0
        (job,) = jobs.enqueued()
        assert (job["deferred_by"], job["deferred_count"]) == ("feature_flag", 1)
        jobs.flags.clear()
        assert (jobs.drain(), ran) == (1, [1])


def test_flag_of_deduplication_is_asked():
    worker = counting(idempotent=True, deduplicate=Deduplicate("until_executing", feature_flag="dedup"))
    with fake() as jobs:
        assert (worker.perform_async(1), worker.perform_async(1)) != (None, None)
        assert len(jobs.enqueued()) == 2
        jobs.flags.set("dedup")
        worker.perform_async(2)
        assert worker.perform_async(2) is None


def test_flags_of_the_application_are_those_of_the_test():
    with fake(clock=FakeClock(START)) as jobs:
        jobs.flags.set("invoices")
        assert (flags.enabled("invoices"), flags.enabled("other")) == (True, False)
        flags.set("other", 100, expires_in=60, reason="set by the code under test")
        assert (flags.enabled("other", key=1), list(flags.all())) == (True, ["invoices", "other"])
        jobs.clock.advance(60)
        assert (flags.enabled("other"), list(flags.all())) == (False, ["invoices"])
        assert (flags.clear("invoices"), flags.clear("invoices")) == (True, False)
    with fake():
        assert flags.all() == {}


def test_stubbed_slots_hold_jobs_until_they_are_free():
    hooks: list[str] = []
    worker = counting(
        concurrency_limit=2,
        on_concurrency_limit_deferred=classmethod(lambda cls, args: hooks.append("deferred")),
        on_concurrency_limit_resumed=classmethod(lambda cls, args: hooks.append("resumed")),
    )
    with fake() as jobs:
        worker.perform_async(1)
        jobs.limits.occupy(worker, 2)
        assert (jobs.drain(), len(jobs.held())) == (0, 1)
        jobs.limits.clear()
        assert (jobs.drain(), ran, hooks) == (1, [1], ["deferred", "resumed"])


def test_stubbed_slots_of_a_queue_hold_its_jobs(application):
    shards = {name: {"url": "redis://127.0.0.1:1"} for name in ("main", "second")}
    write_config(application, shards, application={"limits": {"default": 2}})
    worker = counting()
    with fake() as jobs:
        worker.perform_async(1)
        jobs.limits.occupy_queue("default", 2)
        assert (jobs.drain(), len(jobs.held())) == (0, 1)
        jobs.limits.occupy_queue("default", 1)
        assert (jobs.drain(), ran) == (1, [1])


def test_stubbed_health_defers_jobs():
    worker = counting(defer_on_health=DeferOnHealth(database="main", delay=timedelta(minutes=1)))
    with fake(clock=FakeClock(START)) as jobs:
        jobs.health.stop("main", "vacuum runs")
        worker.perform_async(1)
        assert jobs.drain() == 0
        assert [job["deferred_by"] for job in jobs.enqueued()] == ["database_health_check"]
        jobs.health.clear()
        jobs.clock.advance(60)
        assert (jobs.drain(), ran) == (1, [1])


def test_stubbed_replicas_choose_what_a_job_reads(application):
    shards = {name: {"url": "redis://127.0.0.1:1"} for name in ("main", "second")}
    settings = {"databases": {"main": {"url": "postgresql+psycopg://nowhere:1/app"}}}
    write_config(application, shards, application=settings)

    class Reading(Base):
        data_consistency = "delayed"
        retry = 3

        def perform(self):
            ran.append((self._aw_job[LOAD_BALANCING_STRATEGY], databases.reads_replica("main")))

    with fake() as jobs:
        jobs.replicas.set("main", "caught_up")
        Reading.perform_async()
        jobs.drain()
        jobs.replicas.set("main", "behind")
        Reading.perform_async()
        assert jobs.drain(raise_errors=False) == 2
        assert ran == [("replica", True), ("primary", False)]
        with pytest.raises(ModeError, match=r"no database 'mian' \(did you mean 'main'\?\); the setting databases has"):
            jobs.replicas.set("mian", "behind")


def test_unavailable_shards_refuse_each_push_and_keep_jobs():
    worker = counting(idempotent=True)
    with fake() as jobs:
        worker.perform_async(1)
        with jobs.unavailable():
            for push in (worker.perform_async, worker.set(sync=False).perform_async):
                with pytest.raises(ShardUnavailableError, match="the test says so"):
                    push(2)
            with pytest.raises(BulkPushError):
                worker.perform_bulk([(3,), (4,)])
        jobs.assert_enqueued(worker, 1)
        assert (jobs.drain(), ran) == (1, [1])


def test_job_that_pushes_without_redis_is_retried():
    class Pushing(Base):
        def perform(self):
            counting().perform_async(1)

    with fake() as jobs:
        Pushing.perform_async()
        with jobs.unavailable():
            with pytest.raises(ShardUnavailableError):
                jobs.drain()
            assert len(jobs.retries()) == 1
        assert jobs.drain() == 2
    assert ran == [1]


# --- iterable jobs --------------------------------------------------------------------------------------------------


def counted_items():
    """Return an iterable class of this test, and the list of its items."""
    seen: list[Any] = []

    class CountWorker(IterableWorker):
        feature_category = "not_owned"

        def build_enumerator(self, count: int, *, cursor: int | None):
            return [(item, item) for item in range(cursor or 0, count)]

        def each_iteration(self, item: int, count: int):
            seen.append(item)

        def on_resume(self):
            seen.append("resume")

    return CountWorker, seen


def test_fake_interrupts_iterable_jobs_on_demand():
    worker, seen = counted_items()
    with fake() as jobs:
        jobs.interrupt_every = 2
        worker.perform_async(5)
        assert drain() == 3
        assert seen == [0, 1, "resume", 2, 3, "resume", 4]
        for wrong in (0, True, "2"):
            with pytest.raises(ValueError, match="give a whole number from 1"):
                jobs.interrupt_every = wrong


def test_fake_ends_a_cancelled_iterable_job():
    worker, seen = counted_items()
    with fake() as jobs:
        jobs.interrupt_every = 2
        jid = worker.perform_async(5)
        perform_one(worker)
        framework.cancel(jid)
        drain()
        assert seen == [0, 1]
        assert jobs.client.shards["main"].client.exists(keys.iteration(jid)) == 0


def test_inline_iterates_to_the_end():
    worker, seen = counted_items()
    with inline():
        worker.perform_async(2)
        worker.perform_inline(1)
    assert seen == [0, 1, 0]


def test_fake_keeps_the_lock_of_until_expired_after_the_run(application_worker):
    with registry.isolated():
        made = worker(
            lambda self: None, idempotent=True, deduplicate=Deduplicate("until_expired", ttl=timedelta(minutes=5))
        )
        assert made.perform_async() is not None
        assert application_worker.drain() == 1
        assert made.perform_async() is None
        application_worker.clock.advance(timedelta(minutes=5))
        assert made.perform_async() is not None
