import os

import pytest

from framework.telemetry import rate_limit as rate_limit_module
from framework.telemetry.rate_limit import LogRateLimit
from tests.harness import forked


def test_a_line_is_due_once_in_a_while_with_what_happened_since():
    repeated = LogRateLimit(60.0)
    assert [repeated.hit("a", 0.0) for _ in range(4)] == [1, 0, 0, 0]
    assert repeated.hit("b", 0.0) == 1
    assert repeated.hit("a", 59.9) == 0
    assert [repeated.hit("a", 60.0), repeated.hit("a", 60.0)] == [5, 0]
    assert repeated.hit("a", 500.0) == 2


def test_things_without_end_are_not_kept(monkeypatch):
    monkeypatch.setattr(rate_limit_module, "_MAX_THINGS", 3)
    repeated = LogRateLimit(60.0)
    assert [repeated.hit(str(number), 0.0) for number in range(10)] == [1] * 10
    assert len(repeated._seen) <= 3
    assert repeated.hit("9", 0.0) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_does_not_wait_for_a_thread_of_its_parent():
    repeated = LogRateLimit(60.0)
    with repeated._lock:  # as a thread of the parent may hold it at that moment
        assert forked(lambda: repeated.hit("a", 0.0), timeout_s=5) == 0
