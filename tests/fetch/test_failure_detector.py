import pytest

from framework.fetch.failure_detector import FailureDetector


def told(*beats, held=True):
    grace = FailureDetector(15.0, 3.0)
    for at in beats:
        grace.record_heartbeat(at, lease_held=held)
    return grace


def steady(start, end):
    return [start + 3.0 * count for count in range(int((end - start) / 3) + 1)]


def test_before_the_first_beat_only_the_retired_are_dead():
    assert FailureDetector(15.0, 3.0).dead_before() == -1
    assert FailureDetector(15.0, 3.0).steady_since == 0


def test_from_the_first_beat_on_those_are_looked_at_that_were_silent_for_a_lease():
    assert 985 <= told(1000.0).dead_before() < 986
    assert 1015 <= told(*steady(1000, 1030)).dead_before() < 1016


@pytest.mark.parametrize("step", [6.5, 3600.0, -0.5], ids=["outage", "the clock jumps", "the clock goes back"])
def test_a_gap_is_noticed(step):
    grace = told(*steady(1000, 1030))
    assert grace.steady_since == 1000
    assert grace.record_heartbeat(1030 + step, lease_held=True) == step
    assert grace.steady_since == 1030 + step


def test_a_lease_that_had_lapsed_is_a_gap_whatever_the_clock_says():
    grace = told(*steady(1000, 1030))
    grace.record_heartbeat(1033, lease_held=False)
    assert grace.steady_since == 1033


def test_one_missed_beat_is_no_gap():
    grace = told(*steady(1000, 1030))
    grace.record_heartbeat(1036, lease_held=True)
    assert grace.steady_since == 1000
