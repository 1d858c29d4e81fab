"""Test strict arguments: accepted values arrive unchanged; the refusal of others names a remedy."""

import datetime as dt
import decimal
import enum
import json
import re
import uuid
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from framework.declare import registry, strict_json
from framework.declare.strict_json import MAX_DEPTH, MAX_DIGITS, NotJsonError, check_strict_json, is_strict_parsed
from framework.wire.compress import is_surely_strict
from tests.tables import each_row


class Level(enum.IntEnum):
    LOW = 1


class Colour(enum.StrEnum):
    RED = "red"


class Text(str):
    __slots__ = ()


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def same(left: Any, right: Any) -> bool:
    """Return whether values and types are equal at every level (1, 1.0 and True are equal to Python)."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return bool(left == right)


def accepted(value: Any) -> bool:
    """Return whether the check accepts a value; by levels, as many values are checked, and by values it says the same."""
    found: list[tuple[str, str] | None] = []
    usual = strict_json._MANY
    for many in (-1, usual):
        strict_json._MANY = many
        try:
            check_strict_json(value)
        except NotJsonError as error:
            found.append((error.reason, error.path))
        else:
            found.append(None)
        finally:
            strict_json._MANY = usual
    assert found[0] == found[1]
    return found[0] is None


_ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10 ** (MAX_DIGITS - 1), max_value=10 ** (MAX_DIGITS + 1)),
    st.floats(),
    st.text(),
    st.text(alphabet=st.characters(categories=["Cs", "Lu"])),
    st.binary(),
    st.datetimes(),
    st.decimals(),
    st.sampled_from([Level.LOW, Colour.RED, Text("x"), OrderedDict(a=1), (1,), {1}, object()]),
)
_KEYS = st.one_of(st.text(), st.text(alphabet=st.characters(categories=["Cs"])), st.integers(), st.none())
_ANYTHING = st.recursive(
    _ODD,
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(_KEYS, inner), st.tuples(inner)),
    max_leaves=12,
)
_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=20,
)


@pytest.mark.proves("R52", "I22")
@given(_ANYTHING)
def test_strict_json_survives_both_codecs(value: Any):
    if accepted(value):
        assert same(from_json(to_json(value), allow_inf_nan=False), value)
        assert same(json.loads(json.dumps(value, allow_nan=False)), value)


@given(_JSON)
def test_strict_json_accepts_all_json(value: Any):
    assert accepted(value)


@pytest.mark.proves("R54")
def test_strict_json_limits_are_exact():
    assert accepted(nested(MAX_DEPTH))
    assert not accepted(nested(MAX_DEPTH + 1))
    assert accepted(10**MAX_DIGITS - 1)
    assert not accepted(10**MAX_DIGITS)
    assert not accepted(-(10**MAX_DIGITS))
    assert same(from_json(to_json([10**MAX_DIGITS - 1])), [10**MAX_DIGITS - 1])


_PARSED_NUMBERS = st.sampled_from(
    ["1e999", "-1E+309", "9" * 199 + "e99", "9" * 309 + ".5", "9" * 280 + "E+80", "2.5e0000400"]
    + [sign + "9" * digits for sign in ("", "-") for digits in (MAX_DIGITS, MAX_DIGITS + 1)]
)


def depth(value: Any) -> int:
    """Return how many lists and objects are one in the other."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(_JSON, st.none() | _PARSED_NUMBERS, st.integers(0, MAX_DEPTH + 2))
def test_quick_check_of_parsed_values_agrees(value: Any, number: str | None, levels: int):
    inner = to_json(value if number is None else [value, None, True]).replace(b"null", (number or "null").encode())
    data = b'[{"k":' * (levels // 2) + b"[" * (levels % 2) + inner + b"]" * (levels % 2) + b"}]" * (levels // 2)
    parsed = from_json(data)
    if not isinstance(parsed, list | dict):
        return
    # A run accepts deeper values than a push: Ruby may have pushed them.
    if depth(parsed) <= MAX_DEPTH:
        assert is_strict_parsed(parsed) == accepted(parsed)
    # By its bytes it is accepted without a visit, unless a row of digits or its depth may be too large.
    if is_surely_strict(data, parsed):
        assert accepted(parsed)
    else:
        assert max(map(len, re.findall(rb"[0-9eE+]+", data)), default=0) > 4 or levels > 50 or not accepted(parsed)


@each_row("value", [(1,), {1}, b"x", Level.LOW, Text("x"), object()])
def test_quick_check_refuses_what_no_parser_makes(value: Any):
    assert not is_strict_parsed([{"k": value}])


def test_strict_json_refuses_a_list_that_holds_itself():
    endless: list[Any] = []
    endless += [endless] * 40
    assert not accepted(endless)


@each_row(
    ("value", "words"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ("\ud800", "surrogate"),
        ((1,), "pass a list"),
        ({1}, "sorted list"),
        (b"x", "base64"),
        (dt.datetime(2026, 1, 1), "epoch seconds"),  # noqa: DTZ001 - users pass naive datetimes
        (dt.date(2026, 1, 1), "ISO 8601"),
        (dt.timedelta(1), "seconds"),
        (decimal.Decimal(1), "pass a str"),
        (uuid.UUID(int=1), "str(value)"),
        (Level.LOW, "its .value"),
        (Colour.RED, "its .value"),
        (Text("x"), "str(value)"),
        (OrderedDict(), "dict(value)"),
        (object(), "pass an id"),
        ({1: 2}, "keys are str"),
        ({"\udfff": 2}, "surrogate"),
    ],
    around=registry.isolated,
)
def test_strict_json_refusal_names_the_remedy(value: Any, words: str):
    with pytest.raises(NotJsonError, match=words.replace("(", r"\(").replace(")", r"\)")):
        check_strict_json(value)


def test_strict_json_error_path_leads_to_the_value():
    with pytest.raises(NotJsonError) as caught:
        check_strict_json({"tags": [1, {"x": (1,)}]})
    assert caught.value.path == "['tags'][1]['x']"
