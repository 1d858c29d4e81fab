import os

import pytest

from framework.telemetry import repeated as repeated_module
from framework.telemetry.repeated import Repeated
from tests.harness import forked


def test_a_line_is_due_once_in_a_while_with_what_happened_since():
    repeated = Repeated(60.0)
    assert [repeated.due("a", 0.0) for _ in range(4)] == [1, 0, 0, 0]
    assert repeated.due("b", 0.0) == 1
    assert repeated.due("a", 59.9) == 0
    assert [repeated.due("a", 60.0), repeated.due("a", 60.0)] == [5, 0]
    assert repeated.due("a", 500.0) == 2


def test_things_without_end_are_not_kept(monkeypatch):
    monkeypatch.setattr(repeated_module, "_MANY_THINGS", 3)
    repeated = Repeated(60.0)
    assert [repeated.due(str(number), 0.0) for number in range(10)] == [1] * 10
    assert len(repeated._seen) <= 3
    assert repeated.due("9", 0.0) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_does_not_wait_for_a_thread_of_its_parent():
    repeated = Repeated(60.0)
    with repeated._lock:  # as a thread of the parent may hold it at that moment
        assert forked(lambda: repeated.due("a", 0.0), timeout_s=5) == 0
