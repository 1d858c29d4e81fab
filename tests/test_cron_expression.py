"""Check cron expressions against a search of every minute, at changes of the clock in both directions."""

from datetime import UTC, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.cron_expression import CronExpression, check_time_zone
from tests.harness import examples
from tests.tables import each_row

CHANGES = [
    ("Europe/Berlin", "2026-03-29"),
    ("Europe/Berlin", "2026-10-25"),
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"),
    ("Australia/Lord_Howe", "2026-04-05"),  # by half an hour
    ("Australia/Lord_Howe", "2026-10-04"),
    ("Pacific/Chatham", "2026-09-27"),  # at a quarter to three
    ("Africa/Cairo", "2026-04-24"),  # at midnight
    ("Africa/Cairo", "2026-10-30"),
    ("UTC", "2026-12-31"),
]
MINUTES = ["*", "*/7", "*/30", "0", "15", "30", "0,45", "10-20/5"]
HOURS = ["*", "*/2", "0", "1", "2", "3", "0-3", "2,23"]
DAYS = ["*", "24-30", "SUN"]


def epoch(text):
    return int(datetime.fromisoformat(text).timestamp())


def values(field, first, last):
    """Return the numbers that a field allows."""
    found = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        low, _, high = ("", "", "") if span == "*" else span.partition("-")
        numbers = range(first, last + 1) if span == "*" else range(int(low), int(high or low) + 1)
        found.update(numbers[:: int(step or 1)])
    return found


def matches(wall, minutes, hours, day):
    on_day = day == "*" or (wall.isoweekday() == 7 if day == "SUN" else 24 <= wall.day <= 30)
    return on_day and wall.minute in values(minutes, 0, 59) and wall.hour in values(hours, 0, 23)


def after_gap(wall, zone):
    """Return the instant of a wall clock time: the first of two, and the end of the gap of one that does not exist."""
    while True:
        instant = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
        if instant.astimezone(zone).replace(tzinfo=None) == wall:
            return int(instant.timestamp())
        wall += timedelta(minutes=1)


def by_search(minutes, hours, day, zone, after, until):
    zone = ZoneInfo(zone)
    if minutes.startswith("*") or hours.startswith("*"):
        times = range(after // 60 * 60, until + 1, 60)
        found = {at for at in times if matches(datetime.fromtimestamp(at, zone), minutes, hours, day)}
    else:
        begin = datetime.fromtimestamp(after, zone).replace(tzinfo=None, second=0) - timedelta(days=1)
        walls = (begin + timedelta(minutes=n) for n in range(60 * 24 * 6))
        found = {after_gap(wall, zone) for wall in walls if matches(wall, minutes, hours, day)}
    return sorted(at for at in found if after < at <= until)


@pytest.mark.proves("R47")
@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(MINUTES),
    st.sampled_from(HOURS),
    st.sampled_from(DAYS),
    st.sampled_from(CHANGES),
    st.integers(0, 60 * 24 * 2),
)
def test_ticks_equal_a_search_of_every_minute(minutes, hours, day, change, offset):
    zone, date = change
    fields = f"* * {day}" if day == "SUN" else f"{day} * *"
    expression = CronExpression(f"{minutes} {hours} {fields}", zone)
    middle = epoch(f"{date}T00:00+00:00")
    after, until = middle - 86_400 + offset * 60, middle + 2 * 86_400
    found = list(takewhile(lambda tick: tick <= until, expression.ticks_after(after)))
    assert found == by_search(minutes, hours, day, zone, after, until)


@pytest.mark.proves("R47")
@pytest.mark.parametrize(
    ("text", "zone", "after", "ticks"),
    [
        # The clock goes from 2:00 to 3:00 at 1:00 UTC.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00Z", ["2026-03-29T01:00Z", "2026-03-30T00:30Z"]),
        # From 3:00 back to 2:00 at 1:00 UTC: 2:30 exists twice.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z", ["2026-10-25T00:30Z", "2026-10-26T01:30Z"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10Z", ["2026-10-26T01:30Z"]),
        # 2:00, 2:30 and 3:00 are the same second once: one tick.
        ("0,30 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00Z", ["2026-03-29T01:00Z", "2026-03-29T01:30Z"]),
        ("*/30 2 * * *", "Europe/Berlin", "2026-10-25T00:20Z", ["2026-10-25T00:30Z", "2026-10-25T01:00Z"]),
        ("@daily", "Asia/Tokyo", "2026-01-01T00:00Z", ["2026-01-01T15:00Z", "2026-01-02T15:00Z"]),
        ("*/20 * * * * *", "UTC", "2026-01-01T00:00:19Z", ["2026-01-01T00:00:20Z", "2026-01-01T00:00:40Z"]),
        ("0 0 L * *", "UTC", "2028-02-01T00:00Z", ["2028-02-29T00:00Z", "2028-03-31T00:00Z"]),
    ],
)
def test_ticks_at_special_times(text, zone, after, ticks):
    found = CronExpression(text, zone).ticks_after(epoch(after))
    assert [next(found) for _ in ticks] == [epoch(tick) for tick in ticks]


def test_latest_ticks_of_a_long_time_are_counted_from_its_end():
    every_second = CronExpression("* * * * * *")
    until = epoch("2026-01-01T00:00Z")
    assert every_second.latest_ticks(0, until, 3) == ([until - 2, until - 1, until], True)
    assert every_second.latest_ticks(until - 2, until, 3) == ([until - 1, until], False)
    assert CronExpression("0 0 1 1 *").latest_ticks(0, until, 1) == ([until], True)
    assert CronExpression("0 0 1 1 *").latest_ticks(until, until + 9, 1) == ([], False)


@each_row(
    ("text", "reason"),
    [
        ("", "must be a cron expression"),
        (5, "must be a cron expression"),
        ("x" * 201, "must be a cron expression"),
        ("* * * *", "it has 4 fields, and 5, or 6"),
        ("60 * * * *", "the field minute is not valid"),
        ("0 0 30 2 *", "it never occurs: its months have no such day"),
        ("0 0 31 4,JUN *", "it never occurs: its months have no such day"),
        ("0 0 32 2 *", "the field day of month is not valid"),
        ("*/100 * * * *", "the step 100 of the field minute is greater than 60, the number of its values"),
        ("0 1-5,2/25 * * *", "the step 25 of the field hour is greater than 24"),
        ("0/61 * * * * *", "the step 61 of the field second is greater than 60"),
        ("* * * * MON#1/2", "the field day of week is not valid"),
        ("1/L * L/2 * *", "is not valid"),
        ("@dayly", "did you mean '@daily'?"),
        ("@reboot", "or one of @hourly"),
    ],
)
def test_wrong_expression_is_refused_with_the_field(text, reason):
    with pytest.raises(ValueError, match="must be a cron expression") as caught:
        CronExpression(text)
    assert reason in str(caught.value)


# The last ones are files that tzdata or the host has: another zone on each host, or none.
@each_row(
    "name",
    [
        "Europ/Berlin",
        "Europe",
        "",
        "../etc",
        None,
        "UTC\0",
        "localtime",
        "posixrules",
        "Factory",
        "right/Europe/Berlin",
    ],
)
def test_wrong_time_zone_is_refused(name):
    with pytest.raises(ValueError, match="must be the name of a time zone"):
        check_time_zone(name)


def test_expression_is_explained_in_words():
    assert CronExpression("@daily").explain() == "At 00:00 every day"
    assert CronExpression("0 0 31 * *").explain() == "At 00:00 on the 31st day of every month"
    assert CronExpression("0 0 11,22,23 * *").explain() == "At 00:00 on the 11th, the 22nd, and the 23rd day of month"
