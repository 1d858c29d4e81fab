import random
from collections import Counter

import pytest

from framework.fetch.queues import COLD_SWEEP_S, HOT_QUEUES, MAX_QUEUES_PER_FETCH, QueueOrder, QueueRotation
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
def test_the_weights_say_the_mode(weights, mode):
    assert QueueOrder.of(weights).mode == mode


def drawn(weights, times=6_000):
    order = QueueOrder(tuple(weights), random=random.Random(5).random)
    return [tuple(name for name, _ in order.draw(order.weights)) for _ in range(times)]


@pytest.mark.proves("I14")
def test_every_draw_has_every_queue_once_and_with_its_weight():
    assert {tuple(sorted(order)) for order in drawn([("a", 3), ("b", 1), ("c", 0)], 200)} == {("a", "b", "c")}
    order = QueueOrder.of([("a", 3), ("b", 1)])
    assert dict(order.draw(order.weights)) == {"a": 3, "b": 1}


@pytest.mark.proves("I14")
def test_weights_are_the_chances_to_be_first():
    first = Counter(order[0] for order in drawn([("a", 3), ("b", 2), ("c", 1)]))
    assert {name: round(first[name] / 1_000) for name in "abc"} == {"a": 3, "b": 2, "c": 1}


def test_random_order_reaches_every_permutation_about_equally():
    orders = Counter(drawn([("a", 1), ("b", 1), ("c", 1)]))
    assert len(orders) == 6
    assert all(800 < count < 1_200 for count in orders.values())


# --- one fetch after another ----------------------------------------------------------------------------------------


def test_in_strict_order_each_queue_may_give_everything_in_declared_order():
    rounds = QueueRotation(QueueOrder.of([("b", 0), ("a", 0), ("b", 0), ("c", 0)]))
    for _ in range(5):
        assert rounds.next(7, 0.0) == [("b", 7), ("a", 7), ("c", 7)]
        assert rounds.all_checked


@pytest.mark.proves("I14")
@pytest.mark.parametrize(("wanted", "quotas"), [(12, {"a": 6, "b": 4, "c": 2}), (1, {"a": 1, "b": 1, "c": 1})])
def test_with_weights_a_batch_is_shared_out_in_proportion(wanted, quotas):
    rounds = QueueRotation(QueueOrder.of([("a", 3), ("b", 2), ("c", 1)]))
    assert dict(rounds.next(wanted, 0.0)) == quotas


def test_the_only_queue_gives_everything():
    rounds = QueueRotation(QueueOrder.of([("a", 3), ("b", 2)]))
    rounds.pause(["b"])
    assert rounds.next(10, 0.0) == [("a", 10)]


def test_paused_queues_are_skipped_until_they_are_not():
    rounds = QueueRotation(QueueOrder.of([("a", 0), ("b", 0)]))
    assert rounds.pause(["a", "of somebody else"])
    assert not rounds.pause(["of somebody else", "a"])
    assert rounds.next(1, 0.0) == [("b", 1)]
    assert rounds.served == (("b", 0),)
    assert rounds.pause([])
    assert rounds.next(1, 0.0) == [("a", 1), ("b", 1)]
    assert rounds.pause(["a", "b"])
    assert rounds.next(1, 0.0) == []


def many(count=1_000, weight=0):
    return QueueRotation(QueueOrder.of([(f"q{number}", weight) for number in range(count)]))


def names(rounds, now):
    return [name for name, _ in rounds.next(5, now)]


@pytest.mark.proves("F35", "I14")
def test_of_many_queues_those_that_gave_are_asked_and_the_others_now_and_then():
    rounds = many()
    assert len(names(rounds, 1.0)) == 1_000
    rounds.record_found(["q7", "q5"], enough=True)
    assert names(rounds, 1.0 + COLD_SWEEP_S / 2) == ["q7", "q5"]
    assert not rounds.all_checked
    rounds.record_found(["q7"], enough=True)
    assert names(rounds, 1.0 + COLD_SWEEP_S / 2) == ["q7"]
    assert len(names(rounds, 1.0 + COLD_SWEEP_S)) == 1_000
    assert rounds.all_checked


def test_when_the_hot_queues_have_too_little_all_are_asked_at_once():
    rounds = many()
    names(rounds, 1.0)
    rounds.record_found(["q7", "q5"], enough=True)
    names(rounds, 1.0)
    rounds.record_found(["q7"], enough=False)
    assert len(names(rounds, 1.0)) == 1_000
    rounds.record_found([], enough=False)
    assert len(names(rounds, 1.0)) == 1_000
    assert rounds.all_checked


def test_few_queues_are_all_asked_every_time():
    rounds = many(HOT_QUEUES)
    names(rounds, 1.0)
    rounds.record_found(["q7"], enough=True)
    assert len(names(rounds, 1.0)) == HOT_QUEUES


def test_a_change_of_paused_queues_looks_at_all_others_at_once():
    rounds = many()
    names(rounds, 1.0)
    rounds.record_found(["q7", "q5"], enough=True)
    rounds.pause(["q7"])
    assert set(names(rounds, 1.0)) == {f"q{number}" for number in range(1_000)} - {"q7"}


def test_the_hot_ones_of_many_weighted_queues_keep_their_weights():
    rounds = QueueRotation(QueueOrder.of([("a", 3), ("b", 1), *((f"q{number}", 1) for number in range(40))]))
    rounds.next(5, 1.0)
    rounds.record_found(["b", "a"], enough=True)
    assert dict(rounds.next(8, 1.0)) == {"a": 6, "b": 2}


# --- more than one look takes ---------------------------------------------------------------------------------------


def looked_at(rounds, jobs=()):
    """Fetch until nobody would any more; return what each look asked for. ``jobs`` are taken out of the set."""
    looks, left = [], set(jobs)
    while True:
        asked = names(rounds, 1.0)
        looks.append(asked)
        given = [name for name in asked if name in left][:5]
        left -= set(given)
        rounds.record_found(given, enough=len(given) == 5)
        if not given and rounds.all_checked:
            assert not left
            return looks


@pytest.mark.proves("F35")
@pytest.mark.parametrize("weight", [0, 1])
def test_very_many_queues_are_looked_at_in_turns(weight):
    rounds = many(2_500, weight)
    looks = looked_at(rounds)
    assert [len(asked) for asked in looks] == [MAX_QUEUES_PER_FETCH, MAX_QUEUES_PER_FETCH, 500]
    assert len({name for asked in looks for name in asked}) == 2_500
    assert [len(asked) for asked in looked_at(rounds)] == [MAX_QUEUES_PER_FETCH, MAX_QUEUES_PER_FETCH, 500]


@pytest.mark.proves("F35", "I14")
@pytest.mark.parametrize("weight", [0, 1])
def test_nobody_rests_before_a_whole_round_has_found_nothing(weight):
    rounds = many(2_500, weight)
    looks = looked_at(rounds, jobs=[f"q{number}" for number in range(0, 2_500, 100)])
    assert len({name for asked in looks[-3:] for name in asked}) == 2_500


@pytest.mark.proves("F35", "I14")
def test_what_the_first_look_of_a_round_left_behind_is_come_back_for():
    rounds = QueueRotation(QueueOrder(tuple((f"q{number}", 1) for number in range(2_500)), random=lambda: 0.5))
    first = looked_at(rounds)[0]
    looked_at(rounds, jobs=first[:8])  # three more than are wanted at once


@pytest.mark.proves("F35")
def test_in_strict_order_a_look_elsewhere_begins_with_the_most_important():
    rounds = many(2_500)
    assert names(rounds, 1.0)[0] == "q0"
    rounds.record_found([], enough=False)
    assert names(rounds, 1.0)[0] == "q1000"
    rounds.record_found(["q1500"], enough=True)
    assert names(rounds, 1.0 + 2 * COLD_SWEEP_S)[0] == "q0"


def test_a_change_of_paused_queues_begins_a_new_round():
    rounds = many(2_500)
    names(rounds, 1.0)
    rounds.record_found([], enough=False)
    rounds.pause(["q0"])
    looks = looked_at(rounds)
    assert len({name for asked in looks for name in asked}) == 2_499
