"""Test the measures of a class: its backlog, its runs, and the rates that follow from them."""

import time
from collections import Counter

import pytest

from framework.admin.explain_class import Backlog, ClassRates, RunCounts, measure, read_backlog, read_runs
from framework.admin.held_jobs import HeldJobs
from framework.wire import keys
from tests.harness import encoded, enqueue
from tests.tables import each_row

NOW = 1_800_000_040.0
NEVER = float("inf")


def waiting(*ages, held=0, held_age=0.0):
    return Backlog(Counter({"queue a": len(ages)}), [NOW - age for age in ages], held, NOW - held_age if held else None)


@each_row(
    ("backlog", "processed", "expected"),
    [
        (waiting(), 0, ClassRates(0.0, 0.0, 0.0)),
        (waiting(), 50, ClassRates(10.0, 10.0, 0.0)),
        (waiting(1, 2), 50, ClassRates(10.0, 10.0, None)),
        (waiting(1, 2), 0, ClassRates(None, 0.0, None)),
        # Four came in 120 s: two a minute. Ten a minute end, so four are gone in half a minute.
        (waiting(120, 90, 60, 30), 50, ClassRates(2.0, 10.0, 30.0)),
        (waiting(*[600] * 99, 10), 50, ClassRates(0.2, 10.0, pytest.approx(100 / 9.8 * 60))),
        (waiting(*range(1, 301)), 50, ClassRates(60.0, 10.0, NEVER)),
        (waiting(100, held=10, held_age=600), 0, ClassRates(None, 0.0, NEVER)),
        (waiting(held=10, held_age=600), 50, ClassRates(None, 10.0, 60.0)),
    ],
)
def test_rates_follow_from_backlog_and_runs(backlog, processed, expected):
    assert measure(backlog, RunCounts(processed, minutes=5.0), NOW) == expected


def test_backlog_has_the_jobs_of_a_class_and_its_former_name(redis):
    enqueue(redis, "Mail", queue="a", enqueued_at=NOW - 60)
    enqueue(redis, "OldMail", queue="b", enqueued_at=NOW - 90)
    enqueue(redis, "Other", queue="b", args=["Mail"])
    redis.zadd(keys.DEAD, {encoded("Mail"): 1})
    found = read_backlog(redis, ["Mail", "OldMail"], [HeldJobs("waiting", "Mail", 3, 1, NOW - 30)], lambda *_: None)
    assert found.places == {"queue a": 1, "queue b": 1, "dead": 1}
    assert (found.waiting, found.oldest) == (5, NOW - 90)


@pytest.mark.parametrize("version", [7, 8])
def test_runs_are_those_of_the_last_minutes(redis, version):
    for back, count in ((0, 5), (1, 10), (5, 20), (6, 500)):
        key = keys.metrics(version, time.gmtime(NOW - 60 * back))[0][0]
        redis.hset(key, mapping={"Mail|p": count, "Mail|f": 1, "Mail|ms": 3_200, "Other|p": 7})
    found = read_runs(redis, "Mail", NOW)
    assert found == RunCounts(35, 3, pytest.approx(9.6), 5 + NOW % 60 / 60)
    assert found.mean_s == pytest.approx(0.3)
    assert read_runs(redis, "Nothing", NOW).mean_s is None


@each_row(
    ("back", "began", "expected_s"),
    [
        (0, [NOW - 30], 30),
        # A process that began before the minute of the first runs says nothing about them.
        (0, [NOW - 600, NOW - 30], 40),
        (1, [NOW - 30], 100),
        (1, [NOW - 70], 70),
        (0, [NOW - 2], 10),
        (5, [NOW - 30], 340),
    ],
)
def test_runs_are_counted_over_the_time_that_was_observed(redis, back, began, expected_s):
    """At 40 s past the minute: the first minute with runs, or the start of the first process within it."""
    redis.hset(keys.metrics(8, time.gmtime(NOW - 60 * back))[0][0], "Mail|p", 300)
    assert read_runs(redis, "Mail", NOW, began).minutes * 60 == pytest.approx(expected_s)
