import os

import pytest

from framework.telemetry import rate_limit as rate_limit_module
from framework.telemetry.rate_limit import LogRateLimit
from tests.harness import forked


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_log_rate_limit_repeated_topic_counts_until_next_line():
    clock = Clock()
    limit = LogRateLimit(60.0, clock)
    assert [limit.hit("a") for _ in range(4)] == [1, 0, 0, 0]
    assert limit.hit("b") == 1
    clock.now = 59.9
    assert limit.hit("a") == 0
    clock.now = 60.0
    assert [limit.hit("a"), limit.hit("a")] == [5, 0]
    clock.now = 500.0
    assert limit.hit("a") == 2


def test_log_rate_limit_writes_line_with_count_and_fields(caplog):
    clock = Clock()
    limit = LogRateLimit(60.0, clock)
    for _ in range(3):
        limit.warning("a", "the disk is full", "disk.full", disk="sda")
    clock.now = 60.0
    limit.error("a", "the disk is full", "disk.full", disk="sda")
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
    assert "event_name='disk.full' count=1 disk='sda'" in caplog.messages[0]
    assert "event_name='disk.full' count=3 disk='sda'" in caplog.messages[1]


def test_log_rate_limit_many_topics_stay_bounded(monkeypatch):
    monkeypatch.setattr(rate_limit_module, "_MAX_TOPICS", 3)
    limit = LogRateLimit(60.0, Clock())
    assert [limit.hit(str(number)) for number in range(10)] == [1] * 10
    assert len(limit._seen) <= 3
    assert limit.hit("9") == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_log_rate_limit_after_fork_replaces_held_lock():
    limit = LogRateLimit(60.0)
    with limit._lock:  # as a thread of the parent may hold it at the moment of the fork
        assert forked(lambda: limit.hit("a")) == 0
