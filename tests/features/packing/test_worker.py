"""Packed jobs on their way through processes: fetched in order, returned by a reaper, packed by the leader."""

import signal
from functools import partial
from types import SimpleNamespace

import pytest

from framework.declare import registry
from framework.features.packing import worker as worker_module
from framework.features.packing.deferred_packer import DeferredPacker
from framework.features.packing.held_packer import HeldPacker
from framework.features.packing.packer import QueuePacker
from framework.features.packing.worker import ShardPacker
from framework.fetch.blocks import packed_jobs
from framework.fetch.queues import QueueOrder
from framework.recover.reaper import Reaper
from framework.store.absent_keys import AbsentKeys
from framework.wire import blocks, keys
from framework.wire.sub_queues import aside_list
from tests.features.packing.test_deferred_packer import ReportWorker, deferred
from tests.features.packing.test_held_packer import held
from tests.features.packing.test_held_packer import packed as packed_held_jobs
from tests.features.packing.test_held_packer import waiting as waiting_held
from tests.features.packing.test_packer import QUEUE, packed, waiting
from tests.fetch.conftest import FetcherBench
from tests.harness import encoded, register_process, until
from tests.recover.test_reaper import LIMITS, OTHER, die, long_up


def test_fetcher_runs_packed_jobs_in_order(redis, redis_url):
    jobs = packed(redis, 60)
    order = []

    def run(unit):
        order.append(unit.data)
        return True

    bench = FetcherBench(redis, redis_url, slots=1, job=run).start()
    try:
        until(lambda: len(order) == len(jobs), "all jobs run")
        assert order == jobs
        until(bench.idle, "no job is left")
        assert not redis.exists(keys.PACKED, keys.PACKED_BLOCKS, QUEUE)
    finally:
        bench.stop()


def test_block_taken_by_a_blocking_call_is_unpacked(redis, redis_url):
    jobs = [encoded(jid=f"{number:024}") for number in range(3)]
    bench = FetcherBench(redis, redis_url, slots=3).start()
    try:
        until(bench.idle, "a blocking call")
        pipeline = redis.pipeline()
        pipeline.hset(keys.PACKED, "default", 3)
        pipeline.hset(keys.PACKED_BLOCKS, "default", 1)
        pipeline.lpush(QUEUE, blocks.pack("default", jobs[::-1]))
        pipeline.execute()
        assert bench.got(3) == jobs
    finally:
        bench.end(*bench.units)
        bench.stop()
    assert not bench.errors


def test_reaper_returns_a_block_as_it_is(redis, granted):
    jobs = packed(redis, 14)
    redis.lmove(QUEUE, keys.working(OTHER), "LEFT", "LEFT")
    die(redis, OTHER)
    with registry.isolated():
        assert Reaper(granted, lambda _: None, long_up(redis), LIMITS).sweep() == 1
    assert waiting(redis) == [*jobs[9::-1], *jobs[:9:-1]]


# --- which queues are packed


@pytest.fixture
def shard_packer(redis, monkeypatch):
    """Return a function that packs what a leader with the queue ``default`` packs in one step; it returns the pause."""
    monkeypatch.setattr(
        worker_module,
        "QueuePacker",
        lambda client, name, depth, store: QueuePacker(client, name, depth, 4, store=store),
    )
    monkeypatch.setattr(worker_module, "MAX_JOBS", 4)
    plan = SimpleNamespace(order=QueueOrder.of([("default", 0)]))
    process = SimpleNamespace(
        upkeep=redis,
        plans=[plan],
        leads=lambda: True,
        router=None,
        shard=SimpleNamespace(name="main"),
        absent=AbsentKeys(),
        postpones=lambda _declaration, _payload: 0.0,
    )
    clock = [0.0]
    with registry.isolated():
        packer = ShardPacker(process, 10, clock=lambda: clock[0])
        packer.now, packer.leader = clock, process
        yield packer


def test_leader_packs_its_queues_and_leaves_a_pause(redis, shard_packer):
    redis.sadd(keys.QUEUES, "default", "foreign")
    jobs = [encoded(jid=f"{number:024}") for number in range(30)]
    redis.lpush(QUEUE, *jobs)
    redis.lpush(keys.queue("foreign"), *jobs)
    while shard_packer.step() < 2.0:
        pass
    assert waiting(redis) == jobs[::-1]
    assert (redis.llen(QUEUE), redis.llen(keys.queue("foreign"))) == (15, 30)


def test_leader_packs_held_jobs_and_no_queue_by_default(redis, shard_packer, monkeypatch):
    monkeypatch.setattr(worker_module, "HELD_DEPTH", 10)
    monkeypatch.setattr(
        worker_module, "HeldPacker", lambda client, key, depth, store: HeldPacker(client, key, depth, 4, store)
    )
    redis.sadd(keys.QUEUES, "default")
    redis.lpush(QUEUE, *[encoded(jid=f"{number:024}") for number in range(30)])
    redis.sadd(keys.PAUSED_CLASSES, "Job")
    key = keys.paused_jobs("Job")
    jobs = held(redis, key, range(30))
    by_default = ShardPacker(shard_packer.leader, None)
    while by_default.step() < 2.0:
        pass
    assert (redis.llen(QUEUE), redis.zcard(key)) == (30, 18)
    assert waiting_held(redis, key) == jobs


def test_every_process_unpacks_held_jobs_that_are_next(redis, shard_packer):
    key = keys.paused_jobs("Job")
    jobs = packed_held_jobs(redis, key, 30)
    unpacker = worker_module.HeldUnpacker(shard_packer.leader)
    while redis.exists(keys.PACKED_HELD):
        unpacker.step()
    assert redis.zrange(key, 0, -1, withscores=True) == jobs
    redis.hset(keys.PACKED_HELD, "gone", 3)
    unpacker.step()
    assert not redis.exists(keys.PACKED_HELD)


def test_leader_packs_sub_queues_and_not_what_is_set_aside(redis, shard_packer):
    names = ["default~k", aside_list("default", "Job")]
    redis.sadd(keys.QUEUES, "default", *names)
    jobs = [encoded(jid=f"{number:024}") for number in range(30)]
    for name in ("default", *names):
        redis.lpush(keys.queue(name), *jobs)
    while shard_packer.step() < 2.0:
        pass
    assert [redis.llen(keys.queue(name)) for name in ("default", *names)] == [30, 15, 30]
    assert packed_jobs(redis) == {"default~k": 15}


def test_sub_queues_share_the_depth_of_their_queue(redis, shard_packer):
    names = [f"default~k{number}" for number in range(5)]
    redis.sadd(keys.QUEUES, "default", *names)
    for name in names:
        redis.lpush(keys.queue(name), *[encoded(jid=f"{number:024}") for number in range(9)])
    while shard_packer.step() < 2.0:
        pass
    # Two jobs of each stay as they are, and less than a run.
    assert packed_jobs(redis) == dict.fromkeys(names, 3)


def test_leader_packs_deferred_jobs_by_default(redis, shard_packer, monkeypatch):
    monkeypatch.setattr(worker_module, "HELD_DEPTH", 10)
    packer = partial(DeferredPacker, run=4, fewest=2, stays_s=-1e10)
    monkeypatch.setattr(worker_module, "DeferredPacker", packer)
    registry.register(ReportWorker)
    jobs = deferred(redis, range(18), 1e9)
    by_default = ShardPacker(shard_packer.leader, None)
    monkeypatch.setattr(by_default, "_returner", SimpleNamespace(step=lambda: False))
    while by_default.step() < 2.0:
        pass
    assert (redis.zcard(keys.SCHEDULE), redis.zcard(keys.DEFERRED_PACKED)) == (10, 2)
    # No process leads or packs any more: what is due returns.
    unpacker = worker_module.DeferredUnpacker(shard_packer.leader)
    unpacker.step()
    assert redis.zrange(keys.SCHEDULE, 0, -1, withscores=True) == jobs
    assert not redis.exists(keys.DEFERRED_PACKED, keys.PACKED_HELD)


def test_process_that_does_not_lead_packs_nothing(redis, shard_packer):
    redis.sadd(keys.QUEUES, "default")
    redis.lpush(QUEUE, *[encoded(jid=f"{number:024}") for number in range(30)])
    shard_packer.leader.leads = lambda: False
    assert shard_packer.step() == 2.0
    assert redis.llen(QUEUE) == 30


@pytest.mark.parametrize("reason", ["ruby", "sub-queues"])
def test_queue_that_may_have_no_blocks_is_unpacked(redis, shard_packer, reason):
    redis.sadd(keys.QUEUES, "default")
    jobs = packed(redis, 30)
    if reason == "ruby":
        register_process(redis, {"queues": ["default"], "labels": []})
    else:
        redis.sadd(keys.QUEUES, "default~k")
    while shard_packer.step() < 2.0:
        pass
    assert redis.lrange(QUEUE, 0, -1) == jobs[::-1]
    assert not redis.exists(keys.PACKED, keys.PACKED_BLOCKS)


def test_blocks_of_a_deleted_queue_are_forgotten(redis, shard_packer):
    redis.sadd(keys.QUEUES, "default")
    packed(redis, 30)
    redis.delete(QUEUE)
    shard_packer.step()
    assert redis.hlen(keys.PACKED) == 1
    shard_packer.now[0] += 121
    shard_packer.step()
    assert not redis.exists(keys.PACKED, keys.PACKED_BLOCKS)


def test_worker_packs_a_paused_queue_and_runs_it_later(site, redis):
    site.write("application.yml", {"packing_depth": 10})
    redis.sadd(keys.PAUSED, "default")
    redis.sadd(keys.QUEUES, "default")
    count = 3_500
    redis.lpush(QUEUE, *[encoded("NoopWorker", jid=f"{number:024}") for number in range(count)])
    process = site.hurried_worker("-q", "default").ready()
    until(lambda: redis.llen(QUEUE) < 1_100, "blocks")
    # The packer would change the queue between the reads.
    process.send(signal.SIGSTOP)
    waiting(redis)
    process.send(signal.SIGCONT)
    redis.srem(keys.PAUSED, "default")
    until(lambda: int(redis.get(keys.STAT_PROCESSED) or 0) == count, "all jobs ran")
    assert not redis.exists(keys.PACKED, keys.PACKED_BLOCKS, QUEUE, keys.DEAD, keys.RETRY)
