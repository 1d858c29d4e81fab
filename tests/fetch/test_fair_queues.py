"""Check the fetch from a queue with sub-queues: each key has its turn, and idle processes see the jobs that wait."""

from framework.wire import keys
from tests.fetch.conftest import FetcherBench
from tests.harness import until

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
