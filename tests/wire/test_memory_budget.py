import threading

from framework.wire.memory_budget import MemoryBudget
from tests.harness import until


def going_on():
    return False


class Taker(threading.Thread):
    def __init__(self, budget, amount, stopping=going_on):
        super().__init__(daemon=True)
        self.budget, self.amount, self.stopping = budget, amount, stopping
        self.share = "none yet"
        self.start()

    def run(self):
        self.share = self.budget.acquire(self.amount, self.stopping)


def waiting(budget, count):
    until(lambda: len(budget._waiters) == count, f"{count} wait")


def test_acquire_without_room_waits_for_a_release():
    budget = MemoryBudget(100)
    assert budget.acquire(60, going_on) == 60
    second = Taker(budget, 50)
    waiting(budget, 1)
    budget.release(60)
    second.join(10)
    assert second.share == 50


def test_acquire_is_first_come_first_served():
    budget = MemoryBudget(100)
    budget.acquire(60, going_on)
    large = Taker(budget, 90)
    waiting(budget, 1)
    assert budget.try_acquire(10) is None
    small = Taker(budget, 10)
    waiting(budget, 2)
    budget.release(60)
    large.join(10)
    small.join(10)
    assert (large.share, small.share) == (90, 10)


def test_acquire_above_the_capacity_gets_all_of_it():
    budget = MemoryBudget(100)
    assert budget.acquire(1_000, going_on) == 100
    assert budget.try_acquire(1) is None
    budget.release(100)
    assert budget.try_acquire(1_000) == 100


def test_acquire_in_a_stopping_process_returns_none():
    budget, stop = MemoryBudget(100), threading.Event()
    budget.acquire(100, going_on)
    stopped, patient = Taker(budget, 50, stop.is_set), None
    waiting(budget, 1)
    patient = Taker(budget, 50)
    waiting(budget, 2)
    stop.set()
    stopped.join(10)
    assert stopped.share is None
    budget.release(100)
    patient.join(10)
    assert patient.share == 50


def test_acquire_by_many_threads_stays_within_capacity():
    budget, lock, most, at = MemoryBudget(100), threading.Lock(), [0], [0]

    def work(seed):
        for number in range(100):
            share = budget.acquire(1 + (seed * 37 + number * 11) % 100, going_on)
            with lock:
                at[0] += share
                most[0] = max(most[0], at[0])
            with lock:
                at[0] -= share
            budget.release(share)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert 0 < most[0] <= 100
    assert (budget._used, len(budget._waiters)) == (0, 0)
