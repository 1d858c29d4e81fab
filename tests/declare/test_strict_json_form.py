"""Test the JSON form of arguments without strict arguments."""

import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import uuid
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, RootModel, field_serializer

from framework.declare import registry
from framework.declare.strict_json import MAX_DEPTH, MAX_DIGITS, NotJsonError, check_strict_json, to_json_value
from framework.wire.json import dumps, loads
from tests.tables import each_row

DAY = dt.date(2026, 2, 3)
MOMENT = dt.datetime(2026, 2, 3, 4, 5, 6, tzinfo=dt.UTC)
ID = uuid.UUID("12345678123456781234567812345678")


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)
    TIME = DAY
    OBJECT = object()


class Number(enum.IntEnum):
    ONE = 1


class Text(str):
    __slots__ = ()

    def __str__(self):
        return "something else"


class Share(float):
    pass


class Pair(NamedTuple):
    left: int
    right: Any


@dataclasses.dataclass
class Point:
    x: int
    seen: Any = None


class User(BaseModel):
    name: str
    since: dt.date


class Odd(BaseModel):
    value: float = 1.0

    @field_serializer("value")
    def show(self, value):
        raise RuntimeError(f"secret {value}")


@each_row(
    ("value", "form"),
    [
        ((1, (2,)), [1, [2]]),
        (Pair(1, (2,)), [1, [2]]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a", 1}), ["a", "b", 1]),
        ({1: "a", "b": 2}, {"1": "a", "b": 2}),
        ({True: 1, None: 2, 1.5: 3}, {"true": 1, "null": 2, "1.5": 3}),
        ({Colour.RED: 1, DAY: 2, ID: 3}, {"red": 1, "2026-02-03": 2, str(ID): 3}),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (OrderedDict(a=1), {"a": 1}),
        (MOMENT, "2026-02-03T04:05:06Z"),
        (MOMENT.replace(tzinfo=None), "2026-02-03T04:05:06"),
        (DAY, "2026-02-03"),
        (dt.time(4, 5), "04:05:00"),
        (dt.timedelta(minutes=5), "PT5M"),
        (decimal.Decimal("1.50"), "1.50"),
        (ID, "12345678-1234-5678-1234-567812345678"),
        (Colour.RED, "red"),
        (Colour.PAIR, [1, 2]),
        (Colour.TIME, "2026-02-03"),
        (Number.ONE, 1),
        (Text("x"), "x"),
        (Share(0.5), 0.5),
        (Point(1, (MOMENT,)), {"x": 1, "seen": ["2026-02-03T04:05:06Z"]}),
        (User(name="a", since=DAY), {"name": "a", "since": "2026-02-03"}),
        (RootModel[list[int]]([1]), [1]),
        ([{"deep": ({1},)}], [{"deep": [[1]]}]),
    ],
    around=registry.isolated,
)
def test_json_form_of_each_kind(value: Any, form: Any):
    found = to_json_value(value)
    assert found == form
    check_strict_json(found)
    assert repr(loads(dumps(found))) == repr(found)


def itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = (value,)
    return value


@each_row(
    ("value", "path", "words"),
    [
        (math.nan, "", "is nan"),
        ([1, {"a": math.inf}], "[1]['a']", "is inf"),
        (b"x", "", "is a bytes, which JSON cannot carry: pass a str"),
        (bytearray(b"x"), "", "bytearray"),
        (("\ud800",), "[0]", "half of a surrogate pair"),
        ({"\ud800": 1}, "['\\ud800']", "half of a surrogate pair"),
        (object(), "", "is an object, which JSON cannot carry: pass an id"),
        (Point, "", "is a type"),
        (User, "", "is a ModelMetaclass"),
        (Colour.OBJECT, "", "is an object"),
        (Point(1, b"x"), "['seen']", "is a bytes"),
        ({(1,): 1}, "[(1,)]", "has a key of type tuple"),
        ({math.nan: 1}, "[nan]", "is nan"),
        ({1: "a", "1": "b"}, "['1']", "two keys that are the same text"),
        (10**MAX_DIGITS, "", "digits"),
        (itself(), "[0]" * MAX_DEPTH, "nested deeper"),
        (nested(MAX_DEPTH + 1), "[0]" * MAX_DEPTH, "nested deeper"),
        (Odd(), "", r"is an Odd that cannot be written as JSON"),
    ],
    ids=lambda value: str(type(value).__name__),
    around=registry.isolated,
)
def test_json_form_refuses_values_without_form(value: Any, path: str, words: str):
    with pytest.raises(NotJsonError, match=words) as caught:
        to_json_value(value)
    assert caught.value.path == path
    assert "secret" not in caught.value.reason


def test_json_form_accepts_the_deepest_nesting():
    assert dumps(to_json_value(nested(MAX_DEPTH))) == b"[" * MAX_DEPTH + b"1" + b"]" * MAX_DEPTH


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
exact = st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))
loose = st.recursive(
    plain | st.dates() | st.datetimes() | st.uuids() | st.decimals() | st.sampled_from(Colour) | st.timedeltas(),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.sets(st.integers() | st.text(), max_size=3)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
        | st.builds(Point, st.integers(), inner)
    ),
)


@given(exact)
def test_json_form_keeps_exact_json_unchanged(value: Any):
    assert repr(to_json_value(value)) == repr(value)


@given(loose)
def test_json_form_survives_the_wire(value: Any):
    try:
        form = to_json_value(value)
    except NotJsonError:
        return
    check_strict_json(form)
    assert repr(loads(dumps(form))) == repr(form)
    assert json.loads(json.dumps(form)) == form
