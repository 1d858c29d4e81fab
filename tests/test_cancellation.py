"""Test framework.cancel and acancel on real shards."""

import asyncio
import time

import pytest

import framework
from framework.declare import port
from framework.errors import ShardUnavailableError
from framework.shard.shards import Shards
from framework.wire import keys
from tests.harness import full_memory, opened


class _Port:
    def __init__(self, shards):
        self.cancel = shards.cancel


@pytest.fixture
def shards(redis_url):
    return Shards({"main": opened(redis_url)})


@pytest.fixture(autouse=True)
def client(shards):
    with port.override(_Port(shards)):
        yield


def test_cancel_marks_the_job_for_thirty_days(redis):
    redis.zadd(keys.CANCELLED, {"old": time.time() - 31 * 86_400, "young": time.time() - 29 * 86_400})
    assert framework.cancel("j")
    assert asyncio.run(framework.acancel("k"))
    assert framework.cancel("j")
    assert redis.zrange(keys.CANCELLED, 0, -1) == [b"young", b"k", b"j"]
    assert 2_591_000 < redis.ttl(keys.CANCELLED) <= 2_592_000


@pytest.mark.parametrize(
    ("state", "cancelled"), [("queued", True), ("retrying", True), ("running", True), ("completed", False)]
)
def test_cancel_of_an_ended_job_marks_nothing(redis, state, cancelled):
    redis.set(keys.status("j"), state)
    assert framework.cancel("j") is cancelled
    assert redis.zcard(keys.CANCELLED) == cancelled


@pytest.mark.parametrize(
    ("jid", "error"), [(None, TypeError), (7, TypeError), ("", ValueError), ("\ud800", ValueError)]
)
def test_cancel_of_a_wrong_id_is_refused(redis, jid, error):
    with pytest.raises(error):
        framework.cancel(jid)
    assert redis.exists(keys.CANCELLED) == 0


def test_cancel_marks_on_each_shard_that_answers(redis, redis_url):
    away = opened("redis://127.0.0.1:1/0")
    with port.override(_Port(Shards({"away": away, "main": opened(redis_url)}))), pytest.raises(ShardUnavailableError):
        framework.cancel("j")
    assert redis.zscore(keys.CANCELLED, "j") is not None


def test_cancel_at_maxmemory_still_marks(redis, shards):
    with full_memory(redis):
        assert shards.cancel("j")
