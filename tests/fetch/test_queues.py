import random
from collections import Counter

import pytest

from framework.fetch.queues import QueueOrder


@pytest.mark.parametrize(
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


def test_strict_order_is_the_declared_order():
    order = QueueOrder.of([("b", 0), ("a", 0), ("b", 0), ("c", 0)])
    assert [order.draw() for _ in range(5)] == [["b", "a", "c"]] * 5


def drawn(weights, times=6_000):
    order = QueueOrder(tuple(weights), random=random.Random(5).random)
    return [tuple(order.draw()) for _ in range(times)]


def test_every_draw_has_every_queue_once():
    assert {tuple(sorted(order)) for order in drawn([("a", 3), ("b", 1), ("c", 0)], 200)} == {("a", "b", "c")}


def test_weights_are_the_chances_to_be_first():
    first = Counter(order[0] for order in drawn([("a", 3), ("b", 2), ("c", 1)]))
    assert {name: round(first[name] / 1_000) for name in "abc"} == {"a": 3, "b": 2, "c": 1}


def test_random_order_reaches_every_permutation_about_equally():
    orders = Counter(drawn([("a", 1), ("b", 1), ("c", 1)]))
    assert len(orders) == 6
    assert all(800 < count < 1_200 for count in orders.values())
