"""Check the comparison of releases against the validators of real jobs, with random old and new methods."""

import inspect
from datetime import date
from typing import Annotated, Any, Literal, NotRequired, Union

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, event, given, settings
from pydantic import AfterValidator, Field
from typing_extensions import TypedDict

from framework.declare.signature import build_signature
from framework.devtools.compat.findings import find_incompatibilities
from framework.devtools.compat.json_schema import is_superset, schema_of
from framework.devtools.compat.manifest import Manifest, ReleasedWorker, manifest_text, parameters_of, parse_manifest
from framework.errors import ArgumentsError
from tests.harness import examples


def not_b(text):
    if "b" in text:
        raise ValueError
    return text


class Note(TypedDict):
    text: str
    tags: NotRequired[list[str]]


class Tagged(TypedDict):
    text: str | int
    tags: NotRequired[list[Any]]
    extra: NotRequired[int]


class Closed(TypedDict):
    __pydantic_config__ = {"extra": "forbid"}  # type: ignore[misc]
    text: str


class Tree(TypedDict):
    name: str
    children: NotRequired[list["Tree"]]


class WideTree(TypedDict):
    name: str | None
    children: NotRequired[list["WideTree"]]


NO_REST = object()
TEXTS = st.text("ab", max_size=3)
INTS = st.integers(-3, 12) | st.sampled_from([2**53 + 1, -(10**300)])
FLOATS = st.floats(allow_nan=False, allow_infinity=False) | INTS
KEYS = st.sampled_from(["text", "a", "b", ""])
JSON = st.recursive(
    st.none() | st.booleans() | INTS | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)


def noted(texts, tags, **more):
    return st.fixed_dictionaries({"text": texts}, optional={"tags": st.lists(tags, max_size=2), **more})


def grown(names):
    leaf = st.fixed_dictionaries({"name": names})
    with_children = lambda inner: st.fixed_dictionaries({"name": names, "children": st.lists(inner, max_size=2)})  # noqa: E731
    return st.recursive(leaf, with_children, max_leaves=3)


# Each annotation of a parameter with values that callers pass. Type checkers refuse extra keys of a TypedDict.
KNOWN = [
    (int, INTS),
    (float, FLOATS),
    (str, TEXTS),
    (bool, st.booleans()),
    (None, st.none()),
    (Any, JSON),
    (Literal["a", "b"], st.sampled_from("ab")),
    (Literal["a"], st.just("a")),
    (Literal[1, 2], st.sampled_from([1, 2])),
    (Literal[True], st.just(True)),
    (Literal[False, "a"], st.sampled_from([False, "a"])),
    (Annotated[int, Field(ge=0)], st.integers(0, 12)),
    (Annotated[int, Field(gt=0, le=10)], st.integers(1, 10)),
    (Annotated[int, Field(multiple_of=2)], st.integers(-2, 6).map(lambda one: one * 2)),
    (Annotated[float, Field(lt=1)], st.floats(-5, 1, exclude_max=True) | st.integers(-3, 0)),
    (Annotated[float, Field(le=1)], st.floats(-5, 1) | st.integers(-3, 1)),
    (Annotated[str, Field(min_length=1)], st.text("ab", min_size=1, max_size=3)),
    (Annotated[str, Field(min_length=2, max_length=3)], st.text("ab", min_size=2, max_size=3)),
    (Annotated[str, Field(pattern="^a+$")], st.text("a", min_size=1, max_size=3)),
    (Annotated[str, AfterValidator(not_b)], st.text("a", max_size=3)),
    (Annotated[list[int], Field(max_length=2)], st.lists(INTS, max_size=2)),
    (dict, st.dictionaries(TEXTS, JSON, max_size=2)),
    (list, st.lists(JSON, max_size=3)),
    (dict[Literal["text", "b"], str], st.dictionaries(st.sampled_from(["text", "b"]), TEXTS)),
    (dict[Annotated[str, Field(min_length=1)], int], st.dictionaries(st.sampled_from(["text", "a"]), INTS)),
    (dict[str, int], st.dictionaries(TEXTS, INTS, max_size=2)),
    (Note, noted(TEXTS, TEXTS)),
    (Tagged, noted(TEXTS | INTS, JSON, extra=INTS)),
    (Closed, st.fixed_dictionaries({"text": TEXTS})),
    (Tree, grown(TEXTS)),
    (WideTree, grown(TEXTS | st.none())),
]


# Two releases of one type: the former annotation, values of callers, and the new annotation.
RELEASED = st.recursive(
    st.tuples(st.sampled_from(KNOWN), st.sampled_from(KNOWN), st.booleans()).map(
        lambda two: (two[0][0], two[0][1], two[0][0] if two[2] else two[1][0])
    ),
    lambda inner: (
        inner.map(lambda one: (list[one[0]], st.lists(one[1], max_size=3), list[one[2]]))
        | inner.map(lambda one: (dict[str, one[0]], st.dictionaries(KEYS, one[1], max_size=2), dict[str, one[2]]))
        | st.lists(inner, min_size=1, max_size=2).map(
            lambda ones: (
                Union[tuple(one[0] for one in ones)],  # noqa: UP007
                st.one_of([one[1] for one in ones]),
                Union[(None, *(one[2] for one in reversed(ones)))],
            )
        )
    ),
    max_leaves=4,
)


def fits(annotation, value):
    signature = method([("only", annotation, False)])
    try:
        signature.check([value])
    except ArgumentsError:
        return False
    return True


def method(parameters, rest=NO_REST):
    """Return the signature of a method as a class has it. A default is None, which its widened type accepts."""

    def perform(self):
        raise NotImplementedError

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    shown = [inspect.Parameter("self", kind)]
    hints = {}
    for name, annotation, optional in parameters:
        default = None if optional else inspect.Parameter.empty
        shown.append(inspect.Parameter(name, kind, default=default))
        hints[name] = Union[annotation, None] if optional else annotation  # noqa: UP007
    if rest is not NO_REST:
        shown.append(inspect.Parameter("rest", inspect.Parameter.VAR_POSITIONAL))
        hints["rest"] = rest
    perform.__signature__ = inspect.Signature(shown)
    perform.__annotations__ = hints
    return build_signature("jobs.SomeWorker", perform)


QUICK = settings(
    max_examples=examples(120),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=set(Phase) - {Phase.explain},
)


def test_is_subset_of_any_two_types_agrees_with_adapters():
    """Compare every pair of types, with values that callers pass and with unusual values."""
    odd = [
        None,
        True,
        False,
        0,
        1,
        -1,
        3,
        4,
        11,
        1.0,
        0.5,
        -2.5,
        10**300,
        "",
        "a",
        "aa",
        "ab",
        "bbbb",
        [],
        [1],
        ["a"],
        [1, 2, 3],
    ]
    odd += [{}, {"text": "a"}, {"text": 1}, {"text": "a", "tags": ["b"]}, {"b": "x"}, {"": 1}, {"a": 1}, {"name": "n"}]
    odd += [
        {"text": "a", "tags": [1]},
        {"name": None},
        {"name": "n", "children": [{"name": "m"}]},
        {"name": "n", "children": [{"name": None}]},
    ]
    wrong = [
        (old, new, value)
        for old, _ in KNOWN
        for new, _ in KNOWN
        if is_superset(schema_of(new), schema_of(old))
        for value in odd
        if fits(old, value) and not fits(new, value)
    ]
    assert not wrong


@QUICK
@given(RELEASED, st.data())
def test_superset_refuses_no_value_of_the_other(released, data):
    old, values, new = released
    safe = is_superset(schema_of(new), schema_of(old))
    event("safe" if safe else "unsafe")
    if safe:
        value = data.draw(values)
        assert fits(old, value)
        assert fits(new, value)


@QUICK
@given(RELEASED)
def test_superset_holds_for_same_and_wider_types(released):
    old = released[0]
    assert is_superset(schema_of(old), schema_of(old))
    assert is_superset(schema_of(Union[old, None, Literal["else"]]), schema_of(old))  # noqa: UP007
    assert is_superset(schema_of(Any), schema_of(old))


def remembered(signature):
    """Return a method as the manifest restores it; the comparison uses this form."""
    entry = ReleasedWorker(
        place="jobs.SomeWorker",
        version=0,
        retry=True,
        queue="q",
        shard="main",
        perform=parameters_of(signature, checked=True),
    )
    text = manifest_text(Manifest(release="1", day=date(2026, 1, 1), workers={"SomeWorker": entry}))
    again = parse_manifest(text, "released.yml").workers["SomeWorker"]
    assert again == entry
    return again.perform


@st.composite
def methods(draw):
    """Draw two releases of one method, and arguments that fit the first."""
    pieces = draw(st.lists(RELEASED, max_size=3))
    optional = draw(st.integers(0, len(pieces)))
    old = [(f"p{index}", piece[0], index >= optional) for index, piece in enumerate(pieces)]
    kept = draw(st.integers(max(0, len(pieces) - 1), len(pieces)))
    added = draw(st.integers(0, 1))
    from_here = draw(st.sampled_from([optional, optional, 0, kept + added]))
    new = [(f"p{index}", piece[2], index >= from_here) for index, piece in enumerate(pieces[:kept])]
    new += [("added", Any, kept + index >= from_here) for index in range(added)]
    if draw(st.booleans()):
        new = [(f"renamed_{name}", *rest) for name, *rest in new]
    rest, others = draw(st.sampled_from([(NO_REST, st.nothing())] * 9 + KNOWN))
    new_rest = draw(st.sampled_from([NO_REST, Any, rest]))
    count = draw(st.integers(optional, len(pieces)))
    arguments = [draw(piece[1]) for piece in pieces[:count]]
    if rest is not NO_REST and count == len(pieces):
        arguments += draw(st.lists(others, max_size=2))
    return method(old, rest), method(new, new_rest), arguments


@QUICK
@given(methods())
def test_compatible_method_refuses_no_former_list(released):
    old, new, arguments = released
    found = find_incompatibilities(remembered(old), remembered(new))
    event("unsafe" if found else "safe")
    old.check(arguments)
    if not found:
        new.check(arguments)
