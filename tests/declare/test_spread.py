"""Spread the jobs of a class over several shards by keys."""

from collections import Counter

import pytest

from framework import spread
from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.errors import DeclarationError
from framework.features.concurrency.limited_capacity import LimitedCapacityWorker

KEYS = [f"{number:024x}" for number in range(4_000)]


@pytest.fixture(autouse=True)
def alone():
    with registry.isolated():
        yield


def worker(base=ApplicationWorker, **body):
    head = {"feature_category": "not_owned", "perform": lambda self: None}
    return type("HotWorker", (base,), {**head, **body})


def test_spread_is_even_and_grows_by_moved_keys_only():
    four, five = spread("a", "b", "c", "d"), spread("e", "a", "b", "c", "d")
    assert all(900 < count < 1_100 for count in Counter(map(four.shard_of, KEYS)).values())
    moved = {five.shard_of(key) for key in KEYS if five.shard_of(key) != four.shard_of(key)}
    assert moved == {"e"}
    # Written by other processes and releases: it must never change.
    assert [spread("a", "b").shard_of(key) for key in ("1", "2", "3", "4", "é")] == ["a", "a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ((), r"\(\) is not allowed. Allowed: names of 2 to 100 different shards"),
        (("a",), r"\('a',\) is not allowed"),
        (("a", "a"), r"\('a', 'a'\) is not allowed"),
        (("a", "b/c"), "'b/c' is not allowed. Allowed: a shard name"),
        ((["a", "b"],), r"\['a', 'b'\] is not allowed. Allowed: a shard name"),
        (tuple(f"s{number}" for number in range(101)), "names of 2 to 100"),
    ],
)
def test_wrong_shards_are_refused(shards, message):
    with pytest.raises(DeclarationError, match=message):
        spread(*shards)


def test_class_has_the_first_shard_and_all_of_them():
    hot = worker(shard=spread("b", "a"))
    assert hot.declaration().shard == "b"
    assert hot.declaration().several_shards == spread("b", "a")
    assert worker(hot, shard="main").declaration().several_shards is None
    with pytest.raises(DeclarationError, match="shard name of letters, digits, _ and -, or spread"):
        worker(shard=("a", "b"))


def test_class_that_counts_its_jobs_is_not_spread():
    body = {"perform_work": lambda self: None, "remaining_work_count": lambda self: 0, "max_running_jobs": 2}
    with pytest.raises(DeclarationError, match=r"shard = spread\('a', 'b'\) is not allowed: max_running_jobs counts"):
        type(
            "HotWorker", (LimitedCapacityWorker,), {"feature_category": "not_owned", "shard": spread("a", "b"), **body}
        )
