import pytest

from framework.process import eviction
from framework.process.eviction import EvictionWatch

ACL = {"enabled": True, "nopass": True, "keys": ["*"], "channels": ["*"]}


class Told(list):
    eviction_unsafe = list.append


@pytest.fixture
def policy(redis):
    """Sets the policy of the server; it is safe again after the test."""
    yield lambda name: redis.config_set("maxmemory-policy", name)
    redis.config_set("maxmemory-policy", "noeviction")


@pytest.mark.proves("F15", "R61")
def test_each_policy_that_evicts_is_told_once(redis, policy, monkeypatch):
    monkeypatch.setattr(eviction, "LOOK_S", 0.0)
    told = Told()
    watch = EvictionWatch(redis, told)
    for name in ("noeviction", "allkeys-lru", "allkeys-lru", "volatile-ttl", "noeviction", "volatile-ttl"):
        policy(name)
        watch.look()
    assert told == ["allkeys-lru", "volatile-ttl", "volatile-ttl"]


def test_it_is_asked_at_once_and_then_seldom(redis, policy):
    policy("allkeys-random")
    told = Told()
    watch = EvictionWatch(redis, told)
    redis.config_resetstat()
    for _ in range(10):
        watch.look()
    assert told == ["allkeys-random"]
    assert redis.info("commandstats")["cmdstat_info"]["calls"] == 1


def test_a_redis_that_may_not_be_asked_is_left_alone(redis, policy):
    policy("allkeys-lru")
    told = Told()
    redis.acl_setuser("default", commands=["+@all", "-info"], **ACL)
    try:
        EvictionWatch(redis, told).look()
    finally:
        redis.acl_setuser("default", commands=["+@all"], **ACL)
    assert told == []
