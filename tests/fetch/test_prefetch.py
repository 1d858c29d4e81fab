import pytest

from framework.fetch.prefetch import AHEAD_BYTES, AHEAD_JOBS, AHEAD_S, Prefetch
from tests.tables import each_row


def at(speed, size=300):
    """Return a prefetch after one second of ``speed`` jobs of ``size`` bytes."""
    prefetch = Prefetch()
    prefetch.arrived([size] * 500)
    for step in range(1, 101):
        prefetch.ended(speed // 100, 1_000.0 + step / 100)
    return prefetch


def test_prefetch_first_wants_the_free_capacity():
    assert Prefetch().wanted(10, 0) == 10
    assert Prefetch().wanted(10, 4) == 6
    assert Prefetch().wanted(0, 0) == 0


@each_row(("speed", "ahead"), [(100, 0), (2_000, 10), (10_000, 50), (1_000_000, AHEAD_JOBS)])
def test_prefetch_ahead_follows_the_rate_of_ends(speed, ahead):
    assert AHEAD_S * speed >= ahead
    assert at(speed).wanted(0, 0) == pytest.approx(ahead, abs=1)
    assert at(speed).wanted(7, 3) == pytest.approx(ahead + 4, abs=1)


def test_prefetch_never_wants_less_than_zero():
    assert at(2_000).wanted(0, 50) == 0


@pytest.mark.proves("R29", "I16")
def test_prefetch_stops_when_jobs_turn_slow():
    prefetch = at(10_000)
    for second in range(3):
        prefetch.ended(1, 1_002.0 + second)
    assert prefetch.wanted(2, 0) <= 8
    for second in range(5):
        prefetch.ended(1, 1_005.0 + second)
    assert prefetch.wanted(2, 0) == 2


@pytest.mark.proves("R29", "I16")
def test_prefetch_of_large_payloads_is_bounded_at_once():
    prefetch = at(1_000_000)
    prefetch.arrived([500_000])
    assert prefetch.wanted(0, 0) == AHEAD_BYTES // 500_000
    prefetch.arrived([300])
    assert prefetch.wanted(0, 0) == 2  # one small payload does not make up for it
    prefetch.arrived([300] * 500)
    assert prefetch.wanted(0, 0) == AHEAD_JOBS


def test_prefetch_of_huge_payloads_fills_capacity_only():
    prefetch = at(1_000_000)
    prefetch.arrived([AHEAD_BYTES * 2])
    assert prefetch.wanted(3, 0) == 3


def test_prefetch_counts_close_ends_together():
    prefetch = Prefetch()
    prefetch.ended(0, 1_000.0)
    for _ in range(10):
        prefetch.ended(10, 1_000.001)  # a single moment gives no rate
    assert prefetch.wanted(1, 0) == 1
    prefetch.ended(0, 1_000.01)
    assert prefetch.wanted(0, 0) == pytest.approx(AHEAD_S * 100 / 0.01 / 2, abs=1)
