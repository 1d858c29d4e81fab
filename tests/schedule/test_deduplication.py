"""Check due jobs of deduplicated classes: the lock is taken by the script that moves them; duplicates are dropped."""

import json
import logging

import pytest

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.declare.policy_options import Deduplicate
from framework.declare.spread import spread
from framework.features.deduplication.push import Deduplicator
from framework.finish.status_writer import StatusWriter
from framework.push.argument_checks import SizeLimiter, SizeLimits
from framework.route.route_moves import RouteMove, RouteMoves
from framework.route.router import Router
from framework.schedule.cross_shard import CrossShardTransfer
from framework.schedule.due_job_planner import DestinationResolver, DueJobPlanner
from framework.schedule.poller import Poller, PollTiming
from framework.settings.model import RoutingRule
from framework.shard.shard import Shard
from framework.store.connect import Endpoint
from framework.wire import keys
from framework.wire.json import dumps
from framework.wire.keys import SetLimits
from framework.wire.resources import IDEMPOTENCY_KEY, lock_key
from tests.harness import compressed, encoded, full_memory, opened, unwrapped
from tests.schedule.test_cross_shard import ignore_failed_status
from tests.schedule.test_poller import LIMITER, LONG_AGO, Events

KEY = lock_key("Job", b"[1]")


@pytest.fixture(autouse=True)
def alone():
    with registry.isolated():
        yield


def worker(policy=None, **attributes):
    chosen = {} if policy is None else {"deduplicate": policy}
    body = {"feature_category": "not_owned", "wire_name": "Job", "queue": "default", "idempotent": True, **chosen}

    def perform(self, *args):
        """Accept any arguments."""

    return type("JobWorker", (ApplicationWorker,), {**body, "perform": perform, **attributes})


class Bench:
    def __init__(self, url, second_url=None, *middleware, enabled=None, moves=()):
        self.events = Events()
        main = opened(url)
        shards = {"main": main}
        rules = []
        if second_url is not None:
            shards["second"] = Shard("second", Endpoint(second_url), role="tests")
            rules = [] if moves else [RoutingRule("*", "there", "second")]
        transfer = CrossShardTransfer(main.client, "main", shards, self.events)
        router = Router(rules, list(shards))
        router.use_moves(RouteMoves(moves))
        preparation = DueJobPlanner(
            self.events,
            DestinationResolver(router, "main"),
            transfer,
            StatusWriter(main, ignore_failed_status),
            middleware=middleware,
            limiter=LIMITER,
            locks=Deduplicator(enabled) if enabled else Deduplicator(),
        )
        self.poller = Poller(main.client, self.events, preparation, transfer, PollTiming(main.client, 1.0), SetLimits())

    def drain(self):
        while self.poller.poll():
            pass


def due(redis, *members, source=keys.SCHEDULE):
    redis.zadd(source, {member: LONG_AGO + number for number, member in enumerate(members)})


def owned(redis, owner, **fields):
    redis.hset(KEY, mapping={"jid": owner, **fields})
    redis.pexpire(KEY, 5_000)


def owner(redis, key=KEY):
    found = redis.hget(key, "jid")
    return found and found.decode()


def jids(redis, queue="default"):
    return [json.loads(data)["jid"] for data in reversed(redis.lrange(keys.queue(queue), 0, -1))]


@pytest.mark.proves("R41")
@pytest.mark.parametrize("source", [keys.SCHEDULE, keys.RETRY])
def test_due_job_takes_its_lock_before_its_duplicates(redis, redis_url, source, caplog):
    worker()
    due(redis, *(encoded(jid=jid, args=[1], status_expiration=60) for jid in "ab"), encoded(jid="c", args=[2]))
    with caplog.at_level(logging.INFO, logger="framework"):
        Bench(redis_url).drain()
    assert jids(redis) == ["a", "c"]
    assert owner(redis) == "a"
    assert 590_000 < redis.pttl(KEY) <= 600_000
    assert json.loads(redis.lindex("queue:default", -1))[IDEMPOTENCY_KEY] == KEY
    assert redis.get("aw:status:b") == b"discarded"
    assert redis.get("aw:status:a") is None
    (line,) = [one.getMessage() for one in caplog.records]
    assert "Job JID-b: deduplicated: until executing" in line
    assert "duplicate-of='a'" in line
    assert redis.zcard(source) == 0


@pytest.mark.proves("R41")
def test_due_job_with_its_lock_renews_it(redis, redis_url):
    worker(Deduplicate(including_scheduled=True))
    owned(redis, "a", **{"wal:main": "0/1"})
    due(redis, encoded(jid="a", args=[1], idempotency_key=KEY, deferred=True, retry_count=3))
    Bench(redis_url).drain()
    assert jids(redis) == ["a"]
    assert 590_000 < redis.pttl(KEY) <= 600_000
    assert redis.hget(KEY, "wal:main") == b"0/1"


def test_due_retry_that_is_a_duplicate_is_dropped(redis, redis_url):
    worker()
    owned(redis, "z")
    seen = {"wal_locations": {"main": "0/5", "ci": "0/1"}, "dedup_wal_locations": {"main": "1/0"}}
    due(redis, encoded(jid="a", args=[1], idempotency_key=KEY, **seen), source=keys.RETRY)
    Bench(redis_url).drain()
    assert jids(redis) == []
    assert redis.hmget(KEY, "jid", "wal:main", "wal:ci", "duplicates") == [b"z", b"1/0", b"0/1", b"1"]


def test_due_job_not_idempotent_names_the_original(redis, redis_url, caplog):
    worker(Deduplicate(), idempotent=False)
    owned(redis, "z")
    due(redis, encoded(jid="a", args=[1]))
    with caplog.at_level(logging.INFO, logger="framework"):
        Bench(redis_url).drain()
    assert json.loads(redis.lindex("queue:default", 0))["duplicate-of"] == "z"
    assert owner(redis) == "z"
    assert not caplog.records


@pytest.mark.parametrize(
    "fields",
    [
        {"idempotency_key": "resque:gitlab:duplicate:default:abc"},
        {"idempotency_key": 7},
        {"jid": None},
        {"jid": ""},
        {"class": "Unknown"},
        {"args": ["!no base64"], "compressed": True},
    ],
)
def test_due_job_of_another_writer_gets_no_lock(redis, redis_url, fields):
    worker()
    due(redis, encoded(**{"jid": "a", "args": [1], **fields}))
    Bench(redis_url).drain()
    payload = json.loads(redis.lindex("queue:default", 0))
    assert {name: payload[name] for name in fields} == fields
    assert set(redis.keys("*")) == {b"queue:default", b"queues"}
    assert payload.get(IDEMPOTENCY_KEY) == fields.get("idempotency_key")


def test_due_job_with_odd_arguments_keeps_its_bytes(redis, redis_url):
    worker()
    due(redis, b'{"class":"Job","args":[' + b"[" * 70 + b"]" * 70 + b'],"queue":"default","jid":"a"}')
    Bench(redis_url).drain()
    assert b"[" * 70 in redis.lindex("queue:default", 0)
    assert redis.keys("aw:lock:*") == []


def test_due_job_compressed_has_the_same_lock_key(redis, redis_url):
    worker()
    due(redis, json.dumps(compressed(["x" * 500], jid="a")))
    Bench(redis_url).drain()
    assert owner(redis, lock_key("Job", dumps(["x" * 500]))) == "a"


def test_due_job_with_its_flag_off_takes_no_lock(redis, redis_url):
    worker(Deduplicate(feature_flag="dedup_job"))
    due(redis, *(encoded(jid=jid, args=[1]) for jid in "ab"))
    Bench(redis_url, enabled=lambda shard, flag: False).drain()
    assert jids(redis) == ["a", "b"]
    assert not redis.exists(KEY)


def test_due_job_dropped_by_a_middleware_frees_its_lock(redis, redis_url):
    def refuse(worker, job, queue, pool):
        return
        yield

    worker()
    owned(redis, "a")
    due(redis, encoded(jid="a", args=[1], idempotency_key=KEY))
    Bench(redis_url, None, refuse).drain()
    assert not redis.exists(KEY, keys.SCHEDULE)


@pytest.mark.campaign
def test_due_large_job_dropped_frees_its_lock(redis, redis_url, monkeypatch):
    """The poller reads a job above the default limit once, with the higher `size_limit.decoded_limit`."""

    def refuse(worker, job, queue, pool):
        return
        yield

    limits = SizeLimits(decompressed_limit=1_000_000, decoded_limit=1_000_000_000)
    monkeypatch.setattr("tests.schedule.test_deduplication.LIMITER", SizeLimiter(limits, None))
    worker()
    owned(redis, "a")
    due(redis, encoded(jid="a", args=[[[]] * 4_500_000], idempotency_key=KEY))
    Bench(redis_url, None, refuse).drain()
    assert not redis.exists(KEY, keys.SCHEDULE)


def test_due_job_malformed_frees_its_lock(redis, redis_url):
    worker()
    owned(redis, "a")
    member = encoded("Unknown", jid="a", queue=None, idempotency_key=KEY)
    due(redis, member, b"no json")
    Bench(redis_url).drain()
    dead = set(redis.zrange(keys.DEAD, 0, -1))
    assert {unwrapped(stored) for stored in dead} == {member, b"no json"}
    assert not redis.exists(KEY)


def test_due_job_on_a_full_server_moves_with_its_lock(redis, redis_url):
    worker()
    due(redis, encoded(jid="a", args=[1]), encoded(jid="b", args=[1]))
    bench = Bench(redis_url)
    with full_memory(redis):
        bench.poller.poll()
    assert jids(redis) == ["a"]
    assert owner(redis) == "a"


# --- to another shard -----------------------------------------------------------------------------------------------


def test_transferred_job_takes_its_lock_there(redis, second_redis, redis_url, second_redis_url, caplog):
    worker(queue=None)
    owned(redis, "a")
    due(redis, *(encoded(jid=jid, args=[1], queue="job") for jid in "ab"))
    with caplog.at_level(logging.INFO, logger="framework"):
        Bench(redis_url, second_redis_url).drain()
    assert jids(second_redis, "there") == ["a"]
    assert owner(second_redis) == "a"
    assert second_redis.hget(KEY, "duplicates") == b"1"
    assert redis.keys("*") == [KEY.encode()]  # the job names no lock, so it owns none
    assert len([one for one in caplog.records if "JID-b: deduplicated" in one.getMessage()]) == 1


def test_transferred_job_frees_its_lock_here(redis, second_redis, redis_url, second_redis_url):
    worker(queue=None)
    owned(redis, "a")
    due(redis, encoded(jid="a", args=[1], queue="job", idempotency_key=KEY))
    bench = Bench(redis_url, second_redis_url)
    bench.poller.poll()  # marked
    assert owner(redis) == "a"
    bench.drain()
    assert owner(second_redis) == "a"
    assert redis.keys("*") == []


def test_transferred_duplicate_is_dropped(redis, second_redis, redis_url, second_redis_url):
    worker(queue=None)
    owned(second_redis, "z")
    owned(redis, "a")
    due(redis, encoded(jid="a", args=[1], queue="job", idempotency_key=KEY))
    Bench(redis_url, second_redis_url).drain()
    assert jids(second_redis, "there") == []
    assert redis.keys("*") == []
    assert second_redis.hmget(KEY, "jid", "duplicates") == [b"z", b"1"]


def test_due_jobs_of_two_versions_are_no_duplicates(redis, redis_url):
    """Jobs of two versions run different methods; two jobs of one version are equal."""
    worker(version=1, perform_v0=lambda self, *args: None)
    due(
        redis,
        encoded(jid="old", args=[1]),
        encoded(jid="new", args=[1], version=1),
        encoded(jid="twice", args=[1]),
        encoded(jid="again", args=[1], version=1),
    )
    Bench(redis_url).drain()
    assert jids(redis) == ["old", "new"]
    assert (owner(redis), owner(redis, lock_key("Job", b"[1]", 1))) == ("old", "new")


def test_due_jobs_of_a_spread_class_meet_their_equals(redis, redis_url, second_redis, second_redis_url):
    several = spread("main", "second")
    worker(shard=several)
    due(redis, *(encoded(args=[number % 8], jid=f"{number:024x}") for number in range(16)))
    Bench(redis_url, second_redis_url).drain()
    for name, client in (("main", redis), ("second", second_redis)):
        jobs = [json.loads(data) for data in client.lrange(keys.queue("default"), 0, -1)]
        assert jobs
        assert {several.shard_of(job[IDEMPOTENCY_KEY]) for job in jobs} == {name}
        assert sorted(client.scan_iter("aw:lock:*")) == sorted(job[IDEMPOTENCY_KEY].encode() for job in jobs)
    assert redis.llen(keys.queue("default")) + second_redis.llen(keys.queue("default")) == 8
    assert not redis.zcard(keys.SCHEDULE)


@pytest.mark.parametrize("state", ["waits here", "in flight", "has begun there"])
def test_due_job_that_moves_finds_its_equal_on_the_old_shard(redis, redis_url, second_redis, second_redis_url, state):
    worker()
    bench = Bench(redis_url, second_redis_url, moves=[RouteMove("1", "class", "Job", "main", "second")])
    owned(redis, "first", **({} if state == "waits here" else {"moved": "aw:moved:token"}))
    if state == "has begun there":
        second_redis.set("aw:moved:token", 1)
    due(redis, encoded(jid="later", args=[1], wal_locations={"main": "0/5"}), encoded(jid="other", args=[2]))
    bench.drain()
    assert jids(second_redis) == (["later", "other"] if state == "has begun there" else ["other"])
    assert redis.hget(KEY, "wal:main") == (b"0/5" if state == "waits here" else None)
    assert not redis.exists(keys.SCHEDULE, keys.queue("default"))
    # A push here by the old rules is told of the move.
    other = lock_key("Job", b"[2]")
    assert redis.hgetall(other) == {b"moved": b""}
