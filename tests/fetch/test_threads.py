import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from framework.fetch.threads import WorkerThreads
from tests.harness import until


class WaitingThreads:
    """Threads that wait in a pool, and note when they are woken."""

    def __init__(self, most):
        self.pool = WorkerThreads(most)
        self.pool.spawn = self._spawn
        self.woken = []
        self.threads = []

    def _spawn(self):
        thread = threading.Thread(target=self._wait, args=(len(self.threads),), daemon=True)
        self.threads.append(thread)
        thread.start()

    def _wait(self, name):
        self.pool.check_in()
        self.pool.wait(lambda: False)
        self.woken.append(name)

    def resting(self, count):
        until(lambda: len(self.pool._waiting) == count, f"{count} rest")


def test_threads_are_started_up_to_the_maximum():
    some = WaitingThreads(3)
    for spawned in (1, 2, 3):
        assert some.pool.notify_one()
        some.resting(1)
        some.pool._waiting.clear()  # they are active and wait no more
        assert len(some.threads) == spawned
    assert not some.pool.notify_one()
    assert len(some.threads) == 3
    assert not some.pool.wake_pending  # no thread is being woken


def test_waiting_thread_is_woken_before_a_new_one_starts():
    some = WaitingThreads(3)
    for count in (1, 2):
        some._spawn()
        some.resting(count)
    assert some.pool.notify_one()
    until(lambda: some.woken == [1])
    assert some.pool.notify_one()
    until(lambda: some.woken == [1, 0])
    assert len(some.threads) == 2
    assert not some.pool.wake_pending


def test_thread_does_not_wait_if_work_is_available():
    pool = WorkerThreads(1)
    pool.wait(lambda: True)
    assert not pool._waiting


def test_wake_up_just_before_the_wait_is_not_lost():
    pool = WorkerThreads(1)
    pool.spawn = lambda: pytest.fail("a thread waits")

    def needed():
        assert pool.notify_one()  # another thread sees this one wait, and work
        return answers.pop()

    answers = [True, False]
    while answers:
        pool.wait(needed)
        assert not pool._waiting
    assert not pool.wake_pending
    with ThreadPoolExecutor(1) as executor:  # no wake-up is left over: the next wait lasts
        rest = executor.submit(pool.wait, lambda: False)
        until(lambda: pool._waiting)
        assert not rest.done()
        pool.notify_one()
        rest.result(20)


def test_notify_all_wakes_every_thread():
    some = WaitingThreads(3)
    for count in (1, 2, 3):
        some._spawn()
        some.resting(count)
    some.pool.notify_all()
    for thread in some.threads:
        thread.join(20)
    assert sorted(some.woken) == [0, 1, 2]


def test_each_wake_up_wakes_one_thread():
    """Each ``notify_one`` that returns true has woken exactly one thread."""
    pool = WorkerThreads(0)
    count, woken, stop = 4, [], threading.Event()

    def work():
        while not stop.is_set():
            pool.wait(stop.is_set)
            woken.append(1)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    notified = 0
    while notified < 1_000:
        notified += pool.notify_one()
    until(lambda: len(woken) == notified)
    until(lambda: len(pool._waiting) == count)
    assert len(woken) == notified
    stop.set()
    pool.notify_all()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
