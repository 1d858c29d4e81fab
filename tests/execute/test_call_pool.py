"""The threads that run steps of async jobs."""

import threading

import pytest

from framework import supervised_threads
from framework.execute.call_pool import CallPool
from framework.supervised_threads import ThreadStartError
from tests.harness import until


@pytest.fixture
def deaths():
    found = []
    supervised_threads.report_to(lambda name, error: found.append((name, type(error))))
    yield found
    supervised_threads.report_to(None)


def refuse_threads(monkeypatch):
    def refused(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)


def test_pool_runs_calls_in_threads_up_to_its_most(deaths):
    pool, held, names = CallPool("pool", 2), threading.Event(), []
    for _ in range(4):
        pool.submit(lambda: (held.wait(30), names.append(threading.current_thread())))
    assert not pool.idle
    assert sum(thread.name == "pool" for thread in threading.enumerate()) == 2
    held.set()
    until(lambda: pool.idle)
    # One thread may have run them all before the other looked.
    assert (len(names), len(set(names)) <= 2, deaths) == (4, True, [])
    pool.close()
    until(lambda: not any(thread.is_alive() for thread in names))


def test_pool_call_that_raises_is_a_death(deaths):
    pool = CallPool("pool")
    pool.submit(lambda: 1 / 0)
    until(lambda: deaths)
    assert deaths == [("pool", ZeroDivisionError)]
    assert pool.idle


def test_pool_without_any_thread_refuses_the_call(deaths, monkeypatch):
    pool = CallPool("pool", 2)
    with monkeypatch.context() as patched, pytest.raises(ThreadStartError):
        refuse_threads(patched)
        pool.submit(list)
    assert (deaths, pool.idle) == ([("pool", RuntimeError)], True)


def test_pool_without_a_further_thread_uses_what_it_has(deaths, monkeypatch):
    pool, held, ran = CallPool("pool", 2), threading.Event(), []
    pool.submit(lambda: held.wait(30))
    with monkeypatch.context() as patched:
        refuse_threads(patched)
        pool.submit(lambda: ran.append(1))
    held.set()
    until(lambda: pool.idle)
    assert (ran, deaths) == ([1], [])
    pool.close()
