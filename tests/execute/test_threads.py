import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from framework import supervised_threads
from framework.execute.threads import CallPool, WorkerThreads
from framework.supervised_threads import ThreadStartError
from tests.harness import until


class StoppableFetcher:
    """A fetcher without jobs; ``most`` is the number of threads, its leader included."""

    def __init__(self, most):
        self.in_flight = SimpleNamespace(concurrency=most - 1)

    def stop(self):
        pass


def pool_of(most):
    return WorkerThreads(StoppableFetcher(most))


class WaitingThreads:
    """Threads that wait in a pool, and note when they are woken."""

    def __init__(self, most):
        self.pool = pool_of(most)
        self.pool._work = self._wait
        self.woken = []
        self.threads = self.pool._threads

    def _wait(self):
        self.pool._wait(lambda: False)
        self.woken.append(int(threading.current_thread().name.removeprefix("processor-")))

    def resting(self, count):
        until(lambda: len(self.pool._waiting) == count, f"{count} rest")


def test_threads_are_started_up_to_the_maximum():
    some = WaitingThreads(3)
    for spawned in (1, 2, 3):
        assert some.pool._notify_one()
        some.resting(1)
        some.pool._waiting.clear()  # they are active and wait no more
        assert len(some.threads) == spawned
    assert not some.pool._notify_one()
    assert len(some.threads) == 3
    assert not some.pool._wake_pending  # no thread is being woken


def test_waiting_thread_is_woken_before_a_new_one_starts():
    some = WaitingThreads(3)
    for count in (1, 2):
        some.pool._spawn_one()
        some.resting(count)
    assert some.pool._notify_one()
    until(lambda: some.woken == [1])
    assert some.pool._notify_one()
    until(lambda: some.woken == [1, 0])
    assert len(some.threads) == 2
    assert not some.pool._wake_pending


def test_thread_does_not_wait_if_work_is_available():
    pool = pool_of(1)
    pool._wait(lambda: True)
    assert not pool._waiting


def test_wake_up_just_before_the_wait_is_not_lost():
    pool = pool_of(1)
    pool._start_thread = lambda name: pytest.fail("a thread waits")

    def needed():
        assert pool._notify_one()  # another thread sees this one wait, and work
        return answers.pop()

    answers = [True, False]
    while answers:
        pool._wait(needed)
        assert not pool._waiting
    assert not pool._wake_pending
    with ThreadPoolExecutor(1) as executor:  # no wake-up is left over: the next wait lasts
        rest = executor.submit(pool._wait, lambda: False)
        until(lambda: pool._waiting)
        assert not rest.done()
        pool._notify_one()
        rest.result(20)


def test_stop_wakes_every_thread():
    some = WaitingThreads(3)
    for count in (1, 2, 3):
        some.pool._spawn_one()
        some.resting(count)
    some.pool.stop()
    for thread in some.threads:
        thread.join(20)
    assert sorted(some.woken) == [0, 1, 2]


def test_each_wake_up_wakes_one_thread():
    """Each ``_notify_one`` that returns true has woken exactly one thread."""
    pool = pool_of(0)
    count, woken, stop = 4, [], threading.Event()

    def work():
        while not stop.is_set():
            pool._wait(stop.is_set)
            woken.append(1)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    notified = 0
    while notified < 1_000:
        notified += pool._notify_one()
    until(lambda: len(woken) == notified)
    until(lambda: len(pool._waiting) == count)
    assert len(woken) == notified
    stop.set()
    pool.stop()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


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
