"""Check that jobs of a limit that has ended leave as their queue empties, while the memory of Redis is near its end."""

import pytest

from framework.store.script import RELEASE_WAITING
from framework.wire import keys
from tests.store.test_scripts import redis

__all__ = ["redis"]

BASE = keys.limit("C")


def release(redis, limit=0):
    return RELEASE_WAITING(redis, [BASE], [limit, 0, 100, 60])[0]


@pytest.fixture
def waiting(redis):
    """Let six jobs wait at a limit."""
    redis.zadd(f"{BASE}:waiting:", {b'["q","j%d"]\n%d' % (number, number): number for number in range(6)})
    redis.sadd(keys.LIMITS_WAITING, BASE)


def test_jobs_without_a_limit_fill_the_queue_to_a_depth(redis, waiting):
    redis.lpush("queue:q", *["x"] * 998)
    redis.set(keys.MEMORY_PRESSURE, "short")
    assert [release(redis), release(redis)] == [2, 0]
    assert redis.lrange("queue:q", 0, 1) == [b"1", b"0"]
    # With a limit its slots are the measure.
    assert release(redis, 1) == 1
    redis.delete(keys.MEMORY_PRESSURE)
    assert release(redis) == 3
