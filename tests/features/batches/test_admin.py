"""Iterate over the batches of real servers."""

import asyncio

import pytest

from framework import admin
from framework.errors import ShardUnavailableError
from framework.features.batches import keys as batch_keys
from tests.admin.conftest import both_shards, silent_second

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
