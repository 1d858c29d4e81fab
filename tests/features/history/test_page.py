"""Test the page of the runs over time: its periods, classes and deploys, and whose classes a caller sees."""

import asyncio
import time

import pytest

from framework.admin.diagnosis.facts import Installation
from framework.admin.explain import KnownClasses
from framework.all_settings import load
from framework.features.history.marks import mark_deploy
from framework.features.history.page import ActivityPage
from framework.features.history.series import KeptPeriods, Runs
from framework.pages import view as view_module
from framework.pages.caller import Caller
from framework.pages.view import ShardReads, View
from framework.wire import keys
from tests.admin.conftest import shard

__all__ = ["shard"]


@pytest.fixture(autouse=True)
def _whole(monkeypatch):
    """Let a read end, however busy the machine is."""
    monkeypatch.setattr(view_module, "PART_S", 60.0)


def read(shard, **query):
    installation = Installation(load({}), KnownClasses({}))
    view = View(Caller("ann", "read"), installation, {"main": shard}, ShardReads(), query=query)
    return asyncio.run(ActivityPage().read(view))


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
