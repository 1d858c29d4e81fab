"""Push jobs of a class that is spread over several shards: each shard is one database of the server."""

from datetime import timedelta

import pytest

from framework import spread
from framework.declare import registry
from framework.declare.policy_options import Deduplicate
from framework.declare.request import PushRequest
from framework.errors import ArgumentsError, BulkPushError, ShardUnavailableError
from framework.route.route_moves import MoveEpoch, RouteMove, RouteMoves
from framework.wire import keys
from framework.wire.json import loads
from framework.wire.resources import IDEMPOTENCY_KEY
from tests.harness import opened
from tests.push.conftest import Pusher, worker

NAMES = ("main", "second", "third")
SEVERAL = spread(*NAMES)
UNTIL_EXECUTED = Deduplicate("until_executed", ttl=timedelta(hours=1), including_scheduled=True)


class Spreading(Pusher):
    """Pushes to three shards."""

    def jobs(self):
        """Return the jobs in the queue of each shard."""
        return self._loaded(lambda client: client.lrange(keys.queue("default"), 0, -1))

    def scheduled(self):
        return self._loaded(lambda client: client.zrange(keys.SCHEDULE, 0, -1))

    def _loaded(self, read):
        return {name: [loads(data, None) for data in read(shard.client)] for name, shard in self.shards.items()}

    def locks(self):
        """Return how many shards have each lock."""
        clients = [shard.client for shard in self.shards.values()]
        found = [key for one in clients for key in one.scan_iter("aw:lock:*") if one.hexists(key, "jid")]
        return {key: found.count(key) for key in found}


@pytest.fixture
def pusher(redis, redis_url):
    shards = {name: opened(f"{redis_url}?db={number}", name) for number, name in enumerate(NAMES)}
    with registry.isolated():
        yield Spreading(shards)
    for shard in shards.values():
        shard.close()


def ids(found):
    return {name: {job["jid"] for job in jobs} for name, jobs in found.items()}


def test_jobs_without_a_lock_are_spread_by_their_ids(pusher):
    hot = worker(queue="default", shard=SEVERAL)
    jids = [hot.perform_async(number) for number in range(20)] + hot.perform_bulk([(number,) for number in range(40)])
    later = [hot.perform_in(60, 1) for _ in range(10)] + hot.perform_bulk_in(60, [(number,) for number in range(30)])
    assert ids(pusher.jobs()) == {name: {jid for jid in jids if SEVERAL.shard_of(jid) == name} for name in NAMES}
    assert ids(pusher.scheduled()) == {name: {jid for jid in later if SEVERAL.shard_of(jid) == name} for name in NAMES}
    # The ids of a bulk are in the order of its arguments.
    args = {job["jid"]: job["args"][0] for jobs in pusher.jobs().values() for job in jobs}
    assert [args[jid] for jid in jids[20:]] == list(range(40))
    chosen = hot.set(shard="second").perform_async(7)
    assert chosen in ids(pusher.jobs())["second"]


@pytest.mark.parametrize("way", ["plain", "middleware"])
def test_equal_jobs_meet_on_one_shard(pusher, way):
    class Same:
        def call(self, cls, job, queue, pool):
            yield

    pusher.open(*([Same] if way == "middleware" else []))
    hot = worker(queue="default", shard=SEVERAL, idempotent=True, deduplicate=UNTIL_EXECUTED)
    first = [hot.perform_async(number) for number in range(12)]
    assert all(first)
    again = hot.perform_bulk([(number,) for number in range(24)])
    assert again[:12] == [None] * 12
    assert all(again[12:])
    assert not any(hot.perform_in(60, number) for number in range(24))
    found = pusher.jobs()
    assert all(found.values())
    for name, jobs in found.items():
        assert all(SEVERAL.shard_of(job[IDEMPOTENCY_KEY]) == name for job in jobs)
    assert sum(map(len, found.values())) == 24
    assert set(pusher.locks().values()) == {1}


def test_bulk_goes_on_after_the_failure_of_one_shard(pusher):
    hot = worker(queue="default", shard=SEVERAL, idempotent=True)
    third = pusher.shards["third"]
    third.client.set(keys.queue("default"), "no list")
    with pytest.raises(BulkPushError) as raised:
        hot.perform_bulk([(number,) for number in range(30)])
    assert isinstance(raised.value.__cause__, ShardUnavailableError)
    assert raised.value.__cause__.shard == "third"
    third.client.delete(keys.queue("default"))
    jids = raised.value.resume()
    found = ids(pusher.jobs())
    assert set().union(*found.values()) == set(jids)
    assert sum(map(len, found.values())) == 30


def test_part_of_a_moved_class_goes_to_its_target_at_once(pusher):
    moved = RouteMove("1", "class", "Job", "main", "second", 50)
    pusher.client._router.use_moves(RouteMoves([moved]))
    hot = worker(queue="default", idempotent=True)
    jids = hot.perform_bulk([(number,) for number in range(40)])
    assert not any(hot.perform_async(number) for number in range(40))
    found = pusher.jobs()
    assert min(len(found["main"]), len(found["second"])) > 8
    assert len(found["main"]) + len(found["second"]) == len(jids)
    assert set(pusher.locks().values()) == {1}


def test_jobs_that_belong_together_are_on_the_first_shard(pusher):
    hot = worker(queue="default", shard=SEVERAL)
    assert {pusher.client.prepare(PushRequest(hot.declaration(), [1]), {}).shard for _ in range(9)} == {"main"}
    locked = worker("Locked", queue="default", shard=SEVERAL, idempotent=True)
    with pytest.raises(ArgumentsError, match="has its locks on several shards"):
        pusher.client.prepare(PushRequest(locked.declaration(), [1]), {})
    named = PushRequest(locked.declaration(), [1], options={"shard": "second"})
    assert pusher.client.prepare(named, {}).shard == "second"


def test_push_follows_a_move_of_one_of_the_shards(pusher):
    hot = worker(queue="default", shard=SEVERAL)
    assert len({hot.perform_async(1) for _ in range(9)}) == 9
    for shard in pusher.shards.values():
        shard.client.delete(keys.queue("default"))
    moved = MoveEpoch("1", 1, RouteMove("1", "class", "Job", "third", "second"))
    pusher.client._moves_reader = lambda shard: [moved] if shard.name == "third" else []
    pusher.shards["third"].moves_valid_until = 0.0
    jids = [hot.perform_async(number) for number in range(30)]
    found = ids(pusher.jobs())
    assert not found["third"]
    assert found["main"] == {jid for jid in jids if SEVERAL.shard_of(jid) == "main"}
    assert len(found["second"]) == 30 - len(found["main"])
