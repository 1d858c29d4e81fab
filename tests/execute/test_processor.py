"""The processor with real parts: threads and loops of jobs, the order of the writes at an end, and the state after a stop."""

import asyncio
import contextvars
import gc
import json
import os
import sys
import threading
import time
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.errors import Discard, RetryLater, Shutdown
from framework.finish.outcome import Deferred, Discarded, Held
from framework.process.events import ProcessEvents
from framework.process.push_back import PushBack
from framework.recover.suspects import MAX_UNACKNOWLEDGED, InterruptionLimit
from framework.telemetry import context
from framework.telemetry.library_calls import count_library_calls
from framework.telemetry.usage import usage_records
from framework.timings import STANDARD
from framework.wire import keys
from framework.wire.footprint import MemoryBudget
from framework.wire.json import dumps
from tests.execute.processor_bench import WORKING, ProcessorBench, ScriptedPolicy, state, worker
from tests.features.tasks.task_bench import TaskBench, change
from tests.harness import IDENTITY, compressed, encoded, enqueue, opened, until, unwrapped
from tests.servers.guarded import narrowed

LABEL = contextvars.ContextVar("label", default="none")


@pytest.fixture
def slots(redis, redis_url):
    made = []

    def make(count=2, *middleware, policies=(), budget=None, **options):
        made.append(ProcessorBench(redis, redis_url, count, middleware, policies, budget, **options))
        return made[-1]

    with registry.isolated():
        yield make
        for one in made:
            one.stop()


@pytest.fixture
def latch():
    """Return an awaitable that async jobs wait for, on any loop, until the test opens it."""
    opened, waiting = threading.Event(), []

    async def passed():
        future = Future()
        waiting.append(future)
        if not opened.is_set():  # else the latch may have been opened before this future was in the list
            await asyncio.wrap_future(future)

    def open_latch():
        opened.set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    passed.open = open_latch
    yield passed
    open_latch()


# --- usage of a job --------------------------------------------------------------------------------------------------


def test_end_line_has_what_the_job_has_used(slots, redis, redis_url, monkeypatch):
    monkeypatch.setattr(usage_records, "enabled", True)
    count_library_calls()
    shard = opened(redis_url)

    def perform(self, how):
        if how != "nothing":
            redis.get("stat:processed")
            shard.enqueue_one("elsewhere", encoded("Job"))
        if how == "fail":
            raise ValueError(how)

    async def perform_async(self, how):
        await asyncio.gather(*(asyncio.to_thread(perform, self, how) for _ in range(2)))

    worker(perform)
    worker(perform_async, wire_name="AsyncJob")
    for name, how, jid in (
        ("Job", "use", "a"),
        ("Job", "nothing", "b"),
        ("Job", "fail", "c"),
        ("AsyncJob", "use", "d"),
    ):
        enqueue(redis, name, args=[how], jid=jid)
    one = slots(2).start()
    until(one.done)
    lines = {jid: next(line for line in one.lines(jid=jid) if "duration_s" in line) for jid in "abcd"}
    assert {jid: line.get("redis_calls") for jid, line in lines.items()} == {"a": 3, "b": None, "c": 3, "d": 6}
    assert lines["c"]["job_status"] == "fail"
    assert lines["a"]["redis_read_bytes"] < lines["a"]["redis_write_bytes"] < 1_000
    assert 0 < lines["a"]["redis_duration_s"] < lines["a"]["duration_s"]
    assert not usage_records.running
    shard.close()


def test_jobs_go_on_while_nobody_reads_the_log(slots, redis):
    worker(lambda self, text: None)
    for number in range(200):
        enqueue(redis, "Job", args=["x"], jid=str(number), tags=["y" * 64] * 60)
    one = slots(2)
    (reader, writer), file = os.pipe(), os.dup(one._file.fileno())
    # A full pipe blocks each further write; the lines of these jobs need ten of them.
    os.dup2(writer, one._file.fileno())
    one.start()
    until(one.done, "all acknowledged")
    assert one.server_log.writer._lines, "lines wait"
    os.close(reader)
    os.dup2(file, one._file.fileno())
    for descriptor in (writer, file):
        os.close(descriptor)


# --- async jobs -----------------------------------------------------------------------------------------------------


def test_more_async_jobs_run_than_there_are_threads(slots, redis, latch):
    running = []

    async def perform(self):
        running.append(self.jid)
        await latch()

    worker(perform)
    for number in range(60):
        enqueue(redis, "Job", jid=str(number))
    one = slots(50).start()
    until(lambda: len(running) == 50)
    assert one.threads() < 10
    assert len(one.runs.running()) == 50  # each is shown, under a number of its own
    assert redis.llen(WORKING) == 50  # and keeps its slot
    assert sorted(jid for jid, _ in one.processor.async_stacks()) == sorted(running)
    latch.open()
    until(one.done)
    assert len(set(running)) == 60
    assert (one.runs.totals().processed, one.runs.totals().failed) == (60, 0)
    assert one.died == []


def limit_turns(bench, turn_s):
    bench.suspect_runner._timings = replace(STANDARD, suspect_turn_s=turn_s)


@pytest.mark.proves("R25")
def test_async_suspects_start_in_turn_in_one_thread(slots, redis, latch):
    running = []

    async def perform(self):
        running.append(int(self.jid))
        await latch()

    worker(perform)
    for number in range(200):
        enqueue(redis, "Job", jid=str(number), aw_suspect=True)
    for number in range(20):
        enqueue(redis, "Job", jid=str(1_000 + number))
    one = slots(220)
    limit_turns(one, 10.0)  # 0.45 s each with this concurrency: 90 s for all
    one.start()
    until(lambda: 1_019 in running)  # a job that is no suspect waits for no suspect
    assert len(running) < 220
    limit_turns(one, 0.1)
    until(lambda: len(running) == 220)
    assert [jid for jid in running if jid < 1_000] == [*range(200)]
    assert one.threads() < 10
    assert redis.hlen(keys.process(IDENTITY)) == 200
    latch.open()
    until(one.done)
    assert one.runs.totals().processed == 220
    assert one.died == []


def test_async_suspect_may_fail_before_it_starts(slots, redis, latch):
    async def perform(self, number):
        await latch()

    worker(perform)
    enqueue(redis, "Job", args=["no number", "and one too many"], aw_suspect=True)
    one = slots(2).start()
    until(lambda: redis.zcard(keys.RETRY) == 1)
    until(one.done)
    (line,) = one.lines(job_status="fail")
    assert line["cpu_s"] >= 0
    assert one.died == []


@pytest.mark.parametrize("is_async", [False, True])
def test_jobs_that_await_their_turn_stay_in_flight_at_stop(slots, redis, is_async):
    running, opened_event = [], threading.Event()

    async def asynchronous(self):
        running.append(self.jid)
        await asyncio.Event().wait()

    def plain(self):
        running.append(self.jid)
        opened_event.wait(60)
        raise Shutdown

    worker(asynchronous if is_async else plain)
    for number in range(3):
        enqueue(redis, "Job", jid=str(number), aw_suspect=True)
    one = slots(3)
    limit_turns(one, 60.0)
    one.start()
    until(lambda: running and len(one.fetcher.in_flight.running()) == 3)
    one.runs.stopping = True
    one.processor.stop()
    opened_event.set()
    one.processor.cancel_async(0.0)  # the turn of the first is over
    until(lambda: one.processor.join(0.1), "the end of every thread")
    assert len(running) == 1
    assert len(one.fetcher.in_flight.running()) == 3
    assert redis.llen(WORKING) == 3
    assert one.died == []


def test_async_jobs_share_no_context(slots, redis, latch):
    seen = {}

    async def perform(self, label):
        before = LABEL.get()
        LABEL.set(label)
        await asyncio.sleep(0)
        await latch()
        seen[label] = (before, LABEL.get(), context.current()["correlation_id"])

    worker(perform)
    for number in range(20):
        enqueue(redis, "Job", args=[f"{number}"], jid=f"{number}", correlation_id=f"c{number}")
    one = slots(20).start()
    until(lambda: len(one.loop.tasks()) == 20)
    latch.open()
    until(one.done)
    assert seen == {f"{number}": ("none", f"{number}", f"c{number}") for number in range(20)}


@pytest.mark.parametrize("is_async", [False, True])
def test_context_set_by_middleware_reaches_job_and_exit(slots, redis, is_async):
    seen = []

    class Around:
        def call(self, instance, job, queue):
            token = LABEL.set("by the middleware")
            try:
                yield
            finally:
                seen.append(("after", LABEL.get()))
                LABEL.reset(token)

    async def asynchronous(self):
        seen.append(("job", LABEL.get()))
        await asyncio.sleep(0)
        LABEL.set("by the job")

    def plain(self):
        seen.append(("job", LABEL.get()))
        LABEL.set("by the job")

    worker(asynchronous if is_async else plain)
    enqueue(redis, "Job")
    one = slots(1, Around).start()
    until(one.done)
    assert seen == [("job", "by the middleware"), ("after", "by the job")]
    assert one.failed == []


def test_failed_async_jobs_are_retried_and_others_run(slots, redis):
    async def perform(self, ending):
        await asyncio.sleep(0)
        if ending == "exit":
            raise SystemExit(1)
        if ending == "stop":
            asyncio.get_running_loop().stop()
        if ending == "later":
            raise RetryLater(60)

    worker(perform)
    for ending in ("exit", "fine", "stop", "later", "fine"):
        enqueue(redis, "Job", args=[ending], jid=ending)
    one = slots(3).start()
    until(one.done)
    assert [type(error) for error in one.failed] == [SystemExit]
    assert (redis.zcard(keys.RETRY), redis.zcard(keys.SCHEDULE)) == (1, 1)
    assert (one.runs.totals().processed, one.runs.totals().failed) == (5, 1)
    assert one.died == []
    ends = sorted(line["job_status"] for line in one.lines() if line["job_status"] != "start")
    assert ends == ["done", "done", "done", "fail", "snoozed"]


@pytest.mark.proves("F31")
def test_async_job_that_cancels_itself_frees_its_place(slots, redis):
    async def perform(self, number):
        asyncio.current_task().cancel()
        raise ValueError(number)

    worker(perform, retry=False)
    for number in range(20):
        enqueue(redis, "Job", args=[number], jid=str(number), retry=False)
    one = slots(10).start()
    until(one.done, "every job is settled")
    assert len(one.failed) == 20


def test_stop_cancels_async_jobs_which_stay_in_flight(slots, redis):
    ends = []

    async def perform(self):
        try:
            await asyncio.Event().wait()
        finally:
            ends.append(self.interrupted)

    worker(perform)
    data = [enqueue(redis, "Job", jid=str(number)) for number in range(3)]
    one = slots(3).start()
    until(lambda: len(one.loop.tasks()) == 3)
    one.runs.interrupted = one.runs.stopping = True
    one.processor.stop()
    assert not one.processor.join(0.0)
    one.processor.cancel_async(20.0)
    until(lambda: one.processor.join(0.1))
    assert ends == [True] * 3
    # Interrupted jobs stay in flight.
    assert sorted(unit.data for unit in one.fetcher.in_flight.running()) == sorted(data)
    assert redis.llen(WORKING) == 3
    assert redis.zcard(keys.RETRY) == 0
    assert one.lines(job_status="fail") == []


# --- the end of a job -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
def test_end_line_is_written_before_the_acknowledgement(slots, redis, is_async):
    async def asynchronous(self):
        pass

    worker(asynchronous if is_async else lambda self: None)
    enqueue(redis, "Job")
    one = slots(1)
    finish, written = one.fetcher.finish, []

    def look(unit, **how):
        written.append(len(one.lines(job_status="done")))
        finish(unit, **how)

    one.fetcher.finish = look
    one.start()
    until(one.done)
    assert written == [1]


@pytest.mark.proves("I4")
@pytest.mark.parametrize("fields", [{}, {"status_expiration": 60}], ids=["untracked", "tracked"])
@pytest.mark.parametrize("is_async", [False, True])
def test_ack_sync_frees_the_place_after_confirmation(slots, redis, is_async, fields):
    async def asynchronous(self):
        pass

    worker(asynchronous if is_async else lambda self: None, ack="sync")
    for number in range(30):
        enqueue(redis, "Job", jid=str(number), **fields)
    one = slots(1)
    left, finish = [], one.fetcher.finish

    def look(unit, **how):
        left.append(redis.lrange(WORKING, 0, -1).count(unit.data))
        finish(unit, **how)

    one.fetcher.finish = look
    one.start()
    until(one.done)
    assert left == [0] * 30


@pytest.mark.proves("F19")
def test_failure_is_settled_when_redis_is_back(slots, redis):
    def perform(self):
        redis.client_kill_filter(_type="normal", skipme=True)
        raise ValueError("x")

    worker(perform)
    enqueue(redis, "Job")
    one = slots(1).start()
    until(one.done)
    assert redis.zcard(keys.RETRY) == 1
    assert len(one.failed) == 1
    assert one.died == []


@pytest.mark.proves("F38")
def test_malformed_payload_goes_to_dead_set_uncounted(slots, redis):
    redis.lpush("queue:default", b"{")
    one = slots(1).start()
    until(one.done)
    (stored,) = redis.zrange(keys.DEAD, 0, -1)
    assert unwrapped(stored) == b"{"
    assert [unit.data for unit in one.bad] == [b"{"]
    assert one.runs.totals().processed == 0


@pytest.mark.proves("R22")
def test_processor_reports_a_fenced_end(slots, redis):
    def perform(self, fails):
        redis.delete(WORKING)  # another process owns it
        if fails:
            raise ValueError("x")

    worker(perform)
    for fails in (True, False):
        enqueue(redis, "Job", args=[fails])
    one = slots(1).start()
    until(lambda: len(one.fenced_units) == 2)
    assert redis.zcard(keys.RETRY) == 0


def test_sync_jobs_share_no_context(slots, redis):
    seen = []

    def perform(self, label):
        seen.append((LABEL.get(), context.current()["correlation_id"]))
        LABEL.set(label)

    worker(perform)
    for number in range(50):
        enqueue(redis, "Job", args=[number], correlation_id=str(number))
    one = slots(2).start()
    until(one.done)
    assert sorted(seen, key=lambda each: int(each[1])) == [("none", str(number)) for number in range(50)]


def test_jobs_run_on_as_many_threads_as_the_concurrency(slots, redis):
    meeting = threading.Barrier(4)
    worker(lambda self: meeting.wait(20))
    for number in range(8):
        enqueue(redis, "Job", jid=str(number))
    one = slots(4).start()
    until(one.done)
    assert one.threads() <= 5
    assert one.failed == []


def test_record_shows_the_thread_of_a_running_job(slots, redis):
    idents, go = [], threading.Event()

    def perform(self):
        idents.append(threading.get_ident())
        go.wait(20)

    worker(perform)
    enqueue(redis, "Job")
    one = slots(2).start()
    until(lambda: idents)
    assert list(one.runs.running()) == idents
    go.set()
    until(one.done)
    assert one.runs.running() == {}


def test_framework_error_in_a_thread_is_reported(slots, redis):
    worker(lambda self: None)
    one = slots(1)
    one.fetcher.finish = lambda unit: 1 / 0
    enqueue(redis, "Job")
    one.start()
    until(lambda: one.died)
    assert [type(error) for _, error in one.died] == [ZeroDivisionError]


@pytest.mark.proves("F51")
def test_thread_that_cannot_start_fails_no_job(slots, redis):
    worker(lambda self: None)
    one = slots(3)
    start_thread = one.pool._start_thread

    def limited(name):
        if one.threads() >= 1:
            raise RuntimeError("can't start new thread")
        start_thread(name)

    one.pool._start_thread = limited
    for number in range(10):
        enqueue(redis, "Job", jid=str(number))
    one.start()
    until(lambda: one.runs.totals().processed >= 10)
    assert one.failed == []


@pytest.mark.proves("I4")
def test_many_jobs_of_all_kinds_end_once_each(slots, redis):
    ran = []

    async def asynchronous(self, number):
        await asyncio.sleep(0)
        ran.append(number)
        if number % 10 == 0:
            raise ValueError(number)

    def plain(self, number):
        ran.append(number)
        if number % 10 == 1:
            raise ValueError(number)

    body = {"feature_category": "not_owned"}
    type("Async", (ApplicationWorker,), {**body, "wire_name": "Async", "perform": asynchronous})
    type("Plain", (ApplicationWorker,), {**body, "wire_name": "Plain", "perform": plain})
    one = slots(8).start()
    with ThreadPoolExecutor(2) as pool:
        for name, rest in (("Async", 0), ("Plain", 1)):
            pool.submit(
                lambda name=name, rest=rest: [
                    enqueue(redis, name, args=[number], jid=str(number)) for number in range(rest, 1_000, 2)
                ]
            )
    until(lambda: len(ran) >= 1_000)
    until(one.done)
    assert sorted(ran) == list(range(1_000))
    assert redis.zcard(keys.RETRY) == len(one.failed) == 200
    assert one.runs.totals().processed == 1_000
    assert len(one.lines(job_status="start")) == 1_000
    assert one.died == []


# --- states of tracked jobs -----------------------------------------------------------------------------------------


def acts(redis, seen, *, is_async, lasts=False):
    """Return a perform that notes its own state and then ends as its argument says; ``lasts``: not before it is ``running``."""

    def act(self, how):
        if lasts:
            until(lambda: state(redis, self.jid) == "running")
        seen.append(state(redis, self.jid))
        if how == "fail":
            raise ValueError(how)
        if how == "discard":
            raise Discard(how)
        if how == "later":
            raise RetryLater(60)

    async def act_async(self, how):
        await asyncio.sleep(0)
        act(self, how)

    return act_async if is_async else act


@pytest.mark.parametrize("is_async", [False, True], ids=("def", "async"))
@pytest.mark.parametrize(
    ("how", "fields", "after"),
    [
        ("well", {}, "completed"),
        ("fail", {}, "retrying"),
        ("fail", {"retry": 0}, "failed"),
        ("fail", {"retry": False}, "failed"),
        ("discard", {}, "discarded"),
        ("later", {}, "queued"),
    ],
)
def test_tracked_job_writes_its_states(slots, redis, is_async, how, fields, after):
    """A Ruby client writes no state at the push: the first state is written soon after the start."""
    seen = []
    worker(acts(redis, seen, is_async=is_async, lasts=True))
    enqueue(redis, "Job", args=[how], status_expiration=100, **fields)
    one = slots(1).start()
    until(one.done)
    assert (seen, state(redis, "ab" * 12), one.unwritten_states, one.died) == (["running"], after, [], [])
    waits = {"retrying": 15, "queued": 60}.get(after, 0)
    assert 90 + waits < redis.ttl(keys.status("ab" * 12)) <= 130 + waits


@pytest.mark.parametrize("is_async", [False, True], ids=("def", "async"))
def test_completed_state_is_written_in_the_step_of_the_removal(slots, redis, is_async, monkeypatch):
    """A kill before the acknowledgement leaves the job and ``running``; no order of two steps can be wrong."""
    seen = []
    worker(acts(redis, [], is_async=is_async, lasts=True))
    enqueue(redis, "Job", args=["well"], status_expiration=100)
    one = slots(1)
    finish = one.fetcher.finish
    monkeypatch.setattr(
        one.fetcher,
        "finish",
        lambda unit, **how: (
            seen.append((state(redis, "ab" * 12), redis.llen(WORKING))),
            finish(unit, **how),
        ),
    )
    one.start()
    until(one.done)
    assert seen == [("running", 1)]
    assert (state(redis, "ab" * 12), redis.llen(WORKING)) == ("completed", 0)


def test_quick_tracked_jobs_write_one_state_each(slots, redis):
    worker(lambda self: None)
    for number in range(200):
        enqueue(redis, "Job", jid=str(number), status_expiration=100)
    redis.config_resetstat()
    one = slots(1).start()
    until(one.done)
    assert {state(redis, str(number)) for number in range(200)} == {"completed"}
    # A job on a busy machine may last for more than 5 ms.
    assert 200 <= redis.info("commandstats")["cmdstat_set"]["calls"] < 300


def test_job_stopped_by_middleware_is_discarded(slots, redis):
    class Stop:
        def call(self, worker, job, queue):
            return
            yield

    worker(acts(redis, [], is_async=False))
    enqueue(redis, "Job", args=["well"], status_expiration=100)
    one = slots(1, Stop).start()
    until(one.done)
    assert state(redis, "ab" * 12) == "discarded"


def test_job_that_cannot_run_is_never_running(slots, redis):
    worker(lambda self: None)
    enqueue(redis, "Unknown", status_expiration=100, jid="u")
    enqueue(redis, "Job", status_expiration=100, jid="c", compressed=True, args=["no base64"])
    one = slots(1).start()
    until(one.done)
    assert (state(redis, "u"), state(redis, "c")) == ("queued", "failed")
    assert one.unknown == ["Unknown"]


def test_untracked_job_writes_no_state(slots, redis):
    ran = []
    worker(lambda self: ran.append(1))
    for fields in ({}, {"status_expiration": "soon"}, {"status_expiration": 60, "jid": ""}):
        enqueue(redis, "Job", **fields)
    one = slots(1)
    redis.config_resetstat()
    one.start()
    until(one.done)
    assert len(ran) == 3
    assert "cmdstat_set" not in redis.info("commandstats")


@pytest.mark.parametrize("is_async", [False, True], ids=("def", "async"))
@pytest.mark.parametrize(
    ("how", "place", "after"),
    [("well", None, "completed"), ("fail", keys.RETRY, "retrying"), ("discard", None, "discarded")],
)
def test_last_state_is_written_at_maxmemory(slots, redis, is_async, how, place, after):
    ran = []
    worker(acts(redis, ran, is_async=is_async))
    for number in range(20):
        enqueue(redis, "Job", args=[how], jid=str(number), status_expiration=100)
    one = slots(4)
    redis.execute_command("CONFIG", "SET", "maxmemory", 1)
    try:
        one.start()
        until(one.done)
    finally:
        redis.config_set("maxmemory", 0)
    # A slow machine may show one as `running`.
    assert len(ran) == 20
    assert set(ran) <= {None, "running"}
    assert (one.died, redis.zcard(place) if place else 20) == ([], 20)
    assert (one.unwritten_states, one.release_errors) == ([], [])
    assert {state(redis, str(number)) for number in range(20)} == {after}


@pytest.mark.parametrize("is_async", [False, True], ids=("def", "async"))
@pytest.mark.parametrize(("how", "place"), [("well", None), ("fail", keys.RETRY), ("discard", None)])
@pytest.mark.refused("default aw:status:*")
def test_refused_states_cost_no_job(slots, redis, is_async, how, place, monkeypatch):
    """An ACL without the status keys refuses the states."""
    ran = []
    monkeypatch.setattr(sys.modules[__name__], "state", lambda *facts: None)
    worker(acts(redis, ran, is_async=is_async))
    for number in range(20):
        enqueue(redis, "Job", args=[how], jid=str(number), status_expiration=100)
    one = slots(4)
    with narrowed(redis, "resetkeys", "~queue*", "~retry", "~stat:*", "~aw:[^s]*"):
        one.start()
        until(one.done)
    assert (one.died, redis.zcard(place) if place else 20) == ([], 20)
    # The step that moves or acknowledges a job writes its state.
    assert (one.unwritten_states, bool(one.release_errors)) == ([], True)
    assert not redis.keys("aw:status:*")


@pytest.mark.parametrize("is_async", [False, True], ids=("def", "async"))
@pytest.mark.parametrize(
    ("how", "fields", "after"),
    [("well", {}, "completed"), ("discard", {}, "discarded"), ("fail", {"retry": False}, "failed")],
)
def test_tracked_job_ends_while_redis_is_away(make_server, slots, redis, is_async, how, fields, after):
    """The job leaves Redis only when Redis is back; its last state is written then, so a reader sees its end."""
    own = make_server()
    own_redis = own.open()
    ran, killed = [], threading.Event()

    def end(self):
        ran.append(1)
        own.kill()
        killed.set()
        if how == "fail":
            raise ValueError(how)
        if how == "discard":
            raise Discard(how)

    async def end_async(self):
        end(self)

    with registry.isolated():
        worker(end_async if is_async else end)
        enqueue(own_redis, "Job", status_expiration=100, **fields)
        one = ProcessorBench(own_redis, own.url, 1, ()).start()
        until(lambda: one.settle_errors if how == "fail" else one.fetch_errors)
        assert killed.wait(20)
        own.start()
        one.redis.set(keys.lease(IDENTITY), 1, px=60_000)
        until(one.done)
        assert (ran, one.died, one.unwritten_states) == ([1], [], [])
        assert state(own_redis, "ab" * 12) == after
        one.stop()


# --- policies and resources of jobs -----------------------------------------------------------------------------------


LOCK = keys.lock("of equal jobs")


def locked(redis, jid, owner=None):
    redis.hset(LOCK, "jid", owner or jid)
    redis.pexpire(LOCK, 60_000)
    return {"jid": jid, "idempotency_key": LOCK}


def test_performing_since_covers_only_the_jobs_code(slots, redis):
    """A stopping process reads it to distinguish jobs that were cut off from jobs that had not started or had ended."""
    asked, open_, begun, ended, settling = (threading.Event() for _ in range(5))

    def wait_in_the_policy(_entry):
        asked.set()
        open_.wait(20)

    def perform(self):
        begun.set()
        ended.wait(20)
        raise ValueError("no")

    worker(perform)
    enqueue(redis, "Job", jid="j1")
    one = slots(policies=[ScriptedPolicy(wait_in_the_policy)])
    one.settle_failed = lambda unit, error: settling.set()
    one.start()
    assert asked.wait(20)
    (unit,) = one.fetcher.in_flight.running()
    assert unit.performing_since == 0
    before = time.perf_counter()
    open_.set()
    assert begun.wait(20)
    assert before <= unit.performing_since <= time.perf_counter()
    redis.set(keys.RETRY, "of another type")
    ended.set()
    assert settling.wait(20)  # it has ended, and Redis does not take its end
    assert (one.fetcher.in_flight.unfinished(), unit.performing_since) == ([unit], 0)
    assert one.fetcher.in_flight.running() == []
    redis.delete(keys.RETRY)
    until(one.done)


def test_deferred_job_keeps_its_id_lock_and_age(slots, redis):
    ran = []
    worker(lambda self: ran.append(self.jid))
    enqueue(redis, "Job", **locked(redis, "j1"), created_at=5.5, foreign="kept", deferred_count=2)
    one = slots(policies=[ScriptedPolicy(Deferred(50.0, "feature_flag", {"flag": "run_jobs_Job"}))]).start()
    until(one.done)
    ((member, due),) = redis.zrange("schedule", 0, -1, withscores=True)
    assert 40 < due - time.time() <= 51
    stored = json.loads(member)
    assert stored["jid"] == "j1"
    assert stored["created_at"] == 5.5
    assert stored["foreign"] == "kept"
    assert (stored["deferred"], stored["deferred_by"], stored["deferred_count"]) == (True, "feature_flag", 3)
    assert redis.hget(LOCK, "jid") == b"j1"
    assert 600_000 < redis.pttl(LOCK) <= 651_000  # until it is due, and as long as it had
    (line,) = one.lines()
    assert (line["job_status"], line["job_deferred_by"], line["deferred_count"]) == ("deferred", "feature_flag", 3)
    assert line["flag"] == "run_jobs_Job"
    assert line["jid"] == "j1"
    assert "duration_s" not in line
    assert ran == []
    assert (one.runs.totals().processed, one.runs.totals().failed) == (0, 0)


def test_job_dropped_by_a_policy_releases_its_lock(slots, redis):
    worker(lambda self: None)
    enqueue(redis, "Job", **locked(redis, "j1"), status_expiration=60)
    one = slots(policies=[ScriptedPolicy(Discarded("drop_jobs_Job is on", "feature_flag"))]).start()
    until(one.done)
    assert not redis.exists(LOCK)
    assert state(redis, "j1") == "discarded"
    (line,) = one.lines()
    assert (line["job_status"], line["dropped_reason"]) == ("dropped", "drop_jobs_Job is on")


def test_held_job_leaves_the_process(slots, redis):
    worker(lambda self: None)
    data = enqueue(redis, "Job", **locked(redis, "j1"))

    def hold(entry):
        redis.lrem(WORKING, -1, entry.unit.data)
        redis.zadd("aside", {entry.unit.data: 1})
        return Held("paused", {"pause_control.strategy": "manual"})

    one = slots(policies=[ScriptedPolicy(hold)]).start()
    until(one.done)
    assert redis.zrange("aside", 0, -1) == [data]
    assert redis.hget(LOCK, "jid") == b"j1"
    (line,) = one.lines()
    assert (line["job_status"], line["pause_control.strategy"]) == ("paused", "manual")


def test_policies_are_asked_in_order_by_class(slots, redis):
    async def perform(self, text):
        pass

    worker(perform, wire_name="Async")
    worker(lambda self: None, wire_name="Free")
    first, last = ScriptedPolicy(None), ScriptedPolicy(None)
    never = ScriptedPolicy(Discarded("never", "feature_flag"), concerned=lambda declaration: False)
    some = ScriptedPolicy(
        Discarded("some", "feature_flag"), concerned=lambda declaration: declaration.wire_name != "Free"
    )
    redis.lpush("queue:default", json.dumps(compressed(["x" * 200], **{"class": "Async", "jid": "a"})))
    for number in range(3):
        enqueue(redis, "Free", jid=str(number))
    one = slots(1, policies=[first, never, some, last]).start()
    until(one.done)
    assert [entry.payload["jid"] for entry in first.entries] == ["a", "0", "1", "2"]
    assert first.entries[0].payload["args"] == ["x" * 200]
    assert [entry.payload["jid"] for entry in some.entries] == ["a"]
    assert [entry.payload["jid"] for entry in last.entries] == ["0", "1", "2"]
    assert never.asked_of == ["Async", "Free"]
    some.concerned = lambda declaration: True
    one.policies.invalidate()
    enqueue(redis, "Free", jid="3")
    until(lambda: one.lines(job_status="dropped", jid="3"))
    until(one.done)


def test_policy_is_asked_again_while_redis_is_away(slots, redis):
    ran = []
    worker(lambda self: ran.append(self.jid))
    policy = ScriptedPolicy(RedisConnectionError("away"), RedisConnectionError("away"), None)
    enqueue(redis, "Job", jid="j1")
    one = slots(policies=[policy]).start()
    until(one.done)
    assert ran == ["j1"]
    assert len(policy.entries) == 3
    assert one.died == []


def test_job_whose_policy_is_refused_is_deferred(slots, redis):
    worker(lambda self: None)
    enqueue(redis, "Job", **locked(redis, "j1"), retry=False)
    one = slots(1, policies=[ScriptedPolicy(ResponseError("ERR something is wrong with this key"))]).start()
    until(one.done)
    (member,) = redis.zrange("schedule", 0, -1)
    assert json.loads(member)["deferred_by"] == "policy_refused"
    assert redis.hget(LOCK, "jid") == b"j1"
    (line,) = one.lines(job_status="deferred")
    assert line["exception.message"] == "ERR something is wrong with this key"


def test_join_sees_a_job_that_moves_on_to_its_settlement(slots, monkeypatch):
    one = slots(1).start()
    one.processor.stop()
    until(lambda: one.processor.join(0.1), "the end of every thread")
    settled = threading.Event()

    class LoopWhoseLastJobEnds:
        @property
        def idle(self):
            one.processor._settles.submit(lambda: settled.wait(30))
            return True

    with monkeypatch.context() as patch:
        patch.setattr(one.processor, "_loop", LoopWhoseLastJobEnds())
        assert not one.processor.join(0.0)
    settled.set()
    until(lambda: one.processor.join(0.0))


def test_policy_that_waits_for_redis_delays_no_stop(slots, redis):
    worker(lambda self: None)
    policy = ScriptedPolicy(RedisConnectionError("away"))
    data = enqueue(redis, "Job", jid="j1")
    one = slots(policies=[policy]).start()
    until(lambda: policy.entries)
    one.runs.stopping = True
    one.processor.stop()
    until(lambda: one.processor.join(0.1), "the end of every thread")
    assert redis.lrange(WORKING, 0, -1) == [data]  # the launcher returns it


def test_error_of_a_policy_is_the_jobs_failure(slots, redis):
    worker(lambda self: None)
    enqueue(redis, "Job", jid="j1")
    one = slots(policies=[ScriptedPolicy(ValueError("a broken policy"))]).start()
    until(one.done)
    (member,) = redis.zrange("retry", 0, -1)
    assert json.loads(member)["error_class"] == "ValueError"


@pytest.mark.proves("R38")
@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize(
    ("raised", "kept"), [(None, False), (Discard("enough"), False), (RetryLater(30), True), (ValueError(), True)]
)
def test_lock_stays_until_the_last_run_of_its_job(slots, redis, kind, raised, kept):
    def perform(self):
        if raised:
            raise raised

    async def perform_async(self):
        perform(self)

    worker(perform if kind == "def" else perform_async)
    enqueue(redis, "Job", **locked(redis, "j1"))
    one = slots().start()
    until(one.done)
    assert redis.exists(LOCK) == kept


@pytest.mark.proves("R38")
@pytest.mark.parametrize("attributes", [{"retry": 0}, {"retry": False}])
def test_last_failure_releases_the_lock(slots, redis, attributes):
    worker(lambda self: int("none"), **attributes)
    enqueue(redis, "Job", **locked(redis, "j1"), **attributes)
    one = slots().start()
    until(one.done)
    assert redis.exists(LOCK) == 0


def test_lock_of_another_job_stays(slots, redis):
    worker(lambda self: None)
    enqueue(redis, "Job", **locked(redis, "j1", owner="j2"))
    one = slots().start()
    until(one.done)
    assert redis.hget(LOCK, "jid") == b"j2"


@pytest.mark.parametrize("key", [5, "resque:gitlab:duplicate:default:abc", None, "queue:default", ""])
def test_keys_of_other_systems_are_left_alone(slots, redis, key):
    worker(lambda self: None)
    enqueue(redis, "Job", jid="j1", idempotency_key=key)
    if isinstance(key, str) and key and not key.startswith("queue"):
        redis.hset(key, "jid", "j1")
    one = slots().start()
    until(one.done)
    assert not isinstance(key, str) or not key.startswith("resque") or redis.hget(key, "jid") == b"j1"


# --- memory ---------------------------------------------------------------------------------------------------------

LARGE = dumps(compressed([[[]] * 60_000]))
"""Takes 6 MB of memory."""


def test_large_jobs_run_in_turn_beside_small_ones(redis, slots):
    budget, opened_event, ran, lock = MemoryBudget(8_000_000), threading.Event(), [], threading.Lock()

    def perform(self, rows):
        with lock:
            ran.append(len(rows))
        opened_event.wait(20)

    worker(perform)
    worker(lambda self: ran.append("small"), wire_name="Small")
    one = slots(3, budget=budget)
    for number in range(3):
        redis.lpush("queue:default", LARGE.replace(b"ab" * 12, b"%024d" % number))
    one.start()
    until(lambda: ran == [60_000] and len(budget._waiters) == 1, "one runs, the next waits for its memory")
    opened_event.set()
    enqueue(redis, "Small")
    until(one.done)
    until(lambda: (budget._used, len(budget._waiters)) == (0, 0), "the thread gives back the memory after the job")
    assert sorted(map(str, ran)) == ["60000", "60000", "60000", "small"]
    assert one.died == []


@pytest.mark.parametrize("data", [LARGE, encoded(args=[[[]] * 60_000])], ids=["compressed", "raw"])
@pytest.mark.parametrize("end", ["returns", "raises", "later", "async", "async raises"])
def test_memory_of_a_large_job_is_freed_at_any_end(redis, slots, data, end):
    budget, kept = MemoryBudget(30_000_000), []

    class Rows(list):
        pass

    def sync(self, rows):
        rows_of_job = Rows(rows)
        kept.append(weakref.ref(rows_of_job))
        if end != "returns":
            raise RetryLater(60) if end == "later" else ValueError(end)

    async def later(self, rows):
        rows_of_job = Rows(rows)
        kept.append(weakref.ref(rows_of_job))
        await asyncio.sleep(0)
        if end != "async":
            raise ValueError(end)

    worker(later if end.startswith("async") else sync)
    gc.disable()  # the references of a failed job end without the garbage collector
    try:
        one = slots(1, budget=budget).start()
        redis.lpush("queue:default", data)
        until(lambda: kept and one.done(), "it has run")
        until(lambda: budget._used == 0, "its memory is given back")
        until(lambda: kept[0]() is None, "its references are gone")
    finally:
        gc.enable()
    assert one.died == []


def test_stop_ends_the_wait_for_memory(redis, slots):
    budget = MemoryBudget(8_000_000)
    assert budget.acquire(8_000_000, lambda: False)
    worker(lambda self, rows: None)
    one = slots(1, budget=budget).start()
    redis.lpush("queue:default", LARGE)
    until(lambda: budget._waiters, "it waits")
    one.runs.stopping = True
    until(lambda: not budget._waiters, "it waits no more")
    assert redis.lrange(WORKING, 0, -1) == [LARGE]
    assert [line["job_status"] for line in one.lines()] == ["start"]


# --- recorded jobs --------------------------------------------------------------------------------------------------


@pytest.fixture
def tasks(tmp_path):
    made = TaskBench(f"sqlite:///{tmp_path}/tasks.db")
    yield made
    made.close()


def test_recorded_job_is_acknowledged_after_its_event(tasks, slots, redis):
    """Threads go on to other jobs meanwhile; a bounded number of jobs waits, and none is acknowledged after the stop."""
    tasks.apply(*(change(str(number), "push", 1.0) for number in range(41)))
    ran = []
    worker(lambda self: ran.append(self.jid), track=True)
    for number in range(40):
        enqueue(redis, "Job", jid=str(number))
    one = slots(2, recorder=tasks.recorder)
    left = one.fetcher.in_flight.left
    with tasks.database.held():
        one.start()
        until(lambda: len(left) >= MAX_UNACKNOWLEDGED and not one.fetcher.in_flight.running())
        # The other thread may run a job while the one that reaches the bound ends.
        assert MAX_UNACKNOWLEDGED <= len(ran) <= MAX_UNACKNOWLEDGED + 1
        assert redis.llen(WORKING) >= len(ran)
    until(one.done)
    assert {tasks.event(str(number)).state for number in range(40)} == {"completed"}
    assert (sorted(map(int, ran)), one.runs.totals().processed) == (list(range(40)), 40)
    with tasks.database.held():
        enqueue(redis, "Job", jid="40")
        until(lambda: left)
        assert not one.processor.join(0)
        one.processor.stop()
        one.processor.stop_settling()
    assert tasks.event("40").state == "completed"
    assert redis.llen(WORKING) == 1
    one.end_threads()
    # As the launcher does: a blocking call that is still under way would take the returned job.
    one.fetcher.shutdown(5.0)
    # The stop returns it: in the list of a dead process it would count as a job that died with it.
    back = PushBack(redis, {IDENTITY: one.fetcher.in_flight}, ProcessEvents("main"), InterruptionLimit(3))
    back.return_jobs(None)
    assert (redis.llen(WORKING), redis.llen("queue:default"), back.returned) == (0, 1, 1)
    assert one.died == []
