import asyncio
import contextvars
import threading
import time

import pytest

from framework.execute.event_loop import EventLoop
from tests.harness import until

LABEL = contextvars.ContextVar("label", default="none")


@pytest.fixture
def loop():
    one = EventLoop()
    yield one
    one.cancel_all()
    assert one.wait_idle(20)


class Latch:
    """A latch that coroutines wait for and a test opens from another thread."""

    def __init__(self, loop):
        self._loop = loop
        self._event = asyncio.Event()

    async def passed(self):
        await self._event.wait()

    def open(self):
        self._loop._running_loop().call_soon_threadsafe(self._event.set)


def submitted(loop, coroutine, name=""):
    loop.submit(coroutine, contextvars.copy_context(), name)


def test_coroutines_of_many_threads_all_run(loop):
    done = []

    async def note(number):
        await asyncio.sleep(0)
        done.append(number)

    def submit(first):
        for number in range(first, first + 500):
            submitted(loop, note(number))

    threads = [threading.Thread(target=submit, args=(first,)) for first in range(0, 2_000, 500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    until(lambda: len(done) == 2_000)
    assert sorted(done) == list(range(2_000))
    assert loop.wait_idle(20)
    assert loop.idle


def test_coroutine_runs_in_its_context(loop):
    seen = []

    async def look():
        seen.append(LABEL.get())
        LABEL.set("changed")
        await asyncio.sleep(0)
        seen.append(LABEL.get())

    for label in "ab":
        context = contextvars.copy_context()
        context.run(LABEL.set, label)
        loop.submit(look(), context, label)
        assert loop.wait_idle(20)
        assert context[LABEL] == "changed"  # the very context, not a copy
    assert seen == ["a", "changed", "b", "changed"]
    assert LABEL.get() == "none"


def test_tasks_show_coroutines_by_name_until_they_end(loop):
    latch = Latch(loop)
    submitted(loop, latch.passed(), "jid")
    until(lambda: [task.get_name() for task in loop.tasks()] == ["jid"])
    assert not loop.idle
    assert not loop.wait_idle(0)
    latch.open()
    assert loop.wait_idle(20)
    assert loop.tasks() == []


def test_cancel_all_reaches_tasks_that_have_not_started(loop):
    busy, ended = threading.Event(), []

    async def block():
        busy.set()
        time.sleep(0.05)  # noqa: ASYNC251 - nothing else may begin meanwhile

    async def wait():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(1)

    submitted(loop, wait())
    submitted(loop, block())
    busy.wait(20)
    submitted(loop, wait())
    loop.cancel_all()
    assert loop.wait_idle(20)
    assert len(ended) <= 2
    assert loop.idle


@pytest.mark.proves("F31")
def test_job_that_stops_the_loop_stops_no_other(loop):
    latch, done = Latch(loop), []

    async def other():
        await latch.passed()
        done.append("other")

    async def stop():
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        done.append("stopper")

    submitted(loop, other())
    submitted(loop, stop())
    until(lambda: done == ["stopper"])
    latch.open()
    assert loop.wait_idle(20)
    assert done == ["stopper", "other"]


@pytest.mark.proves("F31")
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_task_that_exits_stops_no_other_job(error):
    one, raised, done = EventLoop(), threading.Event(), []
    latch = Latch(one)

    async def other():
        await latch.passed()
        done.append("other")

    async def leave():
        raised.set()
        raise error

    async def parent():
        task = asyncio.create_task(leave())
        await asyncio.wait([task])
        task.exception()

    submitted(one, other())
    submitted(one, parent())
    raised.wait(20)
    latch.open()
    until(lambda: done == ["other"], "the other goes on")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("x")], ids=repr)
def test_run_raises_the_coroutines_error_and_the_loop_runs(loop, error):
    async def leave():
        raise error

    async def answer():
        return 42

    with pytest.raises(type(error)):
        loop.run(leave())
    assert loop.run(answer()) == 42


def test_unused_loop_has_no_thread():
    before = threading.active_count()
    one = EventLoop()
    one.cancel_all()
    assert one.wait_idle(20)
    assert threading.active_count() == before


# --- a run within a run ---------------------------------------------------------------------------------------------


def in_time(act):
    """Return the result of ``act``, run in a thread with a deadline, so that a hang does not hang the tests."""
    found = []
    thread = threading.Thread(target=lambda: found.append(act()), daemon=True)
    thread.start()
    thread.join(20)
    assert found, "it hangs"
    return found[0]


def test_coroutine_may_run_another_and_wait_for_it(loop):
    async def nested(depth):
        LABEL.set(f"{LABEL.get()} {depth}")
        await asyncio.sleep(0)
        return [depth, *loop.run(nested(depth - 1))] if depth else [LABEL.get()]

    assert in_time(lambda: loop.run(nested(3))) == [3, 2, 1, "none 3 2 1 0"]

    async def threaded():
        return await asyncio.to_thread(loop.run, nested(1))

    async def outer():
        return loop.run(threaded())

    assert in_time(lambda: loop.run(outer())) == [1, "none 1 0"]  # run in a thread that a waiting run waits for
    assert in_time(lambda: loop.run(nested(0))) == ["none 0"]


def test_nested_run_raises_and_the_loop_runs(loop):
    async def broken():
        raise LookupError("inner")

    async def outer():
        with pytest.raises(LookupError, match="inner"):
            loop.run(broken())
        return threading.current_thread().name

    assert in_time(lambda: loop.run(outer())) == "event-loop"
    assert not loop._blocked
