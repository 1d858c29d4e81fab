"""Blocking calls of coroutines run in threads, also when a task, a loop, or the process ends meanwhile."""

import asyncio
import subprocess
import sys
import threading
from contextvars import ContextVar

import pytest

from framework.call_threads import CallThreads
from tests.harness import forked, until

NAME = ContextVar("name", default="none")


async def begun(event):
    """Wait until a thread has set the event."""
    assert await asyncio.to_thread(event.wait, 30)


def test_loop_goes_on_while_a_call_waits():
    threads, release = CallThreads(1), threading.Event()

    async def act():
        waiting = asyncio.create_task(threads.run(lambda: release.wait(30)))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done()
        release.set()
        return await waiting

    assert asyncio.run(act())


def test_call_has_the_context_and_raises_its_error():
    threads = CallThreads(1)

    def call():
        raise LookupError(NAME.get())

    async def act():
        NAME.set("of the request")
        with pytest.raises(LookupError, match="of the request"):
            await threads.run(call)
        return await threads.run(NAME.get)

    assert asyncio.run(act()) == "of the request"


@pytest.mark.parametrize("error", [StopIteration, SystemExit])
def test_call_that_raises_a_special_error_ends_the_wait(error):
    async def act():
        await CallThreads(1).run(lambda: next(iter(())) if error is StopIteration else sys.exit(1))

    with pytest.raises((RuntimeError, SystemExit)):
        asyncio.run(act())


def test_cancelled_call_is_completed_only_if_it_has_begun():
    threads, release, running, made = CallThreads(1), threading.Event(), threading.Event(), []

    def first():
        running.set()
        release.wait(30)
        made.append("first")

    async def act():
        one = asyncio.create_task(threads.run(first))
        await begun(running)
        two = asyncio.create_task(threads.run(lambda: made.append("second")))
        await asyncio.sleep(0)
        for task in (one, two):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        release.set()
        await threads.run(lambda: made.append("third"))

    asyncio.run(act())
    assert made == ["first", "third"]


def test_ten_thousand_calls_at_once_use_few_threads():
    threads, used = CallThreads(3), set()

    async def act():
        return await asyncio.gather(
            *(threads.run(lambda n=n: (used.add(threading.get_ident()), n)[1]) for n in range(10_000))
        )

    assert asyncio.run(act()) == list(range(10_000))
    assert len(used) <= 3


def test_loop_closed_meanwhile_leaves_the_threads_usable(caplog):
    threads, release, running = CallThreads(1), threading.Event(), threading.Event()
    made = []

    def call():
        running.set()
        release.wait(30)
        made.append(1)

    loop = asyncio.new_event_loop()
    task = loop.create_task(threads.run(call))
    loop.run_until_complete(begun(running))
    loop.stop()
    loop.close()
    release.set()
    until(lambda: made, "the call to end")
    assert asyncio.run(asyncio.wait_for(threads.run(lambda: 2), 30)) == 2
    assert not caplog.records
    # Else asyncio complains when the task is collected.
    task._log_destroy_pending = False


def test_child_of_a_fork_has_threads_of_its_own():
    threads = CallThreads(1)
    asyncio.run(threads.run(lambda: None))
    assert forked(lambda: asyncio.run(threads.run(lambda: None))) == 0


EXIT = """
import asyncio, sys, threading, time
from framework.call_threads import CallThreads

threads, running = CallThreads(1), threading.Event()

def begun():
    running.set()
    time.sleep(0.2)
    print("completed", flush=True)

async def act():
    tasks = [asyncio.create_task(threads.run(begun)), asyncio.create_task(threads.run(lambda: print("never")))]
    while not running.is_set():
        await asyncio.sleep(0.001)

asyncio.run(act())
"""


def test_exit_of_the_process_completes_a_begun_call_only():
    done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "completed\n", "")
