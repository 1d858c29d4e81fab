"""One run: the job's environment, the effects of middleware, and the outcome."""

import asyncio
import json
import os
import threading
import time
from contextvars import copy_context
from types import SimpleNamespace

import pytest

from framework.application_worker import ApplicationWorker
from framework.declare import registry, signature
from framework.errors import (
    ArgumentsMismatchError,
    BatchCancelledError,
    Discard,
    PayloadError,
    RetryLater,
    Shutdown,
    UnknownWorkerError,
)
from framework.execute.decoding import PayloadDecoder
from framework.execute.event_loop import EventLoop
from framework.execute.execution import Executor, _ThreadClock
from framework.execute.inline import run_inline
from framework.execute.job_log import JobLog
from framework.execute.stats import RunningJobs
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import (
    Cancelled,
    Discarded,
    Failed,
    Interrupted,
    Malformed,
    Snoozed,
    Succeeded,
    UnknownClass,
)
from framework.middleware.chain import SERVER, Chain
from framework.push.argument_checks import StrictArgumentsCheck
from framework.telemetry import context
from framework.telemetry.logs import ServerLog
from framework.wire.compress import deflate_arguments
from framework.wire.json import dumps
from tests.harness import compressed, encoded, until

seen: list = []
relays: list = []


@pytest.fixture(autouse=True)
def alone():
    seen.clear()
    relays.clear()
    with registry.isolated():
        yield


@pytest.fixture
def log():
    """A server log into a pipe; a call reads the lines so far."""
    reader, writer = os.pipe()
    server_log = ServerLog(writer, "info", {"pid": 1, "shard": "main"})

    def read():
        server_log.writer.flush()
        return [json.loads(line) for line in os.read(reader, 1 << 20).splitlines()]

    read.server = server_log
    yield read
    server_log.writer.close()
    os.close(writer)
    os.close(reader)


@pytest.fixture
def run(log):
    """Run a payload through an executor with these middlewares."""

    def go(*middleware, data=None, jobs=True, runs=None, strictness=None, **fields):
        chain = Chain(SERVER)
        for one in middleware:
            chain.add(one)
        job_log = JobLog(log.server, jobs=jobs)
        running = runs or RunningJobs()
        executor = Executor(
            chain.compile(),
            job_log,
            running,
            PayloadDecoder(running, 10_000),
            SimpleNamespace(ensure_fetching=lambda: relays.append(None)),
            None,
            strictness or StrictArgumentsCheck(),
        )
        return executed(executor, UnitOfWork("q", data if data is not None else encoded(**fields)))

    return go


LOOP = EventLoop()


def executed(executor, unit):
    """Run a unit as a process does: in a context of its own, an async job on the loop."""
    own = copy_context()
    execution = own.run(executor.begin, unit)
    if execution.coroutine is not None:
        own.run(LOOP.run, executor.complete_async(execution))
    return execution


def worker(perform, **attributes):
    body = {"feature_category": "not_owned", "wire_name": "Job", "perform": perform}
    return type("Job", (ApplicationWorker,), {**body, **attributes})


def raising(error):
    def perform(self):
        raise error

    return perform


def test_job_has_its_id_arguments_and_context(run):
    def perform(self, number, *rest):
        seen.append(
            (self.jid, self.job_version, number, rest, dict(context.current()), self.cancelled, self.interrupted)
        )

    worker(perform, version=5)
    execution = run(jid="j", args=[1, 2, 3], version=2, correlation_id="c", **{"meta.user": "u"})
    assert execution.outcome == Succeeded()
    facts = {"correlation_id": "c", "meta.user": "u"}
    assert seen == [("j", 2, 1, (2, 3), facts, False, False)]
    assert context.current() == {}
    run(args=[1])
    assert seen[1][1] == 0  # written when the class had no version


def test_each_run_has_an_instance_of_its_own(run):
    def perform(self):
        assert not hasattr(self, "mark")
        self.mark = 1

    worker(perform)
    assert [run().outcome for _ in range(2)] == [Succeeded(), Succeeded()]


def test_shutdown_raised_by_a_job_is_its_failure(run):
    error = Shutdown()
    worker(raising(error))
    assert run().outcome == Failed(error)  # else its place would never be free
    assert run(runs=stopping()).outcome == Interrupted()


def stopping():
    runs = RunningJobs()
    runs.stopping = True
    return runs


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RetryLater(5, "busy"), Snoozed(5.0, "busy")),
        (RetryLater(-5), Snoozed(0.0, "")),
        (Discard("no"), Discarded("no")),
        (BatchCancelledError("aw-b"), Cancelled("ab" * 12, ran=True)),
    ],
    ids=repr,
)
def test_flow_control_errors_give_their_outcomes(run, error, outcome):
    worker(raising(error))
    assert run().outcome == outcome


@pytest.mark.proves("F31")
@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()], ids=repr
)
@pytest.mark.parametrize("is_async", [False, True])
def test_any_other_error_fails_only_its_job(run, error, is_async):
    async def perform(self):
        raise error

    worker(perform if is_async else raising(error))
    outcome = run().outcome
    assert isinstance(outcome, Failed)
    assert type(outcome.error).__name__ == type(error).__name__
    worker(lambda self: None)
    assert run().outcome == Succeeded()  # and the next job runs


def test_unknown_class_and_wrong_arguments_have_outcomes(run):
    worker(lambda self, number: None)
    outcome = run(name="Jab", args=["no base64"], compressed=True).outcome  # its arguments are not checked
    assert isinstance(outcome, UnknownClass)
    assert isinstance(outcome.error, UnknownWorkerError)
    assert (outcome.error.wire_name, outcome.error.nearest) == ("Jab", "Job")
    outcome = run(args=[1, 2]).outcome
    assert isinstance(outcome.error, ArgumentsMismatchError)
    assert "takes 1 argument" in str(outcome.error)


ODD = b'{"class":"Job","jid":"j","args":["7",1e999,' + b"[" * 70 + b"]" * 70 + b"]}"


@pytest.mark.parametrize("data", [encoded(args=["7"], jid="j"), ODD], ids=["text", "malformed for this framework"])
@pytest.mark.parametrize(("setting", "declared"), [("warn", None), ("off", None), ("raise", "warn"), ("warn", "off")])
def test_wrong_argument_types_run_where_the_mode_allows(run, caplog, data, setting, declared):
    worker(lambda self, number, *more: seen.append(number))  # a class that takes anything
    assert run(data=data, strictness=StrictArgumentsCheck("raise")).outcome.__class__ is (
        Failed if data is ODD else Succeeded
    )
    seen.clear()

    def perform(self, number: int, *more: int):
        seen.append(number)

    worker(perform, strict_arguments=declared)
    strictness = StrictArgumentsCheck(setting)
    for _ in range(3):
        assert run(data=data, strictness=strictness).outcome == Succeeded()
    assert seen == ["7"] * 3
    lines = [record.getMessage() for record in caplog.records if record.name == "framework"]
    if (declared or setting) == "off":
        assert lines == []
        return
    (line,) = lines
    for words in ("event_name='arguments.not_strict'", "class='Job'", "'number': 'does not fit", "jid='j'"):
        assert words in line


@pytest.mark.parametrize("mode", ["raise", "warn", "off"])
@pytest.mark.parametrize("args", [[], ["7", 8, 9]], ids=["too few", "too many"])
def test_wrong_number_of_arguments_runs_in_no_mode(run, caplog, mode, args):
    def perform(self, number: int, other: int = 1):
        seen.append(number)

    worker(perform)
    outcome = run(args=args, strictness=StrictArgumentsCheck(mode)).outcome
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, ArgumentsMismatchError)
    assert seen == []
    assert [record for record in caplog.records if record.name == "framework"] == []


@pytest.mark.parametrize("data", [b"{", b"[]", encoded(args=["?"], compressed=True)])
def test_payload_that_cannot_be_read_is_malformed(run, data):
    worker(lambda self, *args: None)
    outcome = run(data=data).outcome
    assert isinstance(outcome, Malformed)
    assert isinstance(outcome.error, PayloadError)


def test_compressed_arguments_reach_the_job_whole(run):
    worker(lambda self, text: seen.append(text))
    assert run(data=dumps(compressed(["ä" * 2_000]))).outcome == Succeeded()
    assert seen == ["ä" * 2_000]
    # the executor's limit is 10,000
    assert "decompressed_limit" in str(run(data=dumps(compressed(["x" * 20_000]))).outcome.error)


def test_compressed_arguments_are_strict_or_the_job_fails(run, monkeypatch):
    class ChangeArguments:
        def call(self, instance, job, queue):
            job["args"][0][0]["k"] = {1}
            yield

    plain = [{"k": 5, "text": "v1.2e34", "at": 1.5e-9}] * 30
    worker(lambda self, value: seen.append(value))
    strict = json.dumps([[*plain, {"k": "odd"}]])
    for odd in ("1e999", "9" * 4_001):
        data = encoded(
            jid="j", args=[deflate_arguments(strict.replace('"odd"', odd).encode()).decode()], compressed=True
        )
        assert isinstance(run(data=data).outcome.error, ArgumentsMismatchError), odd[:9]
    data = encoded(jid="j", args=[deflate_arguments(strict.encode()).decode()], compressed=True)
    assert isinstance(run(ChangeArguments, data=data).outcome.error, ArgumentsMismatchError)
    assert seen == []
    # The bytes have shown it: no value is visited.
    monkeypatch.setattr(signature, "is_strict_parsed", None)
    assert run(data=data).outcome == Succeeded()


# --- server middleware ----------------------------------------------------------------------------------------------


class RecordingMiddleware:
    def call(self, instance, job, queue):
        seen.append((type(instance).__name__, instance.jid, job["args"], queue, threading.current_thread().name))
        try:
            yield
        finally:
            seen.append("after")


@pytest.mark.parametrize("is_async", [False, True])
def test_middleware_wraps_def_and_async_def(run, is_async):
    async def asynchronous(self, number):
        seen.append(number)

    worker(asynchronous if is_async else lambda self, number: seen.append(number))
    assert run(RecordingMiddleware, args=[7], jid="j").outcome == Succeeded()
    assert seen == [("Job", "j", [7], "q", threading.current_thread().name), 7, "after"]


def test_middleware_that_does_not_yield_stops_the_job(run):
    class Stop:
        def call(self, instance, job, queue):
            return
            yield

    worker(lambda self: seen.append("ran"))
    assert isinstance(run(Stop).outcome, Discarded)
    assert seen == []


def test_middleware_may_swallow_replace_or_cause_a_failure(run):
    class Swallow:
        def call(self, instance, job, queue):
            try:
                yield
            except ValueError:
                seen.append("swallowed")

    class Replace:
        def call(self, instance, job, queue):
            try:
                yield
            except ValueError as error:
                raise RetryLater(9) from error

    class Cause:
        def call(self, instance, job, queue):
            yield
            raise LookupError("late")

    worker(raising(ValueError("x")))
    assert run(Swallow).outcome == Succeeded()
    assert run(Replace).outcome == Snoozed(9.0, "")
    worker(lambda self: None)
    assert isinstance(run(Cause).outcome.error, LookupError)


def test_job_gets_the_arguments_that_middleware_changed(run):
    class Change:
        def call(self, instance, job, queue):
            job["args"] = [job["args"][0] + 1]
            yield

    worker(lambda self, number: seen.append(number))
    run(Change, args=[1])
    assert seen == [2]


# --- inline ---------------------------------------------------------------------------------------------------------


def test_inline_run_uses_middleware_and_raises():
    cls = worker(lambda self, number: seen.append((number, self.jid, threading.current_thread().name)))
    chain = Chain(SERVER)
    chain.add(RecordingMiddleware)
    run_inline(cls, encoded(args=[3], jid="j"), chain.compile(), 1_000, StrictArgumentsCheck(), None)
    name = threading.current_thread().name
    assert seen == [("Job", "j", [3], "default", name), (3, "j", name), "after"]
    with pytest.raises(Discard):
        run_inline(worker(raising(Discard("x"))), encoded(), (), 1_000, StrictArgumentsCheck(), None)
    with pytest.raises(ArgumentsMismatchError):
        run_inline(cls, encoded(args=[]), (), 1_000, StrictArgumentsCheck(), None)
    assert context.current() == {}


def test_inline_async_jobs_share_one_loop():
    async def perform(self):
        seen.append(asyncio.get_running_loop())

    cls = worker(perform)
    before = threading.active_count()
    for _ in range(5):
        run_inline(cls, encoded(), (), 1_000, StrictArgumentsCheck(), None)
    assert len(set(seen)) == 1
    assert threading.active_count() <= before + 1


def test_thread_clock_is_read_again_after_a_pause():
    clock = _ThreadClock()
    before = time.thread_time()
    read = clock.time_at(now := time.perf_counter())
    assert read >= before, "the first run of a thread has a reading of its own"
    assert clock.time_at(now + 1e-5) == pytest.approx(read + 1e-5)
    assert clock.time_at(now + 1.0) < read + 0.5, "a waiting thread uses no processor time"
    other = []
    threading.Thread(target=lambda: other.append(clock.time_at(now + 1.0 + 1e-5))).start()
    until(lambda: other)
    assert other[0] < read + 0.5, "each thread has its own"
