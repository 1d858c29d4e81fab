import pytest

from framework.process.events import EvictionCheck
from framework.timings import STANDARD
from tests.harness import opened
from tests.servers.guarded import narrowed


class Warnings(list):
    eviction_unsafe = list.append


@pytest.fixture
def policy(redis):
    """Set the eviction policy of the server; after the test it is noeviction again."""
    yield lambda name: redis.config_set("maxmemory-policy", name)
    redis.config_set("maxmemory-policy", "noeviction")


@pytest.mark.proves("F15", "R61")
def test_eviction_check_warns_once_of_each_policy(redis, granted, policy):
    warned = Warnings()
    check = EvictionCheck(granted, warned, STANDARD.scaled(0.0))
    for name in ("noeviction", "allkeys-lru", "allkeys-lru", "volatile-ttl", "noeviction", "volatile-ttl"):
        policy(name)
        check.check()
    assert warned == ["allkeys-lru", "volatile-ttl", "volatile-ttl"]


def test_eviction_check_reads_the_policy_once_per_period(redis, granted, policy):
    policy("allkeys-random")
    warned = Warnings()
    check = EvictionCheck(granted, warned)
    redis.config_resetstat()
    for _ in range(10):
        check.check()
    assert warned == ["allkeys-random"]
    assert redis.info("commandstats")["cmdstat_info"]["calls"] == 1


@pytest.mark.refused("default info")
def test_eviction_check_without_right_to_info_is_silent(redis, redis_url, policy):
    policy("allkeys-lru")
    warned = Warnings()
    with narrowed(redis, "-info"), opened(redis_url).client as client:
        EvictionCheck(client, warned).check()
    assert warned == []
