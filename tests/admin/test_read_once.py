"""A fact that is read once per object, by several threads at the same time."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from framework.admin.read_once import ReadOnce

BARRIER_S = 10


class Facts:
    def __init__(self, both: Barrier) -> None:
        self.reads, self._both = 0, both

    @ReadOnce
    def answer(self) -> int:
        self.reads += 1
        self._both.wait(BARRIER_S)
        return id(self)


def test_facts_of_two_objects_are_read_at_the_same_time():
    both = Barrier(2)
    first, second = Facts(both), Facts(both)
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda one: one.answer, (first, second)))
    assert answers == [id(first), id(second)] == [first.answer, second.answer]
    assert (first.reads, second.reads) == (1, 1)
