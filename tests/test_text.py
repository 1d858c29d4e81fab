"""Test durations and ages for operators, and names that other programs write."""

import pytest

from framework.text import decode_escaped, format_age, format_count, format_duration, format_times, with_article
from tests.tables import each_row


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (4, "4 s"), (60, "1 min"), (725, "12 min 5 s"), (3_605, "1 h"), (187_200, "2 d 4 h")],
)
def test_format_duration_names_two_greatest_units(seconds, text):
    assert format_duration(seconds) == text


def test_format_duration_of_infinity_names_no_number():
    assert format_duration(float("inf")) == "thousands of years"


def test_format_times_of_one_is_once():
    assert [format_times(1), format_times(2_000)] == ["once", "2,000 times"]


def test_format_age_of_an_unknown_time_is_a_dash():
    assert [format_age(10.0, None), format_age(10.0, 6.0)] == ["-", "4 s"]


@pytest.mark.parametrize(
    ("raw", "text"), [(b"mailers", "mailers"), ("größe".encode(), "größe"), (b"\xff\xfe", r"\xff\xfe")]
)
def test_decode_escaped_shows_each_invalid_byte(raw, text):
    assert decode_escaped(raw) == text


@each_row(
    ("count", "noun", "verb", "text"),
    [
        (1, "held job", "is", "1 held job is"),
        (0, "job", "", "0 jobs"),
        (2_000, "process", "has", "2,000 processes have"),
        (3, "batch", "", "3 batches"),
    ],
)
def test_format_count_agrees_with_its_noun(count, noun, verb, text):
    assert format_count(count, noun, verb) == text


def test_with_article_fits_the_names_of_types():
    assert [with_article(name) for name in ("int", "object", "str", "UUID", "OrderedDict")] == [
        *("an int", "an object", "a str", "a UUID", "an OrderedDict")
    ]
