"""Check the pushes of classes with ``fair_by``: each job goes to the sub-queue of its key, and a key with jobs has a turn."""

import json
import logging
from collections import Counter

import pytest

from framework.batches import Batch
from framework.declare.policy_options import Deduplicate
from framework.errors import BulkPushError, ShardUnavailableError
from framework.push.argument_checks import SizeLimits
from framework.store.script import RING
from framework.wire import keys
from framework.wire.sub_queues import SUB_QUEUE, arrival_queue, parent_of, sub_queue
from tests.harness import full_memory
from tests.push.conftest import LetPass, worker

pytestmark = pytest.mark.usefixtures("room")


def fair(**attributes):
    def perform(self, tenant, number: int):
        """Accept a tenant's job."""

    return worker(**{"perform": perform, "queue": "default", "fair_by": lambda args: args[0], **attributes})


def jobs_in(redis, name):
    return [json.loads(data)["args"] for data in reversed(redis.lrange(keys.queue(name), 0, -1))]


def turns(redis):
    return [key.decode() for key in redis.zrange(keys.turns("default"), 0, -1)]


def drain(redis):
    """Take every job as a process does that waits at the queue, and lets the next one come."""
    found = []
    while data := redis.rpop("queue:default"):
        found.append(json.loads(data)["args"])
        RING(redis, [], ["default"])
    return found


def test_pushes_wait_in_the_sub_queues_of_their_keys(pusher, redis):
    for middleware in [(), (LetPass,)]:
        redis.flushall()
        pusher.open(*middleware, limits=SizeLimits(compression_threshold=100))
        job = fair(status_expiration=60)
        # The first job goes on to the queue at once, which wakes a process.
        jids = [job.perform_async("a", 0), *job.perform_bulk([("a", 1), ("b", 2), ("a", 3), ("", 4), ("x" * 200, 5)])]
        assert None not in jids
        assert {redis.get(keys.status(jid)) for jid in jids} == {b"queued"}
        assert jobs_in(redis, "default") == [["a", 0], ["", 4]]
        assert (jobs_in(redis, "default~a"), jobs_in(redis, "default~b")) == ([["a", 1], ["a", 3]], [["b", 2]])
        long = parent_of(turns(redis)[-1]), sub_queue("default", "x" * 200)
        assert long[1] == f"default~{long[0]}"
        payload = json.loads(redis.lindex("queue:default~b", 0))
        assert (payload["queue"], payload[SUB_QUEUE]) == ("default", "default~b")
        assert arrival_queue(payload, "default") == "default~b"
        assert arrival_queue(payload, "elsewhere") == "elsewhere"
        # Each key in its turn; a sub-queue without jobs leaves nothing.
        drained = drain(redis)
        assert [args[1] for args in drained[:2]] == [0, 4]
        # The arguments of the last push are compressed.
        assert sorted(args[1] if len(args) == 2 else 5 for args in drained) == list(range(6))
        assert Counter(args[0] for args in drained[2:5]).most_common(1)[0][1] == 1
        assert redis.smembers(keys.QUEUES) == {b"default"}
        assert not redis.exists(keys.turns("default"))
        # Another queue than that of the class is not shared out.
        assert job.set(queue="other").perform_async("a", 6)
        assert jobs_in(redis, "other") == [["a", 6]]


def test_bulk_writes_several_sub_queues_by_one_script(pusher, redis):
    pusher.open()
    job = fair(status_expiration=60)
    job.perform_async("a", 0)
    redis.config_resetstat()
    jids = job.perform_bulk([("", 1), ("b", 2), ("a", 3), ("c", 4), ("b", 5)])
    assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
    assert {redis.get(keys.status(jid)) for jid in jids} == {b"queued"}
    found = {name: jobs_in(redis, name) for name in ("default", "default~a", "default~b", "default~c")}
    assert found == {
        "default": [["a", 0], ["", 1]],
        "default~a": [["a", 3]],
        "default~b": [["b", 2], ["b", 5]],
        "default~c": [["c", 4]],
    }
    assert turns(redis) == ["b", "a", "c"]
    assert [args[1] for args in drain(redis)] == [0, 1, 2, 3, 4, 5]


def test_bulk_keeps_the_levels_of_priorities(pusher, redis):
    pusher.open()
    job = fair(priority="normal")
    job.set(priority="high").perform_bulk([("b", 1), ("a", 2)])
    job.perform_bulk([("a", 3), ("b", 4)])
    assert drain(redis) == [["b", 1], ["a", 2], ["a", 3], ["b", 4]]


def test_bulk_with_an_unusable_sub_queue_loses_no_job(pusher, redis):
    pusher.open()
    redis.set(keys.queue("default~b"), "no list")
    job = fair()
    job.perform_bulk([("a", 1), ("b", 2), ("c", 3)])
    assert sorted(drain(redis)) == [["a", 1], ["b", 2], ["c", 3]]
    with pytest.raises(BulkPushError):
        job.perform_bulk([("b", 4), ("c", 5)])
    assert drain(redis) == []


def test_bulk_beyond_the_most_sub_queues_shares_one(pusher, redis):
    pusher.open()
    redis.zadd(keys.turns("default"), {f"tenant{number}": number for number in range(9_999)})
    redis.lpush("queue:default", b"{}")
    fair().perform_bulk([("tenant5", 1), ("new", 2), ("newer", 3)])
    assert (jobs_in(redis, "default~tenant5"), jobs_in(redis, "default~new")) == ([["tenant5", 1]], [["new", 2]])
    assert jobs_in(redis, "default~") == [["newer", 3]]


def test_locks_batches_and_dues_keep_the_key(pusher, redis):
    job = fair(idempotent=True, deduplicate=Deduplicate(including_scheduled=True))
    assert job.perform_async("z", 0)
    assert [jid is None for jid in job.perform_bulk([("a", 1), ("b", 1), ("a", 1), ("a", 2)])] == [
        False,
        False,
        True,
        False,
    ]
    assert (jobs_in(redis, "default~a"), jobs_in(redis, "default~b")) == ([["a", 1], ["a", 2]], [["b", 1]])
    assert job.perform_in(60, "a", 3)
    assert job.perform_async("a", 3) is None
    ((member, _),) = redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)
    assert json.loads(member)[SUB_QUEUE] == "default~a"
    batch = Batch()
    with batch.jobs():
        job.perform_async("b", 7)
        job.perform_bulk([("c", 8), ("b", 9)])
    assert [args[1] for args in jobs_in(redis, "default~b")] == [1, 7, 9]
    assert batch.status.pending == 3
    # The end of a batch gives no turns: its callback goes to the queue itself, or it would wait for a later push.
    ended = Batch()
    ended.on_success(job, "e", 10)
    with ended.jobs():
        pass
    assert jobs_in(redis, "default")[-1] == ["e", 10]
    assert redis.lrem("queue:default", 0, redis.lindex("queue:default", 0)) == 1
    assert sorted(args[1] for args in drain(redis)) == [0, 1, 1, 2, 7, 8, 9]


def test_hostile_keys_and_broken_redis_lose_no_job(pusher, redis, caplog):
    job = fair()
    job.perform_async("first", 0)
    for number, key in enumerate([None, True, 1.5, [1], {"a": 1}, "~", "a~b", "\n", "\u00e9", 7, ""], 1):
        with caplog.at_level(logging.WARNING, logger="framework"):
            assert job.perform_async(key, number)
    assert len([one for one in caplog.records if "fair_by.failed" in one.getMessage()]) == 1
    assert redis.llen("queue:default~7") == 1
    names = {name.decode() for name in redis.smembers(keys.QUEUES)} - {"default"}
    assert all(name.count("~") == 1 for name in names)
    assert sorted(args[1] for args in drain(redis)) == list(range(12))
    # A key of another type: the jobs wait in the queue itself.
    redis.set(keys.turns("default"), "garbage")
    job.perform_bulk([("a", 1), ("b", 2)])
    assert jobs_in(redis, "default") == [["a", 1], ["b", 2]]
    redis.delete(keys.turns("default"))
    redis.set("queue:default~c", "garbage")
    with pytest.raises(ShardUnavailableError, match="WRONGTYPE"):
        job.perform_async("c", 3)
    with full_memory(redis), pytest.raises(ShardUnavailableError, match="OOM"):
        job.perform_async("d", 4)
    assert not redis.exists("queue:default~d")
    # More than 10,000 keys: further ones share a sub-queue. A key whose jobs were deleted by hand only loses its turn.
    redis.zadd(keys.turns("default"), {f"gone{number}": number for number in range(10_000)})
    job.perform_bulk([("e", 5), ("f", 6)])
    assert jobs_in(redis, "default~") == [["e", 5], ["f", 6]]
    assert sorted(args[1] for args in drain(redis)) == [1, 2, 5, 6]
