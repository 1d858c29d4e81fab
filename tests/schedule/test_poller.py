import json
import threading

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from framework.schedule.poller import PAGE, Poller
from framework.wire import keys
from framework.wire.compress import compress_arguments
from framework.wire.json import dumps
from tests.harness import encoded, full_memory, opened, payload

LONG_AGO = 1_000_000_000.0
FAR = 99_999_999_999.0


class Events:
    def __init__(self):
        self.unreadable, self.failed, self.dropped = [], [], []

    def due_job_unreadable(self, source, data, error):
        self.unreadable.append((source, data))

    def due_job_failed(self, source, error):
        self.failed.append((source, error))

    def due_job_dropped(self, source, payload):
        self.dropped.append((source, payload["jid"]))


@pytest.fixture
def events():
    return Events()


def poller(url, events, *middleware, limit=1_000_000):
    return Poller(opened(url).client, events, middleware=middleware, decompressed_limit=limit)


def queued(redis, name="default"):
    """What is in a queue, oldest first."""
    return [json.loads(data) for data in reversed(redis.lrange(keys.queue(name), 0, -1))]


def test_due_jobs_of_both_sets_move_in_order_and_others_stay(redis, redis_url, events):
    redis.zadd(keys.SCHEDULE, {encoded(jid="b"): LONG_AGO + 1, encoded(jid="a"): LONG_AGO, encoded(jid="later"): FAR})
    redis.zadd(keys.RETRY, {encoded(jid="r", retry_count=2, bid="B-1"): LONG_AGO})
    assert poller(redis_url, events).poll() == 3
    jobs = queued(redis)
    assert [job["jid"] for job in jobs] == ["r", "a", "b"]
    assert jobs[0]["retry_count"] == 2
    assert jobs[0]["bid"] == "B-1"
    assert all(isinstance(job["enqueued_at"], float) and "at" not in job for job in jobs)
    assert redis.zcard(keys.SCHEDULE) == 1
    assert redis.smembers(keys.QUEUES) == {b"default"}


def test_the_servers_clock_decides(redis, redis_url, events):
    seconds, _ = redis.time()
    redis.zadd(keys.SCHEDULE, {encoded(jid="now"): seconds - 1, encoded(jid="not yet"): seconds + 3600})
    late = Poller(opened(redis_url).client, events, decompressed_limit=1, clock=lambda: LONG_AGO)
    assert late.poll() == 1
    assert [job["jid"] for job in queued(redis)] == ["now"]


@pytest.mark.parametrize("member", [b"\xff\x00 no JSON", b"[]", b'{"class":"X","args":[]}', b'{"args":[],"queue":"q"}'])
def test_what_cannot_be_read_goes_to_the_dead_set_as_it_is_and_stops_nobody(redis, redis_url, events, member):
    redis.zadd(keys.RETRY, {member: LONG_AGO, encoded(jid="fine"): LONG_AGO + 1})
    poller(redis_url, events).poll()
    assert redis.zrange(keys.DEAD, 0, -1) == [member]
    assert [job["jid"] for job in queued(redis)] == ["fine"]
    assert events.unreadable == [(keys.RETRY, member)]
    assert redis.zcard(keys.RETRY) == 0


def test_client_middleware_runs_and_may_change_or_drop(redis, redis_url, events):
    seen = []

    def reroute(worker, job, queue, pool):
        seen.append((worker, job["jid"], queue))
        job["queue"] = "elsewhere"
        yield

    def drop(worker, job, queue, pool):
        if job["jid"] != "dropped":
            yield

    redis.zadd(keys.SCHEDULE, {encoded(jid="goes"): LONG_AGO, encoded(jid="dropped"): LONG_AGO})
    assert poller(redis_url, events, reroute, drop).poll() == 1
    assert sorted(seen) == [("Job", "dropped", "default"), ("Job", "goes", "default")]
    assert [job["jid"] for job in queued(redis, "elsewhere")] == ["goes"]
    assert redis.zcard(keys.SCHEDULE) == 0
    assert events.dropped == [(keys.SCHEDULE, "dropped")]


def test_a_middleware_that_fails_leaves_the_job_where_it_was(redis, redis_url, events):
    def fail(worker, job, queue, pool):
        if job["jid"] == "bad":
            raise RuntimeError("no")
        yield

    redis.zadd(keys.SCHEDULE, {encoded(jid="bad"): LONG_AGO, encoded(jid="good"): LONG_AGO + 1})
    assert poller(redis_url, events, fail).poll() == 1
    assert [source for source, _ in events.failed] == [keys.SCHEDULE]
    ((member, score),) = redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)
    assert json.loads(member)["jid"] == "bad"
    assert score > redis.time()[0]


def test_a_page_of_failing_jobs_does_not_hide_those_behind_it(redis, redis_url, events):
    def fail(worker, job, queue, pool):
        if job["jid"].startswith("bad"):
            raise RuntimeError("no")
        yield

    redis.zadd(keys.RETRY, {encoded(jid=f"bad{n}"): LONG_AGO + n for n in range(PAGE)})
    redis.zadd(keys.RETRY, {encoded(jid="good"): LONG_AGO + PAGE})
    one = poller(redis_url, events, fail)
    assert one.poll() == 0
    assert one.poll() == 1
    assert [job["jid"] for job in queued(redis)] == ["good"]
    assert redis.zcard(keys.RETRY) == PAGE


def test_compressed_arguments_are_shown_plain_and_stored_as_they_were(redis, redis_url, events):
    job = payload(args=["x" * 1000, 2**70])
    plain = job["args"]
    compress_arguments(job, dumps(plain))
    stored = job["args"]
    shown = []

    def look(worker, job, queue, pool):
        shown.append((job["args"], "compressed" in job))
        yield

    redis.zadd(keys.RETRY, {dumps(job): LONG_AGO})
    poller(redis_url, events, look).poll()
    assert shown == [(plain, False)]
    (moved,) = queued(redis)
    assert moved["args"] == stored
    assert moved["compressed"] is True


def test_many_pollers_move_each_job_once(redis, redis_url, events):
    redis.zadd(keys.SCHEDULE, {encoded(jid=f"{n:05d}"): LONG_AGO + n for n in range(5 * PAGE)})

    def work():
        mine = poller(redis_url, events)
        while mine.poll():
            pass

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(job["jid"] for job in queued(redis)) == [f"{n:05d}" for n in range(5 * PAGE)]
    assert redis.zcard(keys.SCHEDULE) == 0


def test_due_jobs_move_at_maxmemory(redis, redis_url, events):
    redis.zadd(keys.RETRY, {encoded(jid="r"): LONG_AGO})
    with full_memory(redis):
        assert poller(redis_url, events).poll() == 1
    assert [job["jid"] for job in queued(redis)] == ["r"]


@pytest.mark.parametrize(
    "error", [FileNotFoundError("a file of the application"), RedisConnectionError("another server")]
)
def test_a_middleware_whose_own_io_fails_stops_its_job_only(redis, redis_url, events, error):
    class Careless:
        def call(self, worker, job, queue, pool):
            if job["jid"] == "bad":
                raise error
            yield

    redis.zadd(keys.RETRY, {encoded(jid="bad"): LONG_AGO, encoded(jid="good"): LONG_AGO + 1})
    assert poller(redis_url, events, Careless().call).poll() == 1
    assert [job["jid"] for job in queued(redis)] == ["good"]
    assert redis.zcard(keys.RETRY) == 1
    assert events.failed == [(keys.RETRY, error)]
