"""Check the assertions and matchers for tests, with their messages."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from framework import ApplicationWorker, Discard
from framework.errors import ArgumentsError
from framework.testing import FakeClock, assert_enqueued, assert_idempotent, fake, is_json, json_type
from framework.testing.job_checks import same_json
from tests.tables import each_row

START = datetime(2030, 1, 1, tzinfo=UTC)


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue = "default"


@pytest.fixture
def mail(application):
    class Mail(Base):
        def perform(self, user: int, options: dict[str, Any] | None = None): ...

    return Mail


def test_assert_enqueued_counts_matching_jobs(mail):
    with fake(clock=FakeClock(START)):
        assert_enqueued(mail, count=0)
        mail.perform_async(1)
        mail.perform_async(1)
        mail.perform_in(60, 2, {"late": True})
        assert_enqueued(mail, count=3)
        assert_enqueued(mail, 1, count=2)
        assert_enqueued(mail, 2, {"late": True})
        assert_enqueued(mail, 2, json_type("object"), at=timedelta(minutes=1))
        assert_enqueued(mail, at=START + timedelta(minutes=1))
        for wrong in ((2, {"late": 1}), (True,), (2, json_type("array"))):
            with pytest.raises(AssertionError):
                assert_enqueued(mail, *wrong)


def test_assert_enqueued_shows_what_waits(mail):
    with fake(clock=FakeClock(START)) as jobs:
        for number in range(12):
            mail.perform_in(number + 1, number)
        with pytest.raises(AssertionError) as raised:
            assert_enqueued(mail, 5, at=START)
        lines = str(raised.value).splitlines()
        assert (
            "expected 1 enqueued job of mail.<locals>.Mail with the arguments [5] due at datetime.datetime(2030,"
            in lines[0]
        )
        assert lines[0].endswith("and found 0. Enqueued jobs of mail.<locals>.Mail:")
        assert (lines[1].startswith("  [0] in default at "), lines[-1]) == (True, "  and 2 more")
        jobs.clear()
        with pytest.raises(AssertionError, match=r"(?s)expected 2 enqueued jobs of .*Mail and found 0.*  none$"):
            assert_enqueued(mail, count=2)


def test_assert_enqueued_names_other_places(application):
    class Failing(Base):
        def perform(self):
            raise ValueError

    with fake() as jobs:
        Failing.perform_async()
        with pytest.raises(ValueError):
            jobs.drain()
        with pytest.raises(AssertionError, match=r"none; retries\(\) has 1"):
            assert_enqueued(Failing)


@each_row(
    ("value", "names"),
    [
        ("a", {"string"}),
        (1, {"integer", "number"}),
        (1.5, {"number"}),
        (True, {"boolean"}),
        (None, {"null"}),
        ([1], {"array"}),
        ({}, {"object"}),
        ((1,), set()),
        (START, set()),
    ],
)
def test_json_type_equals_values_of_the_type(value, names):
    every = ("string", "integer", "number", "boolean", "null", "array", "object")
    assert {name for name in every if json_type(name) == value} == names
    assert (json_type() == value) == bool(names)
    assert repr(json_type("string", "null")) == "json_type('null', 'string')"


def nested(levels):
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


def test_matchers_accept_what_a_push_accepts(application):
    class Anything(Base):
        def perform(self, value: Any): ...

    accepted = ({"a": [None, 1.5, "x", True]}, nested(62), 10**3_000)
    refused = (
        {"a": math.nan},
        [math.inf],
        {1: 2},
        10**5_000,
        "\ud800",
        {"\ud800": 1},
        nested(63),
        nested(65),
        START,
        b"x",
        [(1,)],
    )
    every = json_type("object", "array", "number", "string")
    with fake():
        for value in accepted:
            assert Anything.perform_async(value)
            assert (is_json(value), json_type() == value, every == value) == (True, True, True)
        for value in refused:
            with pytest.raises(ArgumentsError):
                Anything.perform_async(value)
            assert (is_json(value), json_type() == value, every == value) == (False, False, False)


def test_unknown_json_type_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"no such JSON type \(did you mean 'string'\?\). Types: string, integer"):
        json_type("string", "strin")


def test_json_values_are_compared_by_type():
    assert is_json([{"a": [None, 1.5, "x", True]}])
    assert not any(map(is_json, ([(1,)], {1: 2}, [START], b"x", {1})))
    assert same_json([1, {"a": [json_type("integer")]}], [1.0, {"a": [5]}])
    assert not any([same_json(1, True), same_json([True], [1]), same_json([1], [1, 2]), same_json({"a": 1}, {"b": 1})])


def test_assert_idempotent_compares_two_runs(application):
    rows: list[int] = []

    class Twice(Base):
        idempotent = True

        def perform(self, number: int, mode: str):
            if mode == "discard":
                raise Discard("nothing to do")
            if mode == "append" or number not in rows:
                rows.append(number)

    class Undeclared(Base):
        def perform(self): ...

    with fake():
        assert_idempotent(Twice, 1, "once", state=lambda: rows)
        assert_idempotent(Twice, 1, "discard", state=lambda: rows)
        with pytest.raises(AssertionError, match=r"Twice is not idempotent for the arguments \[1, 'append'\]"):
            assert_idempotent(Twice, 1, "append", state=lambda: rows)
        with pytest.raises(AssertionError, match="Undeclared does not declare idempotent = True"):
            assert_idempotent(Undeclared, state=lambda: rows)
