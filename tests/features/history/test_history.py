"""Test deploy marks, the series of runs and the roll-up of hours, against a real Redis and SQLite."""

import time

import pytest

import framework
from framework import admin
from framework.features.history.marks import mark_deploy
from framework.features.history.rollup import HourlyRollup, read_kept_runs, read_kept_urgencies
from framework.features.history.series import BUCKETS, DAY_S, HOUR_S, Runs, read_runs
from framework.features.tasks.database import TaskDatabase, history
from framework.wire import keys
from tests.postgres import database, postgres

__all__ = ["database", "postgres"]

NOW = 1_800_000_000 // HOUR_S * HOUR_S + 600.0


def write_runs(redis, at, name, processed, failed=0, seconds=0.0):
    """Write runs as a process does that ends them at this time."""
    counts = {f"{name}|p": processed, f"{name}|f": failed, f"{name}|ms": int(seconds * 1000)}
    for key, _ in keys.metrics(8, time.gmtime(at)):
        for field, count in counts.items():
            redis.hincrby(key, field, count)


def test_deploy_is_marked_once_on_every_shard(both_shards, redis):
    marked = framework.deployed(" v42 ")
    assert sorted(marked.marked) == ["main", "second"]
    assert framework.deployed("v42").marked == []
    (mark,) = admin.deploys(days=2)
    assert (mark.label, sorted(mark.shards)) == ("v42", ["main", "second"])
    assert abs(mark.at - time.time()) < 120
    with pytest.raises(ValueError, match="1 to 200"):
        framework.deployed("")


def test_deploy_marks_are_those_of_sidekiq(redis):
    assert mark_deploy(redis, "v1", 1_700_000_030.0)
    assert redis.hgetall("20231114-marks") == {b"2023-11-14T22:13:00Z": b"v1"}
    assert 0 < redis.ttl("20231114-marks") <= 90 * 86_400
    assert not mark_deploy(redis, "v1", 1_700_000_030.0 + 3 * 86_400)
    assert mark_deploy(redis, "v2", 1_700_000_030.0 + 3 * 86_400)
    # A version that comes back is a deploy of its own.
    assert mark_deploy(redis, "v1", 1_700_000_030.0 + 4 * 86_400)


def test_garbage_in_the_marks_is_left_out(shard, redis):
    today, yesterday = (time.strftime("%Y%m%d-marks", time.gmtime(time.time() - back)) for back in (0, 86_400))
    redis.hset(today, mapping={b"\xff": b"x", b"2020-01-01T00:00:00Z": b"v1"})
    redis.set(yesterday, "no hash")
    assert [one.label for one in admin.deploys(days=2)] == ["v1"]


def test_series_has_runs_by_class_and_in_total(both_shards, redis, second_redis):
    now = time.time()
    write_runs(redis, now, "Mail", 5, 1, 2.0)
    write_runs(second_redis, now, "Mail", 1)
    write_runs(redis, now - 3_000, "Report", 2)
    redis.set(keys.histogram(8, "Mail", time.gmtime(now)), b"\x00\x03")
    for hours, step_s in ((1, 60), (8, 600), (100, 3_600), (384, 86_400)):
        series = admin.run_series(hours)
        assert (series.step_s, len(series.starts)) == (step_s, hours * 3_600 // step_s)
        assert (series.classes["Mail"][-1], sum(one.processed for one in series.total)) == (Runs(6, 1, 2.0), 8)
    one = admin.run_series(8, cls="Mail")
    assert list(one.classes) == ["Mail"]
    assert (len(one.durations), one.durations[0]) == (BUCKETS, 3)
    with pytest.raises(ValueError, match="2,160"):
        admin.run_series(0)


def test_minutes_of_sidekiq_7_are_added_up(redis):
    start = time.time() // 600 * 600 - 600
    for minute in range(5):
        (key, _), *_ = keys.metrics(7, time.gmtime(start + 60 * minute))
        redis.hset(key, mapping={"Mail|p": 4, "Mail|f": 1, "Mail|ms": 250})
    assert read_runs(redis, [start], 600, (7, 8), None) == [{"Mail": Runs(20, 5, 1.25)}]


@pytest.fixture(params=["sqlite", "postgresql"])
def tasks(request, tmp_path):
    is_sqlite = request.param == "sqlite"
    one = TaskDatabase(f"sqlite:///{tmp_path / 'tasks.db'}" if is_sqlite else request.getfixturevalue("database"))
    one.migrate()
    yield one
    one.dispose()


def kept(tasks, cls=None, shards=None, step_s=HOUR_S):
    """Return the runs that the database has, by shard, class and period."""
    starts = range(int(NOW - 40 * DAY_S) // DAY_S * DAY_S, int(NOW), step_s)
    found = read_kept_runs(tasks, starts, step_s, cls, shards)
    return {
        shard: {
            name: {at: run for at, run in zip(starts, runs, strict=True) if run.processed}
            for name, runs in one.classes.items()
        }
        for shard, one in found.items()
    }


def test_rollup_writes_ended_hours_once(redis, tasks):
    write_runs(redis, NOW - HOUR_S, "Mail", 5, 1, 2.0)
    write_runs(redis, NOW - 2 * HOUR_S, "Mail", 3)
    write_runs(redis, NOW, "Mail", 7)
    assert HourlyRollup(redis, "main", tasks, (7, 8)).run(NOW) > 60
    hour = int(NOW // HOUR_S) * HOUR_S
    whole = {"main": {"Mail": {hour - HOUR_S: Runs(5, 1, 2.0), hour - 2 * HOUR_S: Runs(3)}}}
    assert kept(tasks) == whole
    day = hour // DAY_S * DAY_S
    assert kept(tasks, step_s=DAY_S) == {"main": {"Mail": {day: Runs(8, 1, 2.0)}}}
    # A process that was killed before it knew what it had written, and a Redis that has lost its data.
    redis.hincrby(keys.metrics(8, time.gmtime(NOW - HOUR_S))[1][0], "Mail|p", -2)
    again = HourlyRollup(redis, "main", tasks, (7, 8))
    again._done = set()
    again.run(NOW)
    assert kept(tasks, "Mail", ["main"]) == whole
    redis.hincrby(keys.metrics(8, time.gmtime(NOW - HOUR_S))[1][0], "Mail|p", 3)
    again._done = set()
    again.run(NOW)
    assert kept(tasks, "Mail")["main"]["Mail"][hour - HOUR_S].processed == 6
    assert kept(tasks, step_s=DAY_S)["main"]["Mail"][day].processed == 9
    assert kept(tasks, shards=["other"]) == {}


def test_days_of_an_earlier_release_are_completed(redis, tasks):
    old, day = int(NOW - 30 * DAY_S) // HOUR_S * HOUR_S, int(NOW - 30 * DAY_S) // DAY_S * DAY_S
    rows = [
        {"hour": old + hour * HOUR_S, "shard": "main", "worker": name, "processed": 2, "failed": 1, "seconds": 0.5}
        for hour in (0, 1)
        for name in ("Mail", "Report")
    ]
    tasks.write(lambda one: one.execute(history.insert(), rows))
    HourlyRollup(redis, "main", tasks, (8,)).run(NOW)
    assert kept(tasks, step_s=DAY_S) == {"main": {name: {day: Runs(4, 2, 1.0)} for name in ("Mail", "Report")}}


def test_rollup_keeps_the_runs_of_urgencies(redis, tasks):
    starts = range(int(NOW - DAY_S) // DAY_S * DAY_S, int(NOW), DAY_S)
    for back, waits in ((1, {"w10": 1}), (2, {"w60": 2, "w10800": 1})):
        at = time.gmtime(NOW - back * HOUR_S)
        write_runs(redis, NOW - back * HOUR_S, "Mail", 5)
        redis.hset(
            keys.urgencies(at)[1][0], mapping={f"low|{word}": n for word, n in {"p": 5, "ms": 500, **waits}.items()}
        )
    HourlyRollup(redis, "main", tasks, (8,)).run(NOW)
    (day,) = read_kept_urgencies(tasks, starts, DAY_S, ["main"])
    low = day.runs["low"]
    assert (day.until, low.processed, low.waited_ms, low.late("low")) == (NOW // HOUR_S * HOUR_S, 10, 1_000, 3)
    assert (low.queueing_apdex("low"), low.wait_of(0.6), low.wait_of(0.95)) == (0.7, 0.1, 10_800.0)
    hours = read_kept_urgencies(tasks, range(starts[0], int(NOW), HOUR_S), HOUR_S, ["main"])
    assert sorted(one.runs["low"].waits[5] for one in hours) == [0, 1]


def test_rollup_removes_hours_after_90_days(redis, tmp_path):
    database = TaskDatabase(f"sqlite:///{tmp_path / 'tasks.db'}")
    write_runs(redis, NOW - HOUR_S, "Mail", 5)
    HourlyRollup(redis, "main", database, (8,)).run(NOW)
    HourlyRollup(redis, "main", database, (8,)).run(NOW + 91 * 86_400)
    assert kept(database) == kept(database, step_s=DAY_S) == {}
    database.dispose()
