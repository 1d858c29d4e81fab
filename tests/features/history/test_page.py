"""Test the page of the runs over time: its periods, classes and deploys, and whose classes a caller sees."""

import asyncio
import time
from collections.abc import Mapping

import pytest

from framework.admin.diagnosis.facts import Installation
from framework.admin.explain import KnownClasses
from framework.all_settings import load
from framework.features.history.admin import starts_of
from framework.features.history.marks import mark_deploy
from framework.features.history.page import ActivityPage, UrgenciesPage, shown
from framework.features.history.rollup import HourlyRollup, open_database
from framework.features.history.series import DAY_S, KeptPeriods, Runs
from framework.features.history.urgencies import runs_of_class
from framework.pages import view as view_module
from framework.pages.caller import Caller
from framework.pages.view import ShardReads, View
from framework.wire import keys
from framework.wire.urgency_counts import SLOW_AT, SUCCEEDED_AT
from tests.admin.conftest import shard, silent_second
from tests.features.history.test_history import write_runs

__all__ = ["shard", "silent_second"]


@pytest.fixture(autouse=True)
def _whole(monkeypatch):
    """Let a read end, however busy the machine is."""
    monkeypatch.setattr(view_module, "PART_S", 60.0)


def read(shards, page=ActivityPage, url=None, **query):
    env = {} if url is None else {"FRAMEWORK_TASKS__URL": url}
    shown = shards if isinstance(shards, Mapping) else {"main": shards}
    view = View(
        Caller("ann", "read"),
        Installation(load(env), KnownClasses({})),
        shown,
        ShardReads(),
        query=query,
        within_s=20.0,
    )
    return {**asyncio.run(page().read(view)), "unanswered": view.unanswered}


def test_activity_has_periods_classes_and_deploys(shard, redis):
    now = time.time()
    for key, _ in keys.metrics(8, time.gmtime(now)):
        redis.hset(key, mapping={"Job|p": 5, "Job|f": 1, "Job|ms": 2_000, "Other|p": 1})
    redis.execute_command("BITFIELD", keys.histogram(8, "Job", time.gmtime(now)), "SET", "u16", "#3", 4)
    mark_deploy(redis, "v1", now)
    found = read(shard)
    assert (len(found["periods"]), found["step_s"]) == (48, 600)
    assert sum(one["runs"] for one in found["periods"]) == 6
    first = found["classes"][0]
    assert (first["class"], first["runs"], first["failed"], first["mean_s"]) == ("Job", 5, 1, 0.5)
    assert [one["label"] for one in found["deploys"]] == ["v1"]
    assert found["durations"] == []
    one = read(shard, **{"class": "Job", "hours": "1"})
    assert (len(one["periods"]), [row["class"] for row in one["classes"]]) == (60, ["Job"])
    assert [row["runs"] for row in one["durations"]] == [4]


@pytest.mark.parametrize(
    ("hours", "step_s", "count"), [(1, 60, 60), (24, 1_800, 48), (72, 3_600, 72), (2_160, DAY_S, 90)]
)
def test_page_shows_at_most_ninety_periods(hours, step_s, count):
    starts = starts_of(hours, 1_000 * DAY_S - 1)
    found_step_s, periods = shown(hours, starts)
    assert (found_step_s, len(periods)) == (step_s, count)
    assert [start for _, part in periods for start in starts[part]] == starts
    assert all(at <= start < at + step_s for at, part in periods for start in starts[part])


def test_activity_refuses_other_times(shard):
    with pytest.raises(ValueError, match="1, 8, 24, 72"):
        read(shard, hours="9")


def test_activity_shows_the_newest_part_and_goes_on(shard, redis, monkeypatch):
    now = time.time()
    for back in (0, 6 * 3_600):
        redis.hset(keys.metrics(8, time.gmtime(now - back))[1][0], mapping={"Job|p": 5, "Job|x": 1, "Job|f": "1" * 30})
    page, parts = ActivityPage(), []
    monkeypatch.setattr(view_module, "PART_S", 0.0)
    while not parts or parts[-1]["percent"] < 100:
        view = View(Caller("ann", "read"), Installation(load({}), KnownClasses({})), {"main": shard}, ShardReads())
        parts.append(asyncio.run(page.read(view)))
        assert view.is_partial == (parts[-1]["percent"] < 100)
    # The first part is that of the last hours.
    sums = [sum(one["runs"] for one in part["periods"]) for part in parts]
    assert (sums[0], sums[-1]) == (5, 10)
    assert len(sums) > 1
    # Too long a number is no count.
    assert parts[-1]["classes"][0]["failed"] == 0


def test_ended_periods_are_read_once():
    kept, asked = KeptPeriods(), []

    def read(starts):
        asked.extend(starts)
        return [{"Job": Runs(1)} for _ in starts]

    for _ in range(2):
        assert kept.read(("main",), range(10), 8, 60.0, read) == [{"Job": Runs(1)}] * 10
    assert sorted(asked) == sorted([*range(10), 8, 9])
    # Another shard has other runs.
    kept.read(("second",), [1], 8, 60.0, read)
    assert asked[-1] == 1


@pytest.fixture
def url(tmp_path):
    made = f"sqlite:///{tmp_path / 'tasks.db'}"
    yield made
    open_database(made).dispose()
    open_database.cache_clear()


def write_urgency(redis, at, urgency, **counts):
    """Write runs of this urgency as a process does that ends them at this time."""
    for key, _ in keys.urgencies(time.gmtime(at)):
        for word, count in counts.items():
            redis.hincrby(key, f"{urgency}|{word}", count)


def test_class_has_its_waits_and_how_its_targets_are_kept(shard, redis):
    now = time.time()
    write_runs(redis, now, "Job", 6, 1)
    # Two began at once, one waited for 1 to 2 s, three for a minute or two; of five without failure two were slow.
    for place, count in {0: 2, 3: 1, 8: 3, SUCCEEDED_AT: 5, SLOW_AT: 2}.items():
        for at in (now, now - 9 * 3_600):
            redis.execute_command(
                "BITFIELD", keys.class_waits("Job", time.gmtime(at)), "INCRBY", "u32", f"#{place}", count
            )
    found = read(shard, **{"class": "Job"})
    assert {one["up_to_s"]: one["runs"] for one in found["waits"] if one["runs"]} == {0.1: 2, 2.0: 1, 120.0: 3}
    assert found["targets"] is None, "the class is not loaded"
    runs = runs_of_class([2, 0, 0, 1, 0, 0, 0, 0, 3, *[0] * 6, 5, 2])
    assert (runs.queueing_apdex("high"), runs.execution_apdex, runs.late("low")) == (0.5, 0.6, 3)
    assert read(shard, **{"class": "Other"})["waits"] == []


def test_long_times_join_the_database_and_redis(shard, redis, url):
    now = time.time()
    long_ago = int(now - 20 * DAY_S)
    write_runs(redis, long_ago, "Old", 4, 1, 2.0)
    write_urgency(redis, long_ago, "high", p=4, w60=1)
    # The keys of that time are in this Redis yet: a roll-up of that time writes them.
    HourlyRollup(redis, "main", open_database(url), (8,)).run(long_ago + 4_000)
    redis.flushdb()
    write_runs(redis, now, "Job", 3)
    write_urgency(redis, now, "high", p=3)
    found = read(shard, url=url, hours="2160")
    assert (found["step_s"], len(found["periods"]), found["has_database"]) == (DAY_S, 90, True)
    assert {one["class"]: one["runs"] for one in found["classes"]} == {"Old": 4, "Job": 3}
    assert [one["runs"] for one in found["periods"] if one["runs"]] == [4, 3]
    high = read(shard, UrgenciesPage, url, hours="720")["urgencies"][0]
    assert [one["runs"] for one in high["periods"] if one["runs"]] == [4, 3]
    assert (high["total"]["late"], high["total"]["queueing_apdex"], high["now"]["queueing_apdex"]) == (1, 6 / 7, 1.0)


def test_long_times_without_a_database_say_so(shard, redis):
    write_runs(redis, time.time(), "Job", 3)
    for page in (ActivityPage, UrgenciesPage):
        assert read(shard, page, hours="720")["has_database"] is False
        assert read(shard, page, hours="72")["has_database"] is None
    assert read(shard, hours="2160")["classes"][0]["runs"] == 3


def test_dead_shard_and_dead_database_are_named(silent_second, redis, url):
    write_urgency(redis, time.time(), "low", p=2, w30=1, ms=40_000)
    dead = "postgresql+psycopg://x@127.0.0.1:1/x?connect_timeout=1"
    for page in (ActivityPage, UrgenciesPage):
        found = read(silent_second, page, dead, hours="720")
        assert list(found["unanswered"]) == ["second"]
        assert "127.0.0.1:1" in found["problem"]
    low = found["urgencies"][1]
    assert (low["urgency"], low["total"]["runs"], low["now"]["p95_wait_s"], low["now"]["mean_wait_s"]) == (
        *("low", 2),
        *(60.0, 20.0),
    )
