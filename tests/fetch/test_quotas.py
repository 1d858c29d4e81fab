"""Quotas: how many jobs a fetch requests ahead, and how many of a limited queue it leaves to other processes."""

import pytest

from framework.fetch.quotas import AHEAD_BYTES, AHEAD_JOBS, AHEAD_S, Prefetch, ProcessLimits
from framework.fetch.state import InFlight
from framework.fetch.unit_of_work import UnitOfWork
from tests.harness import until
from tests.tables import each_row

QUEUES = (("a", 0), ("b", 0))


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


# --- process limits ---------------------------------------------------------------------------------------------------


def running(one, queue):
    return sum(unit.queue == queue for unit in one.in_flight.unfinished())


def test_process_limit_bounds_jobs_in_flight(bench, redis):
    redis.lpush("queue:a", *[f"a{number}" for number in range(9)])
    redis.lpush("queue:b", *[f"b{number}" for number in range(2)])
    one = bench(queues=QUEUES, slots=6, limits={"a": 2}).start()
    one.got(4)
    until(lambda: one.blocked_calls() == 1, "only the other queue is waited at")
    assert (running(one, "a"), running(one, "b"), redis.llen("queue:a")) == (2, 2, 7)
    redis.lpush("queue:b", "b2")
    one.got(5)
    for count in range(6, 13):
        ended = next(unit for unit in one.units if unit.queue == "a" and unit in one.in_flight.running())
        one.end(ended)
        one.got(count)
        assert running(one, "a") <= 2
    assert [data for data in one.got(12) if data.startswith(b"a")] == [b"a%d" % number for number in range(9)]


def test_process_limit_counts_a_blocking_call(bench, redis):
    one = bench(queues=QUEUES, slots=6, limits={"a": 1, "b": 3}).start()
    until(lambda: one.blocked_calls() == 2, "both are waited at")
    redis.lpush("queue:b", *[f"b{number}" for number in range(5)])
    one.got(3)
    redis.lpush("queue:a", "a0", "a1")
    one.got(4)
    until(lambda: one.blocked_calls() == 0, "there is no more room")
    assert (running(one, "a"), running(one, "b")) == (1, 3)
    assert (redis.llen("queue:a"), redis.llen("queue:b")) == (1, 2)
    one.end(one.unit(b"a0"))
    assert one.got(5)[-1] == b"a1"


def test_process_limit_counts_requested_jobs():
    in_flight = InFlight(5)
    limits = ProcessLimits({"a": 2}, in_flight)
    assert limits.reserve_for_blocking("a")
    assert limits.quotas([("a", 9), ("b", 9)]) == [("a", -1), ("b", 9)]
    limits.fetch_ended()
    in_flight.add([UnitOfWork("a", b"1")])
    limits.keep_blocking_only([])
    assert limits.quotas([("a", 9)]) == [("a", -1)]
    assert not limits.reserve_for_blocking("a")
    assert limits.queues_with_room(["a", "b"]) == ["b"]
    limits.fetch_ended()
    assert limits.queues_with_room(["a", "b"]) == ["a", "b"]
    unit = in_flight.start(0.0)
    in_flight.end(unit, settled=False)  # its acknowledgement is to be sent
    assert limits.quotas([("a", 1)]) == [("a", -1)]
    assert limits.reserve_for_blocking("a")
