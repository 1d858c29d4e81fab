"""Iterate over the batches of real servers."""

import asyncio

import pytest

from framework import admin
from framework.errors import ShardUnavailableError, UnknownBatchError
from framework.features.batches import keys as batch_keys
from framework.features.batches.store import Homes
from framework.shard.shards import Shards
from tests.admin.conftest import both_shards, silent_second
from tests.harness import opened

__all__ = ["both_shards", "silent_second"]


def add(redis, number):
    for one in range(number):
        redis.hset(batch_keys.batch(f"aw-{one}"), mapping={"pending": 1, "total": 1})
        redis.zadd(batch_keys.BATCHES, {f"aw-{one}": one})


def test_batches_of_all_shards_are_iterated_over(both_shards, redis, second_redis):
    add(redis, 150)
    add(second_redis, 1)
    assert len({(one.shard, one.bid) for one in admin.batches()}) == 151
    assert [one.bid for one in admin.batches("second")] == ["aw-0"]

    async def count():
        return len([one async for one in admin.batches()])

    assert asyncio.run(count()) == 151


def test_batches_of_a_silent_shard_are_an_error(silent_second, redis):
    add(redis, 1)
    found = iter(admin.batches())
    assert next(found).bid == "aw-0"
    with pytest.raises(ShardUnavailableError):
        next(found)


def test_shard_with_an_open_circuit_is_asked_last(redis_url):
    """It would hold up each look for a batch whose shard is not known."""
    shards = Shards({name: opened(redis_url, name) for name in ("away", "main")})
    shards["away"]._connection._circuit.open = True
    asked = []
    for name in ("b-1", "b-2"):
        Homes(shards, UnknownBatchError).ask(name, lambda shard: asked.append(shard.name) or True)
        shards["away"]._connection._circuit.open = False
    assert asked == ["main", "away"]
    shards.close()
