"""Check the fetch from a queue with sub-queues: each key has its turn, and idle processes see the jobs that wait."""

from framework.features.packing.packer import QueuePacker
from framework.wire import blocks, keys
from tests.fetch.conftest import FetcherBench
from tests.harness import encoded, until

FAIR = frozenset({"default"})


def add(redis, key, *jobs):
    """Put jobs into a sub-queue, as their pushes would have."""
    redis.lpush(f"queue:default~{key}", *jobs)
    redis.sadd(keys.QUEUES, f"default~{key}")
    redis.zadd(keys.turns("default"), {key: redis.zcard(keys.turns("default")) + 1})


def test_fetch_gives_each_key_its_turn(redis, redis_url):
    add(redis, "big", *[f"big{number}" for number in range(50)])
    add(redis, "small", "small0", "small1")
    redis.lpush("queue:default", "returned")
    bench = FetcherBench(redis, redis_url, slots=5, fair=FAIR).start()
    try:
        assert sorted(bench.got(5)) == [b"big0", b"big1", b"returned", b"small0", b"small1"]
        # One waits in the queue itself, for processes that wait there.
        assert redis.lrange("queue:default", 0, -1) == [b"big2"]
        assert redis.smembers(keys.QUEUES) == {b"default~big", b"default"}
        assert {unit.queue for unit in bench.units} == {"default"}
        bench.end(*bench.units)
        assert bench.got(10)[5:] == [f"big{number}".encode() for number in range(2, 7)]
    finally:
        bench.end(*bench.units)
        bench.stop()


def test_idle_process_is_woken_for_the_jobs_of_sub_queues(redis, redis_url):
    bench = FetcherBench(redis, redis_url, slots=3, fair=FAIR).start()
    try:
        until(lambda: bench.blocking.queues, "a blocking call")
        calls = redis.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
        add(redis, "a", "a0", "a1", "a2", "a3")
        redis.eval("redis.call('LPUSH', KEYS[1], redis.call('RPOP', KEYS[2]))", 2, "queue:default", "queue:default~a")
        assert sorted(bench.got(3)) == [b"a0", b"a1", b"a2"]
        # All slots are taken, and the next process finds a job.
        until(lambda: redis.lrange("queue:default", 0, -1) == [b"a3"], "the next job")
        assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] - calls < 10
    finally:
        bench.end(*bench.units)
        bench.stop()


def test_packed_jobs_of_a_sub_queue_run_once_each(redis, redis_url):
    jobs = [encoded(jid=f"{number:024}") for number in range(30)]
    add(redis, "big", *jobs)
    packer = QueuePacker(redis, "default~big", 5, 4, 4)
    while packer.pack():
        pass
    assert sum(map(blocks.is_block, redis.lrange("queue:default~big", 0, -1))) == 6
    order = []

    def run(unit):
        order.append(unit.data)
        return True

    bench = FetcherBench(redis, redis_url, slots=1, job=run, fair=FAIR).start()
    try:
        until(lambda: len(order) == len(jobs), "all jobs run")
        # Of one fetch, a job behind a block may run before those of the block.
        assert (order[:6], sorted(order)) == (jobs[:6], jobs)
        until(bench.idle, "no job is left")
        assert not redis.exists(
            keys.PACKED, keys.PACKED_BLOCKS, "queue:default", "queue:default~big", keys.turns("default")
        )
    finally:
        bench.stop()


def test_dead_process_leaves_a_block_that_its_successor_returns(redis, redis_url):
    jobs = [encoded(jid=f"{number:024}") for number in range(3)]
    # As the reaper returns it: the sub-queue has a turn again.
    block = blocks.pack("default~big", jobs[::-1])
    redis.hset(keys.PACKED, "default~big", 3)
    redis.hset(keys.PACKED_BLOCKS, "default~big", 1)
    add(redis, "big", block)
    bench = FetcherBench(redis, redis_url, slots=3, fair=FAIR).start()
    try:
        assert sorted(bench.got(3)) == jobs
        assert not redis.exists(keys.PACKED, keys.PACKED_BLOCKS)
    finally:
        bench.end(*bench.units)
        bench.stop()
