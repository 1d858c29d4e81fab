"""Kill the processes that pack and unpack a queue, again and again: every job runs."""

import itertools

import pytest

from framework.wire import keys
from framework.wire.blocks import stored_id
from tests.features.packing.test_packer import QUEUE
from tests.harness import encoded, until

JOBS = 12_000


def ran(redis):
    return len(set(redis.lrange("proof:noop", 0, -1)))


def packed(redis):
    return int(redis.hget(keys.PACKED, "default") or 0)


def references(redis):
    return sum(stored_id(one) is not None for one in redis.lrange(QUEUE, 0, -1))


def made(redis, place):
    """Return what grows while a process packs: the jobs in blocks, or the blocks in the payload store."""
    return packed(redis) if place == "redis" else references(redis)


@pytest.mark.campaign
@pytest.mark.parametrize("place", ["redis", "payload_store"])
def test_kills_of_packing_processes_lose_no_job(site, redis, place):
    folder = site.folder / "payloads"
    settings = {"packing_depth": 100, "packing_place": place, "payload_offload": {"url": folder.as_uri()}}
    site.write("application.yml", settings)
    redis.sadd(keys.QUEUES, "default")
    redis.sadd(keys.PAUSED, "default")
    names = [f"{number:024}" for number in range(JOBS)]
    left = iter(names)

    def push(count):
        redis.lpush(QUEUE, *[encoded("NoopWorker", jid=name) for name in itertools.islice(left, count)])

    push(JOBS // 2)
    # Each leader is killed in the middle of its work: further jobs arrive, and a successor packs them.
    for _ in range(4):
        before, worker = made(redis, place), site.hurried_worker("-q", "default").ready()
        until(lambda before=before: made(redis, place) > before, "more blocks", timeout_s=60)
        worker.kill()
        push(JOBS // 8)
    assert (references(redis) >= 4) == (place == "payload_store")
    redis.srem(keys.PAUSED, "default")
    # A successor waits until the jobs in flight of a killed process are returned.
    for goal in (JOBS // 3, 2 * JOBS // 3, JOBS):
        worker = site.hurried_worker("-q", "default", "-c", "3").ready()
        until(lambda goal=goal: ran(redis) >= goal, f"{goal:,} jobs ran", timeout_s=180)
        if goal < JOBS:
            worker.kill()
    assert {name.decode() for name in redis.lrange("proof:noop", 0, -1)} == set(names)
    until(lambda: not redis.exists(keys.PACKED, keys.PACKED_BLOCKS, QUEUE), "nothing is left")
    assert not redis.exists(keys.DEAD, keys.RETRY)
