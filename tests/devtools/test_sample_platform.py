"""Test the data of the sample platform: commands and pages see its incidents."""

import pytest

from framework import admin
from framework.devtools import sample_platform
from framework.devtools.sample_platform import SamplePlatform, sample_classes
from framework.wire import keys
from tests.admin.conftest import both_shards

__all__ = ["both_shards"]


def test_sample_shows_its_incidents(both_shards, redis, second_redis, monkeypatch):
    monkeypatch.setattr(sample_platform, "_FLOOD_JOBS", 200)
    monkeypatch.setattr(sample_platform, "_HOURS", 1)
    assert len({one.name for one in sample_classes()}) == 40
    # Three shards of the platform on two of the test.
    SamplePlatform({"main": redis, "shop": second_redis, "media": second_redis}).write()
    assert len(admin.processes()) == 9
    assert admin.Queue("search_index").size >= 200
    assert admin.interrupted().size == 30
    assert admin.error_groups("dead").groups[0].error == "KeyError: 'shipping_address'"
    assert [one.label for one in admin.deploys(days=2)] == ["v42", "v41"]
    (stuck,) = admin.limit_holders(sample_platform.STUCK)
    assert (stuck.report.usage, len(stuck.holders)) == ("3/3", 3)
    assert stuck.report.waiting.jobs == 120
    series = admin.run_series(1, cls=sample_platform.BAD_DEPLOY)
    assert series.total[-2].failed > series.total[5].failed
    with pytest.raises(ValueError, match="empty"):
        SamplePlatform({"main": redis}).write()


def test_sample_is_that_of_its_seed(redis, second_redis, monkeypatch):
    monkeypatch.setattr(sample_platform, "_FLOOD_JOBS", 20)
    monkeypatch.setattr(sample_platform, "_HOURS", 0)
    for client in (redis, second_redis):
        SamplePlatform(dict.fromkeys(("main", "shop", "media"), client), seed=7, now=1_800_000_000.0).write()
    for key in (keys.RETRY, keys.DEAD, keys.SCHEDULE):
        assert redis.zrange(key, 0, -1) == second_redis.zrange(key, 0, -1)
