import enum
import json
import math
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Gt
from hypothesis import given
from hypothesis import strategies as st

from framework.declare import registry, request
from framework.declare.request import _TYPED_FORM, CHUNK_SIZE, bind_all, json_chunks
from framework.declare.signature import build_signature
from framework.declare.strict_json import MAX_DEPTH, MAX_DIGITS
from framework.errors import ArgumentsError
from tests.tables import each_row


def take(self, number: int, text: str = "-", share: float | None = None) -> None: ...
def take_rest(self, number: int, *texts: str) -> None: ...
def take_chosen(self, mode: Literal["a", 1], more: Annotated[int, Gt(0)] = 1) -> None: ...
def take_lists(self, numbers: list[int], anything: Any = None) -> None: ...
def take_nothing(self) -> None: ...
def take_anything(self, one: Any = None, two: Any = None) -> None: ...


SIGNATURES = [
    build_signature("W", perform) for perform in (take, take_rest, take_chosen, take_lists, take_nothing, take_anything)
]


class Number(enum.IntEnum):
    ONE = 1


class Text(str):
    __slots__ = ()


class Row(tuple):
    __slots__ = ()


def lines(signature, jobs):
    found = list(json_chunks(signature, jobs))
    assert all(part.longest_line == max(map(len, part.lines.split(b"\n"))) for part in found)
    return b"\n".join(part.lines for part in found).split(b"\n")


def verdict(signature, args):
    try:
        bound = signature.bind(args, {})
        signature.check(bound)
    except ArgumentsError as error:
        return error
    return None


odd = st.sampled_from(
    [True, math.nan, math.inf, "\ud800", Number.ONE, Text("x"), b"x", (1,), {1: 2}, {"a": (1,)}, [math.nan], 10**4_001]
)
fitting = st.integers() | st.text() | st.floats(0, 1) | st.none() | st.sampled_from(["a", 1, [1, 2], {"k": "v"}, []])
jobs_of = st.lists(st.lists(fitting | fitting | fitting | odd, max_size=3).map(tuple), max_size=6)


@given(st.sampled_from(SIGNATURES), jobs_of)
def test_chunk_check_agrees_with_checks_of_single_jobs(signature, jobs):
    verdicts = [verdict(signature, args) for args in jobs]
    wrong = next((index for index, error in enumerate(verdicts) if error), None)
    if wrong is None:
        assert [json.loads(line) for line in lines(signature, jobs)] == [list(args) for args in jobs] if jobs else True
        assert bind_all(signature, jobs) == [list(args) for args in jobs]
        return
    for way, hint in ((lines, _TYPED_FORM), (bind_all, "")):
        with pytest.raises(ArgumentsError) as caught:
            way(signature, jobs)
        error = caught.value
        assert error.reason == f"(job {wrong} of the bulk) {verdicts[wrong].reason}{hint}"
        assert (error.worker, error.argument) == ("W", verdicts[wrong].argument)


@each_row(
    "jobs",
    [
        [(1,), [2, "x"], (3, "y", 0.5)],
        [(1, '],"",['), (2, 'quote " and \\'), (3, "new\nline")],
        [(1, "NaN"), (2, "Infinity")],
        [Row((1,)), (2,)],
        [(1, "x" * 5_000)],
        [(10**3_999,)],
        [(1, "", None)],
    ],
    around=registry.isolated,
)
def test_chunk_of_valid_jobs_is_unchanged(jobs):
    assert [json.loads(line) for line in lines(SIGNATURES[0], jobs)] == [list(args) for args in jobs]


def take_two(self, one: Any, two: Any) -> None: ...


@each_row(
    ("perform", "wrong", "words"),
    [
        (take_two, (1,), "is missing"),
        (take_anything, (1, 2, 3), "takes 2 arguments, 3 were given"),
        (take_nothing, (1,), "takes 0 arguments, 1 was given"),
        (take_rest, (1, "a", 2), "does not fit"),
        (take, (1, 2), "does not fit"),
        (take, (), "is missing"),
        (take, (1, "a", 1.0, 1), "takes 3 arguments"),
        (take_chosen, (True,), "does not fit"),
        (take_chosen, ("a", 0), "does not fit"),
    ],
    around=registry.isolated,
)
def test_chunk_with_misfitting_plain_values_is_refused(perform, wrong, words):
    signature = build_signature("W", perform)
    for jobs in ([wrong], [wrong, wrong], [list(wrong)]):
        with pytest.raises(ArgumentsError, match=rf"\(job 0 of the bulk\) .*{words}"):
            lines(signature, jobs)


def test_chunk_of_plain_jobs_is_checked_at_once(monkeypatch):
    """The check of a whole chunk is for speed; no other test would notice a slower way with the same result."""
    monkeypatch.setattr(request, "_checked_chunk", None)
    assert lines(SIGNATURES[0], [(1,), [2, "é"], (3, "y", 0.5), (4, "", 1), (5, "", None)])
    assert lines(SIGNATURES[1], [(1,), (2, "a", "b")])
    assert lines(SIGNATURES[4], [(), []]) == [b"[]", b"[]"]


@each_row(
    ("value", "words"),
    [
        (True, "does not fit"),
        (10**MAX_DIGITS, "digits"),
        (Number.ONE, "IntEnum|Number"),
        ("x", "does not fit"),
    ],
    around=registry.isolated,
)
def test_bulk_error_names_the_wrong_job_at_any_index(value, words):
    jobs = [(number,) for number in range(CHUNK_SIZE + 5)]
    for place in (0, 7, CHUNK_SIZE + 3):
        wrong = [*jobs]
        wrong[place] = (value,)
        with pytest.raises(ArgumentsError, match=rf"\(job {place} of the bulk\) .*({words})"):
            lines(SIGNATURES[0], wrong)


@each_row(("jobs", "place"), [([(1,), 2], 1), (["ab"], 0), ([(1,), {3}], 1), ([None], 0)], around=registry.isolated)
def test_bulk_job_that_is_no_tuple_is_refused(jobs, place):
    with pytest.raises(ArgumentsError, match=f"job {place} of the bulk is an? .*tuple, such as"):
        lines(SIGNATURES[0], jobs)


def nested(levels):
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_bulk_nesting_limit_counts_the_whole_payload():
    deepest = MAX_DEPTH - 2  # the payload's object and its list of arguments count as levels
    assert lines(SIGNATURES[5], [(nested(deepest),)])
    with pytest.raises(ArgumentsError, match=r"\(job 1 of the bulk\) refused: it is nested deeper than 64 levels"):
        lines(SIGNATURES[5], [(1,), (nested(deepest + 1),)])


def test_bulk_reads_a_generator_chunk_by_chunk():
    asked = 0

    def jobs():
        nonlocal asked
        for number in range(3 * CHUNK_SIZE):
            asked += 1
            yield (number,)

    found = json_chunks(SIGNATURES[0], jobs())
    assert asked == 0
    first = next(found)
    assert (asked, first.lines.count(b"\n")) == (CHUNK_SIZE, CHUNK_SIZE - 1)
    assert sum(part.lines.count(b"\n") + 1 for part in found) == 2 * CHUNK_SIZE
