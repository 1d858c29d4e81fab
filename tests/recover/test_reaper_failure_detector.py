import pytest

from framework.recover.reaper import FailureDetector


def detector_after(*beats, held=True):
    detector = FailureDetector(15.0, 3.0)
    for at in beats:
        detector.record_heartbeat(at, lease_held=held)
    return detector


def steady(start, end):
    return [start + 3.0 * count for count in range(int((end - start) / 3) + 1)]


def test_detector_before_first_heartbeat_has_no_limit():
    assert FailureDetector(15.0, 3.0).dead_before() == -1
    assert FailureDetector(15.0, 3.0).steady_since == 0


def test_detector_limit_is_one_lease_before_now():
    assert 985 <= detector_after(1000.0).dead_before() < 986
    assert 1015 <= detector_after(*steady(1000, 1030)).dead_before() < 1016


@pytest.mark.parametrize("step", [6.5, 3600.0, -0.5], ids=["outage", "the clock jumps", "the clock goes back"])
def test_detector_gap_restarts_the_steady_period(step):
    detector = detector_after(*steady(1000, 1030))
    assert detector.steady_since == 1000
    assert detector.record_heartbeat(1030 + step, lease_held=True) == step
    assert detector.steady_since == 1030 + step


def test_detector_expired_lease_counts_as_a_gap():
    detector = detector_after(*steady(1000, 1030))
    detector.record_heartbeat(1033, lease_held=False)
    assert detector.steady_since == 1033


def test_detector_one_missed_heartbeat_is_no_gap():
    detector = detector_after(*steady(1000, 1030))
    detector.record_heartbeat(1036, lease_held=True)
    assert detector.steady_since == 1000
