"""Push jobs of a deduplicated class while it moves: of equal jobs on both shards one runs, whichever shard a push goes to."""

from datetime import timedelta

import pytest

from framework.declare import port, registry
from framework.declare.policy_options import Deduplicate
from framework.features.deduplication.push import Deduplicator
from framework.features.moves import mover as module
from framework.features.moves.mover import MoveProgress
from framework.features.moves.moves import ShardMoves
from framework.features.moves.records import read_moves
from framework.push.client import Client
from framework.route.router import Router
from framework.shard.shards import Shards
from framework.store.script import FIND_OWNERS
from framework.store.steps import UNPACED
from framework.wire import keys
from framework.wire.json import dumps, loads
from framework.wire.resources import LockDetails, LockTerms, UniqueJobs
from framework.wiring.client import bind_default
from tests.harness import opened
from tests.push.conftest import worker

QUEUE = keys.queue("default")
SHARDS = ("main", "second")
UNTIL_EXECUTED = Deduplicate("until_executed", ttl=timedelta(hours=1), if_deduplicated="reschedule_once")


class Movable:
    """A class of idempotent jobs that moves, and two producers: one knows the move at once, the other by what it is told."""

    def __init__(self, urls, **attributes):
        self.shards = {name: opened(url, name) for name, url in zip(SHARDS, urls, strict=True)}
        self.moves = ShardMoves(self.shards)
        self.moves.read()
        self.worker = worker(queue="default", idempotent=True, **attributes)
        self.producers = []
        self.new, self.old = self._producer(urls), self._producer(urls)
        self.record = None

    def _producer(self, urls):
        shards = Shards({name: opened(url, name) for name, url in zip(SHARDS, urls, strict=True)})
        client = Client(shards, Router([], SHARDS), locks=Deduplicator())
        client._moves_reader = read_moves
        self.producers.append(client)
        return client

    def push(self, client, *args):
        with port.override(client):
            return self.worker.perform_async(*args)

    def bulk(self, client, numbers):
        with port.override(client):
            return self.worker.perform_bulk([(number,) for number in numbers])

    def begin(self):
        self.record = self.moves.begun(self.moves.new("class", "Job", "main", "second", 100), 0)
        self.moves.publish(self.record)
        self.learn(self.new)

    def undo(self):
        self.record = self.moves.reversed(self.record)
        self.moves.publish(self.record)
        self.learn(self.new)

    @staticmethod
    def learn(client):
        for shard in client.shards.values():
            shard.moves_valid_until = 0.0

    def move(self):
        while self.moves.run(self.record, MoveProgress(), UNPACED):
            pass

    def jids(self, name):
        return [loads(data, None)["jid"] for data in self.shards[name].client.lrange(QUEUE, 0, -1)[::-1]]

    def begin_job(self, name):
        """Start the next job of a shard: its lock is free from then on."""
        client = self.shards[name].client
        job = loads(client.rpop(QUEUE), None)
        assert client.hget(job["idempotency_key"], "jid") == job["jid"].encode()
        client.delete(job["idempotency_key"])
        return job["jid"]

    def counted(self):
        found = [shard.client.hgetall(keys.COUNTERS) for shard in self.shards.values()]
        return sum(int(count) for one in found for count in one.values())

    def close(self):
        for shard in self.shards.values():
            shard.close()
        for client in self.producers:
            client.shards.close()


@pytest.fixture
def movable(redis, redis_url):
    """Each shard is one database of the server."""
    with registry.isolated():
        made = Movable((redis_url, f"{redis_url}?db=1"))
        yield made
        made.close()
    port.unbind()
    bind_default()


def test_push_finds_the_job_that_waits_on_the_old_shard(movable):
    first = movable.push(movable.old, 1)
    movable.begin()
    assert movable.push(movable.new, 1) is None
    other = movable.push(movable.new, 2)
    assert (movable.jids("main"), movable.jids("second")) == ([first], [other])
    assert movable.counted() == 1
    assert movable.begin_job("main") == first
    # It runs: from now on another job may wait.
    later = movable.push(movable.new, 1)
    assert movable.jids("second") == [other, later]


def test_push_by_old_rules_is_told_of_the_move(movable):
    movable.begin()
    on_new = movable.push(movable.new, 1)
    # What no other push has asked for goes to the old shard, and counts for pushes to the new one.
    forwarded = movable.push(movable.old, 2)
    assert movable.push(movable.new, 2) is None
    assert (movable.jids("main"), movable.jids("second")) == ([forwarded], [on_new])
    assert movable.push(movable.old, 1) is None
    movable.move()
    assert movable.jids("second") == [on_new, forwarded]
    # From then on it knows the move.
    assert movable.push(movable.old, 3) == movable.jids("second")[-1]


@pytest.mark.parametrize("way", ["bulk", "single"])
def test_push_that_is_told_writes_every_job_once(movable, way):
    movable.begin()
    known = movable.bulk(movable.new, range(3))
    pushed = movable.bulk(movable.old, range(6)) if way == "bulk" else [movable.push(movable.old, n) for n in range(6)]
    assert pushed[:3] == [None] * 3
    assert all(pushed[3:])
    assert movable.jids("second")[:3] == known
    assert sorted([*movable.jids("main"), *movable.jids("second")]) == sorted([*known, *pushed[3:]])
    assert movable.counted() == 3


def test_moved_lock_is_seen_by_producers_with_old_rules(movable):
    first = movable.push(movable.old, 1)
    movable.begin()
    movable.move()
    assert movable.push(movable.old, 1) is None
    assert movable.begin_job("second") == first
    again = movable.push(movable.old, 1)
    assert (movable.jids("main"), movable.jids("second")) == ([], [again])


@pytest.mark.parametrize("moment", ["before it is written", "behind it", "when it has begun there"])
def test_job_in_flight_counts_until_it_begins(movable, monkeypatch, moment):
    first = movable.push(movable.old, 1)
    movable.begin()
    write, pushed = module.Deliverer._write, []

    def push():
        pushed.extend(movable.push(client, 1) for client in (movable.new, movable.old))

    def written(self, *arguments):
        if moment == "before it is written":
            push()
        done = write(self, *arguments)
        if moment == "when it has begun there":
            assert movable.begin_job("second") == first
        if moment != "before it is written":
            push()
        return done

    monkeypatch.setattr(module.Deliverer, "_write", written)
    movable.move()
    if moment == "when it has begun there":
        # Its mover may be dead: what it has left on the old shard holds up no push.
        assert pushed[0]
        assert movable.jids("second") == pushed[:1]
    else:
        assert pushed == [None, None]
        assert movable.jids("second") == [first]


def test_equal_jobs_that_meet_are_merged(movable):
    """A producer could not look, as the old shard did not answer it."""
    movable.begin()
    waits = movable.push(movable.new, 1)
    main = movable.shards["main"].client
    main.delete(*main.scan_iter("aw:lock:*"))
    arrives, other = movable.push(movable.old, 1), movable.push(movable.old, 2)
    assert movable.jids("main") == [arrives, other]
    movable.move()
    assert movable.jids("second") == [waits, other]
    lock = loads(movable.shards["second"].client.lrange(QUEUE, 0, -1)[-1], None)["idempotency_key"]
    assert movable.shards["second"].client.hget(lock, "duplicates") == b"1"
    assert movable.counted() == 1


def test_equal_job_of_a_tracked_class_is_discarded(redis, redis_url):
    with registry.isolated():
        movable = Movable((redis_url, f"{redis_url}?db=1"), status_expiration=60)
        movable.begin()
        movable.push(movable.new, 1)
        redis.delete(*redis.scan_iter("aw:lock:*"))
        arrives = movable.push(movable.old, 1)
        movable.move()
        assert movable.shards["second"].client.get(keys.status(arrives)) == b"discarded"
        movable.close()
    port.unbind()
    bind_default()


def test_push_goes_on_while_the_old_shard_is_away(movable, monkeypatch):
    movable.begin()
    assert movable.push(movable.new, 1)
    old = movable.new.shards["main"]
    monkeypatch.setattr(old._connection, "run_script", opened("redis://127.0.0.1:1")._connection.run_script)
    jid = movable.push(movable.new, 2)
    assert movable.jids("second")[-1] == jid


def test_undone_move_lets_pushes_in_again(movable):
    movable.begin()
    here = movable.push(movable.new, 1)
    movable.undo()
    # It waits on the shard that the jobs leave.
    assert movable.push(movable.new, 1) is None
    movable.move()
    movable.moves.end(movable.record)
    movable.learn(movable.new)
    assert movable.jids("main") == [here]
    assert movable.push(movable.new, 1) is None
    movable.begin_job("main")
    assert movable.push(movable.new, 1)
    # A fence of the move holds up nothing.
    movable.shards["main"].client.hset(f"{keys.LOCKS}fence", "moved", "")
    unique = UniqueJobs(LockTerms("Job", 60, True, "n").encode(LockDetails({})), [b"{}"], [f"{keys.LOCKS}fence"], ["j"])
    assert movable.shards["main"].enqueue_unique("default", unique) == [">"]
    assert movable.shards["main"].enqueue_unique("default", unique._replace(former=[()])) == [""]


def test_rerun_of_a_running_job_is_noted_from_the_new_shard(redis, redis_url):
    with registry.isolated():
        movable = Movable((redis_url, f"{redis_url}?db=1"), deduplicate=UNTIL_EXECUTED)
        movable.push(movable.old, 1)
        (lock,) = redis.scan_iter("aw:lock:*")
        redis.hset(lock, "begun", "run")
        movable.begin()
        assert movable.push(movable.new, 1) is None
        assert redis.hget(lock, "duplicates") == b"1"
        movable.close()
    port.unbind()
    bind_default()


def test_find_owners_works_on_a_full_server(redis):
    redis.hset("held", "jid", "a")
    redis.config_set("maxmemory", 1)
    try:
        found = FIND_OWNERS(redis, ["held", "free"], [dumps(["b", "b"]), "1", 60_000, ""])
    finally:
        redis.config_set("maxmemory", 0)
    assert found == [b"a", b""]
    assert redis.hgetall("held")[b"duplicates"] == b"1"
    assert redis.hgetall("free") == {b"moved": b""}
    assert 50_000 < redis.pttl("free") <= 60_000
