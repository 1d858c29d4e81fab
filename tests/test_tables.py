"""Test that a table names each failing row."""

import inspect
import itertools

import pytest

from tests.tables import each_row, pairwise


def test_failure_names_each_failing_row():
    seen = []

    @each_row("number", [1, 2, 3, 4])
    def even(number):
        seen.append(number)
        assert number % 2 == 0

    with pytest.raises(BaseExceptionGroup, match="2 rows fail") as caught:
        even()
    assert seen == [1, 2, 3, 4]
    assert [error.__notes__ for error in caught.value.exceptions] == [["row: 0:1"], ["row: 2:3"]]


def test_single_failing_row_raises_its_own_error():
    @each_row(("number", "word"), [(1, "a"), pytest.param(2, "b", id="second")])
    def check(number, word):
        with pytest.raises(ValueError):
            int(word if number == 1 else "5")

    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE") as caught:
        check()
    assert caught.value.__notes__ == ["row: second"]


def test_stacked_tables_make_the_product_and_fixtures_stay():
    seen = []

    @each_row("outer", "ab")
    @each_row("inner", [1, 2], ids=["one", "two"])
    def check(fixture, inner, outer):
        seen.append((fixture, outer, inner))

    assert list(inspect.signature(check).parameters) == ["fixture"]
    check(fixture="f")
    assert seen == [("f", "a", 1), ("f", "a", 2), ("f", "b", 1), ("f", "b", 2)]


def test_empty_table_is_refused():
    with pytest.raises(AssertionError, match="without rows"):
        each_row("number", [])


def test_pairwise_keeps_every_pair():
    one, two, three = "abc", [1, 2, 3], ["x", "y"]
    params = pairwise(one=one, two=two, three=three).args[1]
    assert len(params) == 18
    kept = [param.values for param in params if not param.marks]
    assert len(kept) == 9
    assert {(a, b) for a, b, _ in kept} == set(itertools.product(one, two))
    assert {(a, c) for a, _, c in kept} == set(itertools.product(one, three))
    assert {(b, c) for _, b, c in kept} == set(itertools.product(two, three))
    assert params[0].id == "a-1-x"
