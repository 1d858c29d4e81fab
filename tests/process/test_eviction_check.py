import pytest

from framework.process import eviction_check
from framework.process.eviction_check import EvictionCheck
from tests.harness import opened
from tests.servers.guarded import narrowed


class Told(list):
    eviction_unsafe = list.append


@pytest.fixture
def policy(redis):
    """Sets the policy of the server; it is safe again after the test."""
    yield lambda name: redis.config_set("maxmemory-policy", name)
    redis.config_set("maxmemory-policy", "noeviction")


@pytest.mark.proves("F15", "R61")
def test_eviction_check_warns_once_of_each_policy(redis, granted, policy, monkeypatch):
    monkeypatch.setattr(eviction_check, "CHECK_PERIOD_S", 0.0)
    told = Told()
    watch = EvictionCheck(granted, told)
    for name in ("noeviction", "allkeys-lru", "allkeys-lru", "volatile-ttl", "noeviction", "volatile-ttl"):
        policy(name)
        watch.check()
    assert told == ["allkeys-lru", "volatile-ttl", "volatile-ttl"]


def test_it_is_asked_at_once_and_then_seldom(redis, granted, policy):
    policy("allkeys-random")
    told = Told()
    watch = EvictionCheck(granted, told)
    redis.config_resetstat()
    for _ in range(10):
        watch.check()
    assert told == ["allkeys-random"]
    assert redis.info("commandstats")["cmdstat_info"]["calls"] == 1


@pytest.mark.refused("default info")
def test_a_redis_that_may_not_be_asked_is_left_alone(redis, redis_url, policy):
    policy("allkeys-lru")
    told = Told()
    with narrowed(redis, "-info"), opened(redis_url).client as client:
        EvictionCheck(client, told).check()
    assert told == []
