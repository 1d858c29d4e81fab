"""Timeouts of runs: an error in the thread of the job, and only in the job's own code; cancelled tasks of async jobs."""

import asyncio
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from framework.declare import registry
from framework.errors import JobTimeoutError
from framework.execute import timeouts as module
from framework.execute.processor import TIMED_OUT_JOBS
from framework.execute.timeouts import Timeouts, await_within, is_in_guarded_code, timeout_of
from framework.telemetry.counters import counters
from framework.wire import keys
from tests.execute.processor_bench import ProcessorBench, state, worker
from tests.harness import enqueue, until
from tests.tables import each_row

JID = "ab" * 12


@pytest.fixture
def timeouts():
    return Timeouts()


@pytest.fixture
def bench(redis, redis_url, monkeypatch):
    monkeypatch.setattr(counters, "_counts", {})
    made = []

    def make(count=1):
        made.append(ProcessorBench(redis, redis_url, count, ()))
        return made[-1]

    with registry.isolated():
        yield make
        for one in made:
            one.stop()


def spin():
    """Run instructions until an error comes."""
    while True:
        pass


def pending():
    """Run some instructions: an error that is on its way to this thread comes here."""
    for _ in range(1_000):
        time.monotonic()


@pytest.mark.proves("F27")
def test_call_that_lasts_too_long_gets_the_error(timeouts):
    with pytest.raises(JobTimeoutError, match=r"for more than 0\.05 s") as raised:
        timeouts.call(spin, (), 0.05)
    assert raised.value.timeout_s == 0.05
    assert raised.traceback[-1].name == "spin"
    pending()


def test_call_in_time_returns_or_raises_as_ever(timeouts):
    assert timeouts.call(max, (3, 4), 60) == 4
    with pytest.raises(ZeroDivisionError):
        timeouts.call(lambda: 1 / 0, (), 60)
    assert timeouts._calls == set()


def test_error_comes_once_and_may_be_handled(timeouts):
    caught = []

    def handles():
        try:
            spin()
        except JobTimeoutError as error:
            caught.append(error)
        until(lambda: not timeouts._calls)
        pending()
        return "cleaned up"

    assert timeouts.call(handles, (), 0.02) == "cleaned up"
    assert len(caught) == 1


def test_except_exception_does_not_catch_the_error(timeouts):
    def careless():
        while True:
            try:
                spin()
            except Exception:
                continue

    with pytest.raises(JobTimeoutError):
        timeouts.call(careless, (), 0.02)


@pytest.mark.parametrize("end", ["returns", "raises"])
def test_error_never_comes_after_the_call(timeouts, end):
    """Calls end at about the moment at which the error is due: it comes inside of the call, or never."""
    ended = {"in time": 0, "too late": 0}

    def perform(until_s):
        while time.monotonic() < until_s:
            pass
        if end == "raises":
            raise KeyError

    for number in range(120):
        try:
            timeouts.call(perform, (time.monotonic() + 0.002 + (number % 20) * 1e-5,), 0.002)
            ended["in time"] += 1
        except KeyError:
            ended["in time"] += 1
        except JobTimeoutError:
            ended["too late"] += 1
        pending()
        assert not timeouts._lock._is_owned()
    assert timeouts._calls == set()
    assert sum(ended.values()) == 120


TRACED_AFTER_A_TIMEOUT = """
import sys, time
from framework.errors import JobTimeoutError
from framework.execute.timeouts import Timeouts


def perform():
    while True:
        time.sleep(0.001)


def trace(frame, event, _):
    frame.f_trace_opcodes = True
    return trace


try:
    Timeouts().call(perform, (), 0.01)
except JobTimeoutError:
    sys.settrace(trace)
    print(sorted([2, 1], key=lambda number: number))
"""


def test_interpreter_looks_for_no_error_after_a_timeout():
    """Code that is traced by instruction never goes on while the interpreter looks for an error in a thread."""
    command = [sys.executable, "-c", TRACED_AFTER_A_TIMEOUT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("[1, 2]\n", "")


def test_many_threads_get_their_own_errors(timeouts):
    found = []

    def run(number):
        try:
            found.append((number, timeouts.call(lambda: spin() if number % 2 else number, (), 0.05)))
        except JobTimeoutError:
            found.append((number, "late"))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(found) == [(number, "late" if number % 2 else number) for number in range(10)]


def test_error_waits_while_the_job_is_in_the_framework(timeouts, monkeypatch):
    """A push of the job is not interrupted: the error comes behind it."""
    reached = []

    def guarded():
        deadline = time.monotonic() + 0.2
        while time.monotonic() < deadline:
            reached.append(1)
        reached.append("ended")

    inside = compile("def enter(inner):\n    inner()\n", f"{module._GUARDED[0]}push/client.py", "exec")
    scope = {}
    exec(inside, scope)

    def perform():
        scope["enter"](guarded)
        spin()

    with pytest.raises(JobTimeoutError):
        timeouts.call(perform, (), 0.05)
    assert reached[-1] == "ended"


@each_row(
    ("frames", "guarded"),
    [
        ("job", False),
        ("job job", False),
        ("framework", True),
        ("job framework", True),
        ("job framework library", True),
        ("job redis", True),
        ("framework redis", True),
        ("framework job", False),
        ("framework framework job", False),
        ("framework job framework", True),
        ("framework library", False),
        ("", True),
    ],
)
def test_guarded_code_is_that_below_the_code_of_the_job(frames, guarded):
    """The frames from the call of ``perform`` inwards; the last one runs."""
    frame = SimpleNamespace(f_code=Timeouts.call.__code__, f_back=None) if frames else None
    for name in frames.split():
        file = f"{module._GUARDED[name == 'redis']}code.py" if name in ("framework", "redis") else f"/srv/{name}.py"
        frame = SimpleNamespace(f_code=SimpleNamespace(co_filename=file), f_back=frame)
    assert is_in_guarded_code(frame) is guarded
    assert is_in_guarded_code(sys._getframe())  # no timed call runs in this thread


@each_row(
    ("payload", "declared", "seconds"),
    [
        ({}, None, None),
        ({}, 5, 5.0),
        ({"timeout": 2}, 5, 2.0),
        ({"timeout": 0.5}, None, 0.5),
        *(({"timeout": wrong}, 5, 5.0) for wrong in (0, -1, None, True, "2", [2])),
    ],
)
def test_timeout_of_the_push_precedes_that_of_the_class(payload, declared, seconds):
    with registry.isolated():
        made = worker(lambda self: None, timeout=declared)
        assert timeout_of(made.declaration(), payload) == seconds


def test_async_run_that_lasts_too_long_gets_the_error():
    async def cleans_up():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cleaned up")

    async def handles():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "handled"

    async def own():
        raise TimeoutError("of the job")

    ended = []
    with pytest.raises(JobTimeoutError, match=r"more than 0\.01 s"):
        asyncio.run(await_within(cleans_up(), 0.01))
    assert ended == ["cleaned up"]
    assert asyncio.run(await_within(handles(), 0.01)) == "handled"
    with pytest.raises(TimeoutError, match="of the job"):
        asyncio.run(await_within(own(), 60))


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_job_that_lasts_too_long_fails_and_is_retried(bench, redis, kind):
    async def waits(self):
        await asyncio.sleep(60)

    worker(waits if kind == "async" else lambda self: spin(), timeout=0.05)
    enqueue(redis, "Job", jid=JID, status_expiration=60, retry=3)
    one = bench().start()
    until(lambda: redis.zcard(keys.RETRY) == 1)
    until(one.done)
    (line,) = one.lines(job_status="fail")
    assert (line["error_class"], line["error_kind"], line["retry_count"]) == (
        "framework.errors.JobTimeoutError",
        "timeout",
        0,
    )
    assert line["exception.message"] == (
        "perform ran for more than 0.05 s, its timeout. Make the job shorter, or raise the timeout"
    )
    assert (state(redis, JID), one.died, len(one.failed)) == ("retrying", [], 1)
    assert counters._counts == {f'{TIMED_OUT_JOBS}{{worker="Job"}}': 1}
    # The thread, or the loop, runs the next job.
    enqueue(redis, "Job", jid="next", timeout=0.1, retry=False)
    until(lambda: len(one.lines(jid="next", job_status="fail")) == 1)
    assert one.died == []


def test_job_without_a_timeout_starts_no_watching_thread(bench, redis):
    worker(lambda self: None)
    enqueue(redis, "Job", jid=JID)
    one = bench().start()
    until(one.done)
    assert one.processor._executor.timeouts._thread is None
