import pytest

from framework.fetch.grace import Grace


def told(*beats, held=True):
    grace = Grace(15.0, 3.0)
    for at in beats:
        grace.beat(at, held=held)
    return grace


def steady(start, end):
    return [start + 3.0 * count for count in range(int((end - start) / 3) + 1)]


def test_before_the_first_beat_only_the_retired_are_dead():
    assert Grace(15.0, 3.0).horizon() == -1
    assert Grace(15.0, 3.0).since == 0


def test_after_a_lease_and_a_beat_without_a_gap_the_silent_are_dead():
    assert told(*steady(1000, 1015)).horizon() == -1
    assert 1003 <= told(*steady(1000, 1018)).horizon() < 1004


@pytest.mark.parametrize("step", [6.5, 3600.0, -0.5], ids=["outage", "the clock jumps", "the clock goes back"])
def test_a_gap_begins_the_wait_anew(step):
    grace = told(*steady(1000, 1030))
    assert grace.horizon() > 0
    assert grace.beat(1030 + step, held=True) == step
    assert (grace.horizon(), grace.since) == (-1, 1030 + step)


def test_a_lease_that_had_lapsed_is_a_gap_whatever_the_clock_says():
    grace = told(*steady(1000, 1030))
    grace.beat(1033, held=False)
    assert (grace.horizon(), grace.since) == (-1, 1033)


def test_one_missed_beat_is_no_gap():
    grace = told(*steady(1000, 1030))
    grace.beat(1036, held=True)
    assert grace.since == 1000


def test_scripts_are_told_in_seconds():
    assert told(*steady(1000, 1018)).arguments() == ["1018.000000", "1000.000000", "6", "18"]
