"""Test the page of the runs over time: its periods, classes and deploys, and whose classes a caller sees."""

import asyncio
import time

import pytest

from framework.admin.diagnosis.facts import Installation
from framework.admin.explain import KnownClasses
from framework.all_settings import load
from framework.features.history.marks import mark_deploy
from framework.features.history.page import ActivityPage
from framework.pages.caller import Caller
from framework.pages.view import ShardReads, View
from framework.wire import keys
from tests.admin.conftest import shard

__all__ = ["shard"]


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
