import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from framework.errors import PayloadError
from framework.text import format_duration, format_time
from framework.wire.json import MAX_NESTING, dumps, dumps_exact, loads, stored_count, stored_number, stored_time
from tests.tables import each_row

ANY_TEXT = st.text(st.characters(codec=None))  # lone surrogates too
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.integers(10**4000, 10**4400),
    lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner),
)


def nested(levels, leaf=0):
    for level in range(levels):
        leaf = [leaf] if level % 2 else {"k": leaf}
    return leaf


def same(left, right):
    """Equal, and of the same types: 1, 1.0 and True are three things."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(value, right[key]) for key, value in left.items())
    return left == right and (left != 0 or math.copysign(1, left) == math.copysign(1, right) or type(left) is int)


@pytest.mark.proves("R52", "I22")
@given(VALUES)
def test_dumps_and_loads_round_trip(value):
    try:
        data = dumps(value)
    except PayloadError:
        return
    assert same(loads(data), value)
    json.loads(data.decode())  # and another parser reads it


@given(st.recursive(st.none() | st.integers(-(10**300), 10**300) | st.text(), st.lists, max_leaves=5))
def test_dumps_accepts_all_plain_values(value):
    assert same(loads(dumps(value)), value)


@pytest.mark.proves("R54")
@each_row("number", [math.nan, math.inf, -math.inf])
@each_row("wrap", [lambda n: n, lambda n: [1, {"a": n}], lambda n: {"x": (n,)}], ids=["bare", "deep", "tuple"])
def test_dumps_of_non_finite_numbers_is_refused(number, wrap):
    with pytest.raises(PayloadError):
        dumps(wrap(number))


def test_dumps_of_texts_like_nan_passes():
    assert loads(dumps(["NaN", "-Infinity"])) == ["NaN", "-Infinity"]


@pytest.mark.proves("R54")
@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_dumps_of_half_a_surrogate_pair_is_refused(text):
    for value in (text, [text], {text: 1}):
        with pytest.raises(PayloadError):
            dumps(value)


@pytest.mark.proves("R54")
def test_dumps_refuses_nesting_beyond_readers():
    assert loads(dumps(nested(MAX_NESTING))) == nested(MAX_NESTING)
    for levels in (MAX_NESTING + 1, 150, 250, 5000):
        with pytest.raises(PayloadError):
            dumps(nested(levels))
    assert dumps([[] for _ in range(500)])  # many brackets are not deep


@pytest.mark.proves("R51", "R54")
def test_dumps_keeps_integers_that_readers_can_read():
    assert loads(dumps([2**53 + 1, -(2**64) - 1, 10**4000])) == [2**53 + 1, -(2**64) - 1, 10**4000]
    with pytest.raises(PayloadError):
        dumps([10**4400])


@pytest.mark.proves("R54")
@each_row("data", [b"", b"{", b"NaN", b"[Infinity]", b"{} x", b"[1,]", b"'a'", b'"\xff"', b"[" * 300 + b"]" * 300])
def test_loads_refuses_json_that_is_not_strict(data):
    with pytest.raises(PayloadError):
        loads(data)


@pytest.mark.parametrize("inside", [0, 1, 5])
def test_dumps_exact_checks_only_the_nesting(inside):
    deepest = MAX_NESTING - inside
    for value in (
        nested(deepest),
        {"a": nested(deepest - 1), "b": "[" * 500},
        [[[]] for _ in range(500)],
        nested(deepest - 1, {"k": 0}),
    ):
        assert dumps_exact(value, outer_levels=inside) == dumps(value)
    for value in (
        nested(deepest + 1),
        {"a": 1, "b": nested(deepest)},
        [1, {"k": nested(deepest - 1)}],
        nested(deepest, {"k": 0}),
    ):
        with pytest.raises(PayloadError, match="deeper than 64"):
            dumps_exact(value, outer_levels=inside)
    with pytest.raises(PayloadError, match="cannot be written"):
        dumps_exact(["\ud800"], outer_levels=inside)


TEXTS = st.none() | st.binary(max_size=80) | st.text(max_size=80) | st.floats().map(repr) | st.integers().map(str)


@given(TEXTS)
@example("9" * 400)
@example(b"1e15")
@example("nan")
@example("-inf")
@example(b"\xff")
@example("\ud800")
@example("1e999")
def test_any_text_reads_as_a_number_that_can_be_shown(text):
    assert math.isfinite(stored_number(text))
    assert stored_count(text) >= 0
    at = stored_time(text)
    assert at is None or (format_time(at) and format_duration(at))


def test_numbers_read_as_they_were_written():
    assert [stored_time(one) for one in (b"1750000000.5", "0", "", None, "x")] == [
        1_750_000_000.5,
        0.0,
        None,
        None,
        None,
    ]
    assert [stored_count(one) for one in (b"12", "12.0", b"-1", "", None, str(2**53))] == [12, 12, 0, 0, 0, 2**53]
