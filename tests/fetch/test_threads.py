import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from framework.fetch.threads import WorkerThreads
from tests.harness import until


class WaitingThreads:
    """Threads that rest in a crew until they are woken, and say so."""

    def __init__(self, most):
        self.pool = WorkerThreads(most)
        self.pool.spawn = self._hire
        self.woken = []
        self.threads = []

    def _hire(self):
        thread = threading.Thread(target=self._rest, args=(len(self.threads),), daemon=True)
        self.threads.append(thread)
        thread.start()

    def _rest(self, name):
        self.pool.check_in()
        self.pool.wait(lambda: False)
        self.woken.append(name)

    def resting(self, count):
        until(lambda: len(self.pool._waiting) == count, f"{count} rest")


def test_as_many_are_hired_as_allowed_and_no_more():
    some = WaitingThreads(3)
    for hired in (1, 2, 3):
        assert some.pool.notify_one()
        some.resting(1)
        some.pool._waiting.clear()  # they are up, and rest no more
        assert len(some.threads) == hired
    assert not some.pool.notify_one()
    assert len(some.threads) == 3
    assert not some.pool.wake_pending  # nobody is on the way


def test_who_rests_is_woken_before_another_is_hired_the_last_one_first():
    some = WaitingThreads(3)
    for count in (1, 2):
        some._hire()
        some.resting(count)
    assert some.pool.notify_one()
    until(lambda: some.woken == [1])
    assert some.pool.notify_one()
    until(lambda: some.woken == [1, 0])
    assert len(some.threads) == 2
    assert not some.pool.wake_pending


def test_nobody_rests_who_is_needed():
    crew = WorkerThreads(1)
    crew.wait(lambda: True)
    assert not crew._waiting


def test_a_wake_up_between_a_look_and_the_rest_is_not_lost():
    crew = WorkerThreads(1)
    crew.spawn = lambda: pytest.fail("somebody rests")

    def needed():
        assert crew.notify_one()  # somebody else sees this thread rest, and work
        return answers.pop()

    answers = [True, False]
    while answers:
        crew.wait(needed)
        assert not crew._waiting
    assert not crew.wake_pending
    with ThreadPoolExecutor(1) as pool:  # the wake-ups are used up: the next rest lasts
        rest = pool.submit(crew.wait, lambda: False)
        until(lambda: crew._waiting)
        assert not rest.done()
        crew.notify_one()
        rest.result(20)


def test_everybody_is_woken_at_the_end():
    some = WaitingThreads(3)
    for count in (1, 2, 3):
        some._hire()
        some.resting(count)
    some.pool.notify_all()
    for thread in some.threads:
        thread.join(20)
    assert sorted(some.woken) == [0, 1, 2]


def test_a_thousand_wake_ups_meet_nobody_twice():
    """Each wake that says true has woken exactly one."""
    crew = WorkerThreads(0)
    count, woken, stop = 4, [], threading.Event()

    def work():
        while not stop.is_set():
            crew.wait(stop.is_set)
            woken.append(1)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    told = 0
    while told < 1_000:
        told += crew.notify_one()
    until(lambda: len(woken) == told)
    until(lambda: len(crew._waiting) == count)
    assert len(woken) == told
    stop.set()
    crew.notify_all()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
