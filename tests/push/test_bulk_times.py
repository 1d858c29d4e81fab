"""Bulks whose jobs have times of their own, or are spread over an interval."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from framework.errors import ArgumentsError
from framework.wire import keys
from tests.harness import full_memory
from tests.push.conftest import failed, worker

DUE = 4_000_000_000


def due_times(redis):
    """Return the first argument of every scheduled job and its due time."""
    found = redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)
    return {json.loads(data)["args"][0]: at for data, at in found}


def test_bulk_with_a_time_for_each_job_keeps_them(push_mode, redis):
    times = [DUE + 5, datetime.fromtimestamp(DUE, UTC), 1_500_000_000]
    jids = worker(queue="default").perform_bulk(((number,) for number in range(3)), at=times)
    assert len(set(jids)) == 3
    # A time in the past is due at the next look of a poller.
    assert due_times(redis) == {0: DUE + 5, 1: DUE, 2: 1_500_000_000}


def test_bulk_with_delays_counts_by_the_clock_of_redis(push_mode, redis):
    before = redis.time()[0]
    worker(queue="default").perform_bulk([(1,), (2,)], at=[timedelta(minutes=5), 600])
    found = due_times(redis)
    assert 300 <= found[1] - before < 400
    assert round(found[2] - found[1], 3) == 300


def test_bulk_with_one_time_is_due_then_or_pushed_at_once(push_mode, redis, jobs):
    job = worker(queue="default")
    job.perform_bulk([(1,), (2,)], at=DUE)
    assert due_times(redis) == {1: DUE, 2: DUE}
    job.perform_bulk([(3,)], at=datetime(2020, 1, 1, tzinfo=UTC))
    assert [one["args"] for one in jobs()] == [[3]]


def test_bulk_for_takes_the_time_of_each_object(push_mode, redis):
    job = worker(queue="default")
    job.perform_bulk_for([5, 6], arguments=job.arguments, at=lambda number: DUE + number)
    assert due_times(redis) == {5: DUE + 5, 6: DUE + 6}


@pytest.mark.parametrize(("interval", "longest"), [(3_600, 3_600), (timedelta(seconds=1), 5)])
def test_spread_bulk_is_due_at_random_times_within(push_mode, redis, interval, longest):
    before = redis.time()[0]
    worker(queue="default").perform_bulk([(number,) for number in range(1_500)], spread_interval=interval)
    found = sorted(due_times(redis).values())
    assert len(set(found)) > 1_400
    assert before <= found[0]
    assert found[-1] <= redis.time()[0] + 1 + longest
    # In both halves of the interval.
    assert found[0] + longest * 0.4 < found[-1]


def test_resumed_spread_keeps_the_times_of_its_chunk(pusher, redis):
    job = worker(queue="default")
    with full_memory(redis):
        error = failed(lambda: job.perform_bulk([(number,) for number in range(20)], spread_interval=600))
    assert len(error.resume()) == 20
    assert len(set(due_times(redis).values())) == 20


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"at": [1.0]}, "at has 1 time for 2 jobs"),
        ({"at": [1.0, "soon"]}, r"\(job 1 of the bulk\) is due at a str"),
        ({"at": [1.0, float("inf")]}, r"\(job 1 of the bulk\) cannot be due"),
        ({"at": DUE, "spread_interval": 60}, "exclude each other"),
        ({"spread_interval": -1}, "spread_interval = -1 is not allowed"),
    ],
)
def test_wrong_times_of_a_bulk_are_refused_before_a_write(pusher, redis, options, reason):
    with pytest.raises(ArgumentsError, match=reason):
        worker(queue="default").perform_bulk([(1,), (2,)], **options)
    assert redis.dbsize() == 0


def test_times_and_delay_of_a_typed_bulk_exclude_each_other(pusher, redis):
    job = worker(queue="default")
    with pytest.raises(ArgumentsError, match="exclude delay"):
        job.perform_bulk_for([1], arguments=job.arguments, delay=5, spread_interval=60)
    with pytest.raises(ArgumentsError, match="leave out sync"):
        job.set(sync=True).perform_bulk([(1,)], spread_interval=60)
    assert redis.dbsize() == 0
