"""Test the size of steps, and the waits between them."""

from types import SimpleNamespace

import pytest

from framework.store import steps
from framework.store.steps import SHARE, STEP_S, UNPACED, BoundedSteps, share_of_process
from framework.wire import keys


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when a step takes time, or waits; ``waits`` are the waits."""
    made = SimpleNamespace(now=100.0, own=0.0, waits=[])

    def sleep(seconds):
        made.waits.append(round(seconds, 6))
        made.now += seconds

    monkeypatch.setattr(
        steps, "time", SimpleNamespace(monotonic=lambda: made.now, sleep=sleep, thread_time=lambda: made.own)
    )
    return made


def sizes(clock, bounded, *took_s):
    """Return the sizes of steps that take so long."""
    found = []
    for seconds in took_s:
        with bounded.step() as size:
            clock.now += seconds
        found.append(size)
    return found


def test_steps_that_are_fast_double_to_the_largest(clock):
    assert sizes(clock, BoundedSteps(50, 300), *[STEP_S / 4] * 5) == [50, 100, 200, 300, 300]


def test_steps_that_are_slow_make_the_next_smaller(clock):
    bounded = BoundedSteps(50, 800)
    assert sizes(clock, bounded, *[STEP_S / 2] * 9) == [50, 100, 200, 400, 800, 800, 800, 800, 800]
    assert sizes(clock, bounded, *[STEP_S * 4] * 6) == [800, 800, 800, 800, 229, 229]


def test_time_of_any_step_makes_none_smaller(clock):
    """Each write waits for a disk, or the way is long: what counts is the time by which a step grows with its jobs."""
    assert sizes(clock, BoundedSteps(20, 320), *[STEP_S * 4] * 6) == [20, 40, 80, 160, 320, 320]
    bounded = BoundedSteps(20, 640)
    for _ in range(12):
        with bounded.step() as size:
            clock.now += STEP_S * (4 + size / 100)
    assert 100 < bounded.size < 140, "the step is longer by its aim than one of 20"


def test_busy_machine_at_the_first_step_is_no_time_of_any_step(clock):
    assert sizes(clock, BoundedSteps(20, 320), *[1.0] * 5) == [20] * 5


def test_one_slow_step_changes_nothing(clock):
    """The machine was busy: the others show what Redis needs."""
    bounded = BoundedSteps(50, 800)
    assert sizes(clock, bounded, STEP_S / 8, STEP_S / 4, STEP_S * 9, STEP_S) == [50, 100, 200, 400]
    assert clock.waits[2] == pytest.approx(STEP_S / 2 * (1 / SHARE - 1))


def test_wait_follows_the_cheapest_of_many_steps(clock):
    """On a busy machine each of four steps is slow, and Redis needs no more than before."""
    bounded = BoundedSteps(50, 100)
    sizes(clock, bounded, STEP_S / 4, STEP_S / 4, *[STEP_S * 9] * 15)
    assert clock.waits[-1] == pytest.approx(STEP_S / 8 * (1 / SHARE - 1)), "of 50 jobs"
    sizes(clock, bounded, *[STEP_S * 9] * 2)
    assert clock.waits[-1] == pytest.approx(STEP_S * 9 / 2 * (1 / SHARE - 1)), "the cheapest is one of 100 jobs"


def test_failed_step_counts_as_well(clock):
    bounded = BoundedSteps(50, 800)
    bounded.size = 400
    with pytest.raises(OSError, match="lost"), bounded.step():
        clock.now += STEP_S * 4
        raise OSError("lost")
    assert sizes(clock, bounded, STEP_S) == [100]
    assert clock.waits == [pytest.approx(STEP_S * 4 / SHARE - STEP_S * 4)]


def test_wait_leaves_redis_to_others(clock):
    bounded = BoundedSteps(1, 1, share=0.25)
    sizes(clock, bounded, 0.01, 0.01)
    assert clock.waits == [0.03]
    clock.now += 0.01
    sizes(clock, bounded, 0.01)
    assert clock.waits[1:] == [0.02], "the time of the caller counts"
    clock.now += 1.0
    sizes(clock, bounded, 0.01)
    assert clock.waits[2:] == []


def test_step_of_another_number_of_jobs_counts_as_that(clock):
    bounded = BoundedSteps(50, 800)
    with bounded.step(5) as size:
        clock.now += STEP_S / 10
    assert (size, bounded.size) == (5, 50)
    assert sizes(clock, bounded, STEP_S / 2) == [50]
    assert bounded.size == 100


def test_own_processor_time_is_not_that_of_redis(clock):
    bounded = BoundedSteps(50, 800, share=0.5)
    bounded.size = 400
    with bounded.step():
        clock.now += STEP_S * 10
        clock.own += STEP_S * 9.8
    assert bounded.size == 800
    sizes(clock, bounded, 0)
    assert clock.waits == [pytest.approx(STEP_S * 0.2)]


def test_processes_divide_the_share_among_them(granted, redis):
    assert share_of_process(granted) == SHARE
    redis.zadd(keys.REGISTRY, {"a:1:0": 1, "b:1:0": 2})
    assert share_of_process(granted) == SHARE / 2


def test_rate_replaces_the_share(clock):
    bounded = BoundedSteps(50, 300, rate=100)
    assert sizes(clock, bounded, 0.01, 0.01, 0) == [10, 10, 10]
    assert clock.waits == [0.09, 0.09]
    bounded = BoundedSteps(50, 300, rate=UNPACED)
    assert sizes(clock, bounded, 0, 0, 0, STEP_S) == [50, 100, 200, 300]
    assert sizes(clock, BoundedSteps(5, 30, rate=0.5), 0.1, 0) == [1, 1]
    assert clock.waits[2:] == [1.9]
