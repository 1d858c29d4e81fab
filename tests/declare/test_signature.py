"""Test binding and checking of arguments against ``perform``."""

import copy
import datetime as dt
import decimal
import enum
import json
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, JsonValue
from pydantic_core import from_json, to_json
from typing_extensions import TypedDict

from framework.declare import registry
from framework.declare.signature import JobSignature, build_signature
from framework.errors import ArgumentsError, DeclarationError
from tests.tables import each_row

ProjectId = NewType("ProjectId", int)


class Options(TypedDict, total=False):
    depth: int
    tags: list[str]


class Pair(NamedTuple):
    left: int
    right: int


class Colour(enum.Enum):
    RED = "red"


class Model(BaseModel):
    name: str


class Recursive(TypedDict):
    children: "list[Recursive]"


def signature_of(perform: Any) -> JobSignature:
    return build_signature("tests.W", perform)


def three(self: Any, project_id: int, mode: str = "full", scores: list[float] | None = None) -> None: ...


def rest(self: Any, first: int, *ids: int) -> None: ...


def test_bind_turns_keywords_into_positions():
    signature = signature_of(three)
    assert signature.bind((1, "fast"), {}) == [1, "fast"]
    assert signature.bind((), {"mode": "fast", "project_id": 1}) == [1, "fast"]
    assert signature.bind((1,), {"scores": [1.0]}) == [1, "full", [1.0]]
    assert signature.bind((1,), {}) == [1]


def test_bind_copies_a_default():
    def perform(self: Any, tags: list[str] = ["a"], mode: str = "x") -> None: ...  # noqa: B006 - the case

    signature = signature_of(perform)
    first = signature.bind((), {"mode": "y"})
    first[0].append("b")
    assert signature.bind((), {"mode": "y"}) == [["a"], "y"]


@each_row(
    ("args", "kwargs", "argument", "words"),
    [
        ((), {}, "project_id", "is missing"),
        ((), {"mode": "x"}, "project_id", "is missing"),
        ((1, "a", None, 4), {}, None, "takes 3 arguments, 4 were given"),
        ((1,), {"modee": "x"}, "modee", "did you mean 'mode'"),
        ((1,), {"project_id": 2}, "project_id", "given twice"),
    ],
    around=registry.isolated,
)
def test_bind_refuses_wrong_calls(args: tuple[Any, ...], kwargs: dict[str, Any], argument: str | None, words: str):
    with pytest.raises(ArgumentsError, match=words) as caught:
        signature_of(three).bind(args, kwargs)
    assert caught.value.worker == "tests.W"
    assert caught.value.argument == argument


def test_bind_refuses_names_of_positional_only_parameters():
    def perform(self: Any, a: int, /, b: int) -> None: ...

    assert signature_of(perform).bind((1,), {"b": 2}) == [1, 2]
    with pytest.raises(ArgumentsError, match="positional-only"):
        signature_of(perform).bind((), {"a": 1, "b": 2})


@each_row("args", [[1], [1, "x"], [1, "x", None], [1, "x", [1, 2.5]], [-(10**30)]], around=registry.isolated)
def test_check_accepts_fitting_arguments(args: list[Any]):
    kept = copy.deepcopy(args)
    signature_of(three).check(args)
    assert args == kept


@each_row(
    ("args", "argument", "words"),
    [
        (["1"], "project_id", "valid integer, got str"),
        ([True], "project_id", "got bool"),
        ([1.0], "project_id", "got float"),
        ([None], "project_id", "got NoneType"),
        ([1, 2], "mode", "valid string"),
        ([1, "x", [True]], "scores", r"\(at \[0\]\)"),
        ([1, "x", (1.0,)], "scores", "tuple"),
        ([1, "x", [float("nan")]], "scores", r"\(at \[0\]\) is nan"),
        ([1, b"x"], "mode", "bytes"),
        ([1, "\ud800"], "mode", "surrogate"),
        ([1, dt.datetime(2026, 1, 1)], "mode", "datetime"),  # noqa: DTZ001 - users pass naive datetimes
        ([10**4000], "project_id", "4,000 digits"),
        ([], "project_id", "is missing"),
        ([1, "x", None, 4], None, "4 were given"),
    ],
    around=registry.isolated,
)
def test_check_refuses_misfitting_arguments(args: list[Any], argument: str | None, words: str):
    with pytest.raises(ArgumentsError, match=words) as caught:
        signature_of(three).check(args)
    assert caught.value.argument == argument


def test_check_error_hides_the_value():
    with pytest.raises(ArgumentsError) as caught:
        signature_of(three).check(["hunter2"])
    assert "hunter2" not in str(caught.value)


def test_check_covers_each_variable_position():
    signature = signature_of(rest)
    signature.check([1])
    signature.check([1, 2, 3])
    assert signature.bind((1, 2, 3), {}) == [1, 2, 3]
    with pytest.raises(ArgumentsError) as caught:
        signature.check([1, 2, "3"])
    assert caught.value.argument == "*ids[1]"


def test_check_without_annotations_covers_count_and_json():
    def perform(self, a, b=None): ...

    signature = signature_of(perform)
    signature.check([{"a": [1]}, "x"])
    with pytest.raises(ArgumentsError, match="were given"):
        signature.check([1, 2, 3])
    with pytest.raises(ArgumentsError, match="object"):
        signature.check([object()])


def _with(annotation: Any, default: Any = ...) -> Any:
    def perform(self: Any, value: Any) -> None: ...

    perform.__annotations__["value"] = annotation
    if default is not ...:
        perform.__defaults__ = (default,)
    return perform


@each_row(
    ("annotation", "good", "bad"),
    [
        (bool, True, 1),
        (float, 1, True),
        (int | bool, True, "x"),
        (Literal["a", 1], 1, True),
        (Annotated[int, Field(gt=0)], 1, 0),
        (ProjectId, 1, "1"),
        (dict[str, int], {"a": 1}, {"a": 1.5}),
        (list[dict[str, bool]], [{"a": True}], [{"a": 1}]),
        (Options, {"depth": 1}, {"depth": "x"}),
        (Recursive, {"children": [{"children": []}]}, {"children": [1]}),
        (JsonValue, [{"a": None}], (1,)),
        (object, {"a": 1}, object()),
        (int | None, None, "x"),
    ],
    around=registry.isolated,
)
def test_annotations_of_json_values_are_accepted(annotation: Any, good: Any, bad: Any):
    signature = signature_of(_with(annotation))
    signature.check([good])
    with pytest.raises(ArgumentsError):
        signature.check([bad])


@each_row(
    ("annotation", "words"),
    [
        (dt.datetime, "epoch seconds"),
        (dt.date | None, "ISO 8601"),
        (decimal.Decimal, "a str"),
        (tuple[int, int], "a list"),
        (set[int], "a list"),
        (list[set[int]], "a list"),
        (bytes, "base64"),
        (Path, "a str"),
        (Pair, "pass an id"),
        (Model, "pass an id"),
        (Colour, r"Literal\[...\]"),
        (Literal[Colour.RED], "str or int"),
        (dict[int, str], "keys of a JSON object"),
        (dict[str, dt.date], "ISO 8601"),
        (complex, "pass an id"),
    ],
    around=registry.isolated,
)
def test_annotations_of_other_values_are_refused(annotation: Any, words: str):
    with pytest.raises(DeclarationError, match=words) as caught:
        signature_of(_with(annotation))
    assert caught.value.attribute == "perform"
    assert "'value'" in str(caught.value)


def test_annotation_unresolved_is_refused():
    with pytest.raises(DeclarationError, match="NoSuchName"):
        signature_of(_with("NoSuchName"))


@each_row(
    ("annotation", "default"), [(str, None), (int, "x"), (Any, object()), (list[int], (1,))], around=registry.isolated
)
def test_default_of_wrong_type_is_refused(annotation: Any, default: Any):
    with pytest.raises(DeclarationError, match="the default of perform's parameter 'value'"):
        signature_of(_with(annotation, default))


def test_parameters_without_position_are_refused():
    def keyword_only(self: Any, *, a: int) -> None: ...
    def keywords(self: Any, **rest: int) -> None: ...
    def no_self() -> None: ...

    for perform, words in (
        (keyword_only, "'a: int' is not possible"),
        (keywords, "is not possible"),
        (no_self, "self"),
    ):
        with pytest.raises(DeclarationError, match=words):
            signature_of(perform)


_VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.just("\ud83d"), st.binary(max_size=2)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3), st.tuples(inner)
    ),
    max_leaves=8,
)


@given(st.lists(_VALUES, max_size=4))
def test_accepted_arguments_arrive_unchanged(args: list[Any]):
    def perform(self, a=None, b=None, *more): ...

    try:
        signature_of(perform).check(args)
    except ArgumentsError:
        return
    assert from_json(to_json(args), allow_inf_nan=False) == args
    assert json.loads(json.dumps(args, allow_nan=False)) == args


def test_json_values_and_strictness_problems_of_arguments():
    signature = signature_of(three)
    args = ["1", (2,), [1.5, "x"]]
    form = signature.to_json_values(args)
    assert form == ["1", [2], [1.5, "x"]]
    assert {name: reason[:24] for name, reason in signature.strictness_problems(args, form).items()} == {
        "project_id": "does not fit: input shou",
        "mode": "is a tuple, which JSON c",
        "scores": "does not fit: (at [1]) i",
    }
    assert signature.strictness_problems([1, "x", [1, 2.5]], [1, "x", [1, 2.5]]) == {}
    more = signature_of(rest)
    assert list(more.strictness_problems([1, 2, "x", None], [1, 2, "x", None])) == ["*ids[1]", "*ids[2]"]
    for wrong, words in (([], "is missing"), ([1, "x", None, 4], "4 were given"), ([1, b"x"], "is a bytes")):
        with pytest.raises(ArgumentsError, match=words):
            signature.to_json_values(wrong)
