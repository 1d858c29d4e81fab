"""Check due jobs with a route to another shard: written there first, once, then removed here."""

import itertools
import json
import socket
import threading

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.errors import UnroutedCallError
from framework.features.deduplication.push import Deduplicator
from framework.finish.status_writer import StatusWriter
from framework.route.router import Router
from framework.schedule import poller as poller_module
from framework.schedule.cross_shard import (
    ANSWER_WITHIN_S,
    TRANSFER_WITHIN_S,
    TRANSFERRED_GUARD_S,
    UNAVAILABLE_S,
    CrossShardTransfer,
    DueAction,
)
from framework.schedule.due_job_planner import DestinationResolver, DueJobPlanner
from framework.schedule.poller import PAGE_SIZE, Poller, PollTiming
from framework.settings.model import RoutingRule
from framework.shard.shard import Shard
from framework.shard.shards import Shards
from framework.store.connect import Endpoint
from framework.store.script import RECEIVE_TRANSFER
from framework.wire import keys
from framework.wire.job import TRANSFER
from framework.wire.json import dumps
from framework.wire.keys import SetLimits
from tests.harness import compressed, decompressed, encoded, full_memory, opened
from tests.schedule.test_poller import LIMITER, Events

LONG_AGO = 1_000_000_000.0
RULES = [RoutingRule("*", "there", "second")]


@pytest.fixture(autouse=True)
def alone():
    with registry.isolated():
        body = {"feature_category": "not_owned", "wire_name": "Job", "perform": lambda self: None}
        type("JobWorker", (ApplicationWorker,), {**body, "queue": None})
        yield


def ignore_failed_status(*facts):
    raise AssertionError(facts)


class Bench:
    """Poll the shard main with rules that route every job to the shard second."""

    def __init__(self, url, second_url, *middleware, rules=RULES):
        self.events = Events()
        self.client = opened(url).client
        self.second = Shard("second", Endpoint(second_url), role="tests")
        shards = {"main": opened(url), "second": self.second}
        self.transfer = CrossShardTransfer(self.client, "main", shards, self.events)
        preparation = DueJobPlanner(
            self.events,
            DestinationResolver(Router(rules, list(shards)), "main"),
            self.transfer,
            StatusWriter(shards["main"], ignore_failed_status),
            middleware=middleware,
            limiter=LIMITER,
            locks=Deduplicator(),
        )
        timing = PollTiming(self.client, 1.0)
        self.poller = Poller(self.client, self.events, preparation, self.transfer, timing, SetLimits())

    def drain(self):
        while self.poller.poll():
            pass


@pytest.fixture
def bench(redis_url, second_redis_url):
    return Bench(redis_url, second_redis_url)


def pass_by(worker, job, queue, pool):
    yield


def change(worker, job, queue, pool):
    job["args"].append("y" * 200_000)  # in place
    yield


def received(second_redis, queue="there"):
    return [json.loads(data) for data in reversed(second_redis.lrange(keys.queue(queue), 0, -1))]


def wait(redis, *jids, source=keys.SCHEDULE, **fields):
    redis.zadd(source, {encoded(jid=jid, **{"queue": "job", **fields}): LONG_AGO + n for n, jid in enumerate(jids)})


@pytest.mark.parametrize("source", [keys.SCHEDULE, keys.RETRY])
def test_transfer_after_a_route_change_uses_the_new_shard(bench, redis, second_redis, source):
    wait(redis, "a", "b", source=source, retry_count=1, bid="B")
    bench.drain()
    jobs = received(second_redis)
    assert [job["jid"] for job in jobs] == ["a", "b"]
    assert all((job["queue"], job["retry_count"], job["bid"]) == ("there", 1, "B") for job in jobs)
    assert not any(TRANSFER in job for job in jobs)
    assert second_redis.smembers(keys.QUEUES) == {b"there"}
    assert redis.keys("*") == []


def test_transfer_of_a_counted_job_lowers_the_count_here(bench, redis, second_redis):
    wait(redis, "a", aw_accepted=100)
    redis.hset(keys.ACCEPTED_JOBS, "Job", 3)
    redis.hset(keys.ACCEPTED_BYTES, "Job", 300)
    bench.drain()
    (job,) = received(second_redis)
    assert "aw_accepted" not in job
    assert (redis.hget(keys.ACCEPTED_JOBS, "Job"), redis.hget(keys.ACCEPTED_BYTES, "Job")) == (b"2", b"200")
    assert second_redis.exists(keys.ACCEPTED_JOBS) == 0


def test_transfer_gives_middlewares_the_new_queue_and_pool(redis, second_redis, redis_url, second_redis_url):
    seen = []

    def look(worker, job, queue, pool):
        seen.append((job["queue"], queue, pool.connection_pool.connection_kwargs["path"]))
        yield

    wait(redis, "a")
    bench = Bench(redis_url, second_redis_url, look)
    bench.drain()
    assert seen == [("there", "there", bench.second.client.connection_pool.connection_kwargs["path"])]


def test_transfer_routes_the_pool_of_middlewares(redis, second_redis, redis_url, second_redis_url):
    seen = []

    def look(worker, job, queue, pool):
        seen.append((pool, bool(pool.time())))
        yield
        pool.time()

    for rules in (RULES, []):
        wait(redis, "a")
        Bench(redis_url, second_redis_url, look, rules=rules).drain()
    assert [answered for _, answered in seen] == [True, True]
    for (pool, _), shard in zip(seen, ("second", "main"), strict=True):
        with pytest.raises(UnroutedCallError, match=f"TIME on shard '{shard}'"):
            pool.time()


@pytest.mark.parametrize("middleware", [(), (pass_by,), (change,)], ids=("none", "looks", "changes"))
def test_transfer_keeps_or_renews_compressed_arguments(redis, second_redis, redis_url, second_redis_url, middleware):
    job = compressed(["x" * 200], queue="job")
    redis.zadd(keys.RETRY, {dumps(job): LONG_AGO})
    Bench(redis_url, second_redis_url, *middleware).drain()
    (moved,) = received(second_redis)
    moved |= {"queue": "job", "enqueued_at": job["enqueued_at"]}
    if change in middleware:
        job, moved = decompressed(compressed(["x" * 200, "y" * 200_000], queue="job")), decompressed(moved)
    assert moved == job


def test_transfer_shortens_the_guard_of_an_arrived_job(bench, redis, second_redis):
    wait(redis, "a")
    bench.drain()
    (guard,) = second_redis.keys(keys.transferred("*"))
    assert 0 < second_redis.ttl(guard) <= TRANSFERRED_GUARD_S


@pytest.mark.proves("R16", "I1", "I2", "I18")
def test_transfer_with_a_death_loses_and_doubles_nothing(redis, second_redis, redis_url, second_redis_url, monkeypatch):
    """Die before and after each script of the transfer, then let another process continue."""

    class Died(BaseException):
        pass

    for when in itertools.count():
        left = [when]

        def dying(script, left=left):
            def run(*arguments):
                for call in (lambda: None, lambda: script(*arguments)):
                    reply = call()
                    if left[0] == 0:
                        raise Died
                    left[0] -= 1
                return reply

            return run

        with monkeypatch.context() as patch:
            patch.setattr(poller_module, "ENQUEUE_DUE", dying(poller_module.ENQUEUE_DUE))
            patch.setattr("framework.schedule.cross_shard.RECEIVE_TRANSFER", dying(RECEIVE_TRANSFER))
            wait(redis, "a", "b")
            try:
                Bench(redis_url, second_redis_url).drain()
                survived = True
            except Died:
                survived = False
        Bench(redis_url, second_redis_url).drain()
        assert sorted(job["jid"] for job in received(second_redis)) == ["a", "b"], when
        assert redis.zcard(keys.SCHEDULE) == 0
        second_redis.flushall()
        if survived:
            assert when == 6  # mark, receive, remove: before and after each
            return


@pytest.mark.proves("R32", "I2")
def test_transfer_by_many_pollers_moves_each_job_once(redis, second_redis, redis_url, second_redis_url):
    wait(redis, *(f"{n:04d}" for n in range(3 * PAGE_SIZE)))
    threads = [threading.Thread(target=Bench(redis_url, second_redis_url).drain) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(job["jid"] for job in received(second_redis)) == [f"{n:04d}" for n in range(3 * PAGE_SIZE)]
    assert redis.zcard(keys.SCHEDULE) == 0


@pytest.mark.proves("R31", "I4")
def test_transfer_by_a_slow_poller_writes_nothing_moved(redis, second_redis, redis_url, second_redis_url):
    """The guard may have expired by then."""
    other = Bench(redis_url, second_redis_url)
    held = []

    def hold(worker, job, queue, pool):
        if not held:
            held.append(1)
            other.drain()
            second_redis.delete(*second_redis.keys(keys.transferred("*")))
        yield

    wait(redis, "a")
    Bench(redis_url, second_redis_url, hold).drain()
    assert held
    assert [job["jid"] for job in received(second_redis)] == ["a"]


@pytest.mark.proves("R31", "I4")
def test_transfer_by_a_suspended_poller_writes_nothing(
    bench, redis, second_redis, redis_url, second_redis_url, monkeypatch
):
    """The poller had read the job; other pollers moved it, and the guard has expired when the poller continues."""
    real, held = RECEIVE_TRANSFER, []

    def late(client, places, arguments):
        if not held:
            held.append(1)
            Bench(redis_url, second_redis_url).drain()
            second_redis.delete(*second_redis.keys(keys.transferred("*")))
            arguments[2] = float(arguments[2]) - 2 * TRANSFER_WITHIN_S  # the time that has passed
        return real(client, places, arguments)

    wait(redis, "a")
    monkeypatch.setattr("framework.schedule.cross_shard.RECEIVE_TRANSFER", late)
    bench.drain()
    assert held
    assert [job["jid"] for job in received(second_redis)] == ["a"]
    wait(redis, "b")
    bench.drain()
    assert [job["jid"] for job in received(second_redis)] == ["a", "b"]


def test_guard_outlives_every_possible_writer():
    assert TRANSFERRED_GUARD_S >= 2 * TRANSFER_WITHIN_S


def test_transfer_of_the_same_bytes_works_again(bench, redis, second_redis):
    """A job that runs again later may have the very payload it had before."""
    for _ in range(2):
        wait(redis, "a")
        bench.drain()
    assert [job["jid"] for job in received(second_redis)] == ["a", "a"]


@pytest.mark.proves("R16", "I2")
def test_transfer_with_a_lost_reply_does_not_double(bench, redis, second_redis, monkeypatch):
    def cut(*arguments):
        RECEIVE_TRANSFER(*arguments)
        raise RedisConnectionError("cut")

    wait(redis, "a")
    with monkeypatch.context() as patch:
        patch.setattr("framework.schedule.cross_shard.RECEIVE_TRANSFER", cut)
        bench.drain()
    assert len(received(second_redis)) == 1
    ((member, score),) = redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)
    assert score > redis.time()[0]  # it is delayed
    assert bench.events.shards == ["second"]
    redis.zadd(keys.SCHEDULE, {member: LONG_AGO})
    bench.transfer._unavailable_until.clear()
    bench.drain()
    assert len(received(second_redis)) == 1
    assert redis.zcard(keys.SCHEDULE) == 0


@pytest.mark.proves("F21")
def test_transfer_to_a_stopped_shard_delays_only_its_jobs(redis, redis_url, set_clock):
    bench = Bench(redis_url, "redis://127.0.0.1:1/0")
    wait(redis, *(f"away-{n}" for n in range(PAGE_SIZE)))
    redis.zadd(keys.SCHEDULE, {encoded("Unknown", jid="here"): LONG_AGO + PAGE_SIZE})
    bench.drain()
    assert [json.loads(data)["jid"] for data in redis.lrange(keys.queue("default"), 0, -1)] == ["here"]
    assert redis.zcard(keys.SCHEDULE) == PAGE_SIZE
    assert bench.events.shards == ["second"]
    for member in redis.zrange(keys.SCHEDULE, 0, 9):
        redis.zadd(keys.SCHEDULE, {member: LONG_AGO})
    bench.drain()
    assert bench.events.shards == ["second"]  # the shard is not tried again so soon
    set_clock.advance(UNAVAILABLE_S)
    for member in redis.zrange(keys.SCHEDULE, 0, 9):
        redis.zadd(keys.SCHEDULE, {member: LONG_AGO})
    bench.drain()
    assert bench.events.shards == ["second", "second"]
    assert redis.zcard(keys.SCHEDULE) == PAGE_SIZE


def test_transfer_to_a_frozen_shard_follows_the_local_jobs(redis, redis_url):
    """A frozen server takes connections and never answers: a command waits for five seconds."""
    wait(redis, "away")
    redis.zadd(keys.SCHEDULE, {encoded("Unknown", jid="here"): LONG_AGO + 1})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        bench = Bench(redis_url, f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        at_connection, ended = [], threading.Event()

        def accept():
            opened_here, _ = silent.accept()
            at_connection.append(redis.llen(keys.queue("default")))
            ended.wait()
            opened_here.close()

        thread = threading.Thread(target=accept)
        thread.start()
        bench.drain()
        ended.set()
        thread.join()
    assert at_connection == [1]
    assert bench.events.shards == ["second"]
    (client,) = bench.transfer._asking.values()
    assert client.connection_pool.connection_kwargs["socket_timeout"] == ANSWER_WITHIN_S
    assert isinstance(bench.events.shard_errors[-1], RedisTimeoutError)


@pytest.mark.proves("R16")
def test_transfer_to_a_full_shard_waits_here(bench, redis, second_redis):
    wait(redis, "a")
    with full_memory(second_redis):
        bench.drain()
    assert received(second_redis) == []
    assert redis.zcard(keys.SCHEDULE) == 1
    assert bench.events.shards == ["second"]


def test_transfer_from_a_full_shard_works(bench, redis, second_redis):
    wait(redis, "a")
    with full_memory(redis):
        bench.drain()
    assert [job["jid"] for job in received(second_redis)] == ["a"]


def test_transfer_to_a_queue_of_another_type_is_reported(bench, redis, second_redis):
    second_redis.set(keys.queue("there"), "text")
    wait(redis, "a")
    bench.drain()
    assert bench.events.queues == ["there"]
    assert redis.zcard(keys.SCHEDULE) == 1


BACK = [RoutingRule("*", "job", "main")]


@pytest.mark.proves("I1", "I2")
def test_transfer_of_a_job_routed_back_is_called_off(bench, redis, second_redis, redis_url, second_redis_url):
    wait(redis, "a")
    bench.poller.poll()
    (member,) = redis.zrange(keys.SCHEDULE, 0, -1)
    token = json.loads(member)[TRANSFER]
    back = Bench(redis_url, second_redis_url, rules=BACK)
    back.poller.poll()
    # A process with the old rules has read the job before, and writes it now: not any more.
    assert write_there(second_redis, token, member) == [-2]
    back.drain()
    (moved,) = redis.lrange(keys.queue("job"), 0, -1)
    assert TRANSFER not in json.loads(moved)
    assert redis.zcard(keys.SCHEDULE) == 0
    assert received(second_redis) == []
    assert second_redis.ttl(keys.transferred(token)) <= TRANSFERRED_GUARD_S


@pytest.mark.proves("I1", "I2")
def test_transfer_that_was_written_is_not_called_off(bench, redis, second_redis, redis_url, second_redis_url):
    wait(redis, "a")
    bench.poller.poll()
    (member,) = redis.zrange(keys.SCHEDULE, 0, -1)
    # The process that wrote it there was killed then; another one knows other rules.
    assert write_there(second_redis, json.loads(member)[TRANSFER], member) == [1]
    Bench(redis_url, second_redis_url, rules=BACK).drain()
    assert [job["jid"] for job in received(second_redis)] == ["a"]
    assert redis.keys("*") == []


@pytest.mark.proves("I1", "I2")
def test_transfer_that_was_called_off_begins_anew(bench, redis, second_redis, redis_url, second_redis_url, monkeypatch):
    wait(redis, "a")
    bench.poller.poll()
    with monkeypatch.context() as patch:
        # Killed before it removed the mark.
        patch.setattr(CrossShardTransfer, "_action_after", lambda self, one, reply: DueAction(one.member, "delay"))
        Bench(redis_url, second_redis_url, rules=BACK).poller.poll()
    ((member, _),) = redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)
    redis.zadd(keys.SCHEDULE, {member: LONG_AGO})
    bench.drain()
    assert [job["jid"] for job in received(second_redis)] == ["a"]
    assert redis.keys("*") == []


def test_transfer_is_called_off_on_a_full_shard(bench, redis, second_redis, redis_url, second_redis_url):
    wait(redis, "a")
    bench.poller.poll()
    with full_memory(second_redis):
        Bench(redis_url, second_redis_url, rules=BACK).drain()
    assert redis.llen(keys.queue("job")) == 1


def test_due_job_is_not_marked_for_an_unavailable_shard(bench, redis):
    wait(redis, "a")
    bench.transfer._unavailable_until["second"] = float("inf")
    bench.drain()
    ((member, score),) = redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)
    assert TRANSFER not in json.loads(member)
    assert score > LONG_AGO


def write_there(second_redis, token, member):
    names = [keys.QUEUES, keys.transferred(token), keys.queue("there")]
    return RECEIVE_TRANSFER(second_redis, names, [1, 60_000, "inf", member, "there"])


def test_transfer_leaves_jobs_with_a_chosen_shard(bench, redis, second_redis):
    wait(redis, "a", aw_shard="main")
    wait(redis, "b", source=keys.RETRY, retry_count=1, aw_shard="main")
    bench.drain()
    assert second_redis.keys("*") == []
    jobs = received(redis)  # the queue follows the rules nevertheless
    assert sorted((job["jid"], job["aw_shard"]) for job in jobs) == [("a", "main"), ("b", "main")]


def test_transfer_uses_the_chosen_shard(redis, redis_url, second_redis_url):
    wait(redis, "a", aw_shard="second")
    Bench(redis_url, second_redis_url, rules=[RoutingRule("*", "job", "main")]).drain()
    assert redis.keys("*") == []


def test_transfer_keeps_the_status(bench, redis, second_redis):
    wait(redis, "a", source=keys.RETRY, status_expiration=60)
    redis.set(keys.status("a"), "retrying")
    shards = Shards({"main": bench.transfer._shards["main"], "second": bench.second})
    bench.drain()
    assert shards.look_up(["a"]) == {"a": "retrying"}
    StatusWriter(bench.second, ignore_failed_status).write_last_if_tracked(received(second_redis)[0], "running")
    assert shards.look_up(["a"]) == {"a": "running"}
    StatusWriter(bench.second, ignore_failed_status).write_last_if_tracked(received(second_redis)[0], "completed")
    assert shards.look_up(["a"]) == {"a": "completed"}
