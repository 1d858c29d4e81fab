import random
from collections import Counter

import pytest

from framework.fetch.queues import (
    AHEAD_BYTES,
    AHEAD_JOBS,
    AHEAD_S,
    COLD_SWEEP_S,
    HOT_QUEUES,
    MAX_QUEUES_PER_FETCH,
    Prefetch,
    ProcessLimits,
    QueueOrder,
    QueueRotation,
)
from framework.fetch.state import InFlight
from framework.fetch.unit_of_work import UnitOfWork
from tests.harness import until
from tests.tables import each_row


@each_row(
    ("weights", "mode"),
    [
        ([("a", 0), ("b", 0)], "strict"),
        ([("a", 1), ("b", 1)], "random"),
        ([("a", 2), ("b", 1)], "weighted"),
        ([("a", 2), ("b", 0)], "weighted"),
        ([("a", 2), ("b", 2)], "weighted"),
        ([("a", 1), ("a", 1), ("b", 1)], "weighted"),  # a name twice counts once, with the sum
    ],
)
def test_weights_decide_the_mode(weights, mode):
    assert QueueOrder.of(weights).mode == mode


def drawn(weights, times=6_000):
    random.seed(5)
    order = QueueOrder(tuple(weights))
    return [tuple(name for name, _ in order.draw(order.weights)) for _ in range(times)]


@pytest.mark.proves("I14")
def test_draw_has_every_queue_once_with_its_weight():
    assert {tuple(sorted(order)) for order in drawn([("a", 3), ("b", 1), ("c", 0)], 200)} == {("a", "b", "c")}
    order = QueueOrder.of([("a", 3), ("b", 1)])
    assert dict(order.draw(order.weights)) == {"a": 3, "b": 1}


@pytest.mark.proves("I14")
def test_weights_are_the_chances_to_be_first():
    first = Counter(order[0] for order in drawn([("a", 3), ("b", 2), ("c", 1)]))
    assert {name: round(first[name] / 1_000) for name in "abc"} == {"a": 3, "b": 2, "c": 1}


def test_random_order_reaches_every_permutation_equally():
    orders = Counter(drawn([("a", 1), ("b", 1), ("c", 1)]))
    assert len(orders) == 6
    assert all(800 < count < 1_200 for count in orders.values())


# --- one fetch after another ----------------------------------------------------------------------------------------


def test_strict_order_gives_each_queue_the_whole_quota():
    rotation = QueueRotation(QueueOrder.of([("b", 0), ("a", 0), ("b", 0), ("c", 0)]))
    for _ in range(5):
        assert rotation.next(7, 0.0) == [("b", 7), ("a", 7), ("c", 7)]
        assert rotation.all_checked


@pytest.mark.proves("I14")
@pytest.mark.parametrize(("wanted", "quotas"), [(12, {"a": 6, "b": 4, "c": 2}), (1, {"a": 1, "b": 1, "c": 1})])
def test_weighted_quotas_are_proportional(wanted, quotas):
    rotation = QueueRotation(QueueOrder.of([("a", 3), ("b", 2), ("c", 1)]))
    assert dict(rotation.next(wanted, 0.0)) == quotas


def test_only_queue_has_the_whole_quota():
    rotation = QueueRotation(QueueOrder.of([("a", 3), ("b", 2)]))
    rotation.pause(["b"])
    assert rotation.next(10, 0.0) == [("a", 10)]


def test_rotation_skips_paused_queues():
    rotation = QueueRotation(QueueOrder.of([("a", 0), ("b", 0)]))
    assert rotation.pause(["a", "of another process"])
    assert not rotation.pause(["of another process", "a"])
    assert rotation.next(1, 0.0) == [("b", 1)]
    assert rotation.served == (("b", 0),)
    assert rotation.pause([])
    assert rotation.next(1, 0.0) == [("a", 1), ("b", 1)]
    assert rotation.pause(["a", "b"])
    assert rotation.next(1, 0.0) == []


def many(count=1_000, weight=0):
    return QueueRotation(QueueOrder.of([(f"q{number}", weight) for number in range(count)]))


def names(rotation, now):
    return [name for name, _ in rotation.next(5, now)]


@pytest.mark.proves("F35", "I14")
def test_rotation_reads_hot_queues_and_sometimes_cold_ones():
    rotation = many()
    assert len(names(rotation, 1.0)) == 1_000
    rotation.record_found(["q7", "q5"], enough=True)
    assert names(rotation, 1.0 + COLD_SWEEP_S / 2) == ["q7", "q5"]
    assert not rotation.all_checked
    rotation.record_found(["q7"], enough=True)
    assert names(rotation, 1.0 + COLD_SWEEP_S / 2) == ["q7"]
    assert len(names(rotation, 1.0 + COLD_SWEEP_S)) == 1_000
    assert rotation.all_checked


def test_rotation_reads_all_when_hot_queues_have_too_few():
    rotation = many()
    names(rotation, 1.0)
    rotation.record_found(["q7", "q5"], enough=True)
    names(rotation, 1.0)
    rotation.record_found(["q7"], enough=False)
    assert len(names(rotation, 1.0)) == 1_000
    rotation.record_found([], enough=False)
    assert len(names(rotation, 1.0)) == 1_000
    assert rotation.all_checked


def test_rotation_reads_few_queues_every_time():
    rotation = many(HOT_QUEUES)
    names(rotation, 1.0)
    rotation.record_found(["q7"], enough=True)
    assert len(names(rotation, 1.0)) == HOT_QUEUES


def test_rotation_reads_all_after_a_change_of_pauses():
    rotation = many()
    names(rotation, 1.0)
    rotation.record_found(["q7", "q5"], enough=True)
    rotation.pause(["q7"])
    assert set(names(rotation, 1.0)) == {f"q{number}" for number in range(1_000)} - {"q7"}


def test_hot_queues_keep_their_weights():
    rotation = QueueRotation(QueueOrder.of([("a", 3), ("b", 1), *((f"q{number}", 1) for number in range(40))]))
    rotation.next(5, 1.0)
    rotation.record_found(["b", "a"], enough=True)
    assert dict(rotation.next(8, 1.0)) == {"a": 6, "b": 2}


# --- more queues than one fetch reads ---------------------------------------------------------------------------------


def looked_at(rotation, jobs=()):
    """Fetch until a whole round finds nothing; return the queues of each fetch. ``jobs`` are removed from the set."""
    looks, left = [], set(jobs)
    while True:
        asked = names(rotation, 1.0)
        looks.append(asked)
        given = [name for name in asked if name in left][:5]
        left -= set(given)
        rotation.record_found(given, enough=len(given) == 5)
        if not given and rotation.all_checked:
            assert not left
            return looks


@pytest.mark.proves("F35")
@pytest.mark.parametrize("weight", [0, 1])
def test_very_many_queues_are_read_in_turns(weight):
    rotation = many(2_500, weight)
    looks = looked_at(rotation)
    assert [len(asked) for asked in looks] == [MAX_QUEUES_PER_FETCH, MAX_QUEUES_PER_FETCH, 500]
    assert len({name for asked in looks for name in asked}) == 2_500
    assert [len(asked) for asked in looked_at(rotation)] == [MAX_QUEUES_PER_FETCH, MAX_QUEUES_PER_FETCH, 500]


@pytest.mark.proves("F35", "I14")
@pytest.mark.parametrize("weight", [0, 1])
def test_rotation_checks_a_whole_round_before_idle(weight):
    rotation = many(2_500, weight)
    looks = looked_at(rotation, jobs=[f"q{number}" for number in range(0, 2_500, 100)])
    assert len({name for asked in looks[-3:] for name in asked}) == 2_500


@pytest.mark.proves("F35", "I14")
def test_round_returns_to_jobs_that_its_first_fetch_left(monkeypatch):
    monkeypatch.setattr(random, "random", lambda: 0.5)
    rotation = QueueRotation(QueueOrder(tuple((f"q{number}", 1) for number in range(2_500))))
    first = looked_at(rotation)[0]
    looked_at(rotation, jobs=first[:8])  # three more than are wanted at once


@pytest.mark.proves("F35")
def test_strict_round_starts_with_the_most_important():
    rotation = many(2_500)
    assert names(rotation, 1.0)[0] == "q0"
    rotation.record_found([], enough=False)
    assert names(rotation, 1.0)[0] == "q1000"
    rotation.record_found(["q1500"], enough=True)
    assert names(rotation, 1.0 + 2 * COLD_SWEEP_S)[0] == "q0"


def test_change_of_paused_queues_starts_a_new_round():
    rotation = many(2_500)
    names(rotation, 1.0)
    rotation.record_found([], enough=False)
    rotation.pause(["q0"])
    looks = looked_at(rotation)
    assert len({name for asked in looks for name in asked}) == 2_499


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
