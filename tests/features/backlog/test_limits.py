"""Test classes with max_waiting: how many jobs a shard accepts, by each way of pushing, and what becomes of the others."""

import json
import threading
from datetime import timedelta

import pytest

from framework import MaxWaiting
from framework.application_worker import ApplicationWorker
from framework.declare import port, registry
from framework.declare.policy_options import Deduplicate
from framework.errors import BacklogFullError, BulkPushError, DeclarationError
from framework.features.backlog.push import DROPPED, limit_pushes
from framework.features.deduplication.push import Deduplicator
from framework.features.fairness.push import add_sub_queues
from framework.features.reliable_push.reliable_push import KeepLimits, ReliablePush
from framework.push.client import Client
from framework.route.router import Router
from framework.shard.shards import Shards
from framework.wire import keys
from framework.wiring.client import bind_default
from tests.harness import full_memory, opened


def worker(max_waiting=100, name="Mail", **attributes):
    def perform(self, number: int):
        """Accept a number."""

    body = {"feature_category": "not_owned", "wire_name": name, "queue": "mail", "perform": perform}
    return type(name, (ApplicationWorker,), {**body, "max_waiting": max_waiting, **attributes})


@pytest.fixture
def client(each_redis_url):
    """Push through a client with the steps of backlog and fairness; return a function that opens it with options."""
    shards = Shards({"main": opened(each_redis_url)})

    def connect(**options):
        steps = [add_sub_queues, limit_pushes]
        made = Client(shards, Router([], ["main"]), locks=Deduplicator(), steps=steps, **options)
        port.bind(made)
        return made

    with registry.isolated():
        connect()
        yield connect
    port.unbind()
    bind_default()
    shards["main"].close()


def accepted(redis, name="Mail"):
    return int(redis.hget(keys.ACCEPTED_JOBS, name) or 0)


def accepted_bytes(redis, name="Mail"):
    return int(redis.hget(keys.ACCEPTED_BYTES, name) or 0)


def fill(cls, push):
    """Push one job at a time until the class is full; return their number."""
    count = 0
    with pytest.raises(BacklogFullError):
        while count < 1_000:
            push(cls, count)
            count += 1
    return count


WAYS = {
    "at once": ({}, lambda cls, number: cls.perform_async(number)),
    "later": ({}, lambda cls, number: cls.perform_in(60, number)),
    "at a time": ({}, lambda cls, number: cls.perform_at(4_000_000_000, number)),
    "fair": ({"priority": "high"}, lambda cls, number: cls.perform_async(number)),
    "unique": ({"idempotent": True}, lambda cls, number: cls.perform_async(number)),
    "unique later": (
        {"idempotent": True, "deduplicate": Deduplicate(including_scheduled=True)},
        lambda cls, number: cls.perform_in(60, number),
    ),
    "window": (
        {"idempotent": True, "deduplicate": Deduplicate("debounce", window=timedelta(seconds=30))},
        lambda cls, number: cls.perform_async(number),
    ),
    "tracked": ({"status_expiration": 60}, lambda cls, number: cls.perform_async(number)),
}


@pytest.mark.parametrize("way", WAYS)
def test_single_pushes_stop_at_the_limit(client, each_redis, way):
    attributes, push = WAYS[way]
    assert fill(worker(7, **attributes), push) == 7
    assert accepted(each_redis) == 7
    jobs = each_redis.zcard(keys.SCHEDULE) + sum(each_redis.llen(key) for key in each_redis.keys("queue:mail*"))
    assert jobs == 7
    with pytest.raises(BacklogFullError):
        push(registry.find("Mail"), 99)
    assert len(each_redis.keys("aw:status:*")) == (7 if way == "tracked" else 0)


@pytest.mark.parametrize("way", ["at once", "fair", "unique"])
def test_bulk_writes_the_jobs_that_fit_and_names_them(client, each_redis, way):
    cls = worker(100, **WAYS[way][0])
    with pytest.raises(BulkPushError) as caught:
        cls.perform_bulk([(number,) for number in range(150)])
    error = caught.value
    assert isinstance(error.__cause__, BacklogFullError)
    assert (error.failed_from, len(error.jids), error.maybe_written) == (100, 100, False)
    waiting = [json.loads(data) for key in each_redis.keys("queue:mail*") for data in each_redis.lrange(key, 0, -1)]
    assert {job["args"][0] for job in waiting} == set(range(100))
    each_redis.delete(*each_redis.keys("queue:mail*"), keys.ACCEPTED_JOBS, keys.ACCEPTED_BYTES)
    rest = error.resume()
    assert len(rest) == 50
    assert None not in rest
    assert accepted(each_redis) == 50


def test_scheduled_bulk_writes_the_jobs_that_fit(client, each_redis):
    with pytest.raises(BulkPushError) as caught:
        worker(1_200).perform_bulk_in(60, [(number,) for number in range(1_500)])
    assert caught.value.failed_from == each_redis.zcard(keys.SCHEDULE) == accepted(each_redis) == 1_200


def test_producers_together_fill_the_limit_exactly(client, each_redis):
    cls, written = worker(100), []

    def push():
        with pytest.raises(BulkPushError) as caught:
            cls.perform_bulk([(number,) for number in range(150)])
        written.append(caught.value.failed_from)

    threads = [threading.Thread(target=push) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sum(written) == each_redis.llen("queue:mail") == accepted(each_redis) == 100


def test_bytes_are_limited_and_counted(client, each_redis):
    cls = worker(MaxWaiting(bytes=3_000))
    count = fill(cls, lambda cls, number: cls.perform_async(number))
    waiting = sum(map(len, each_redis.lrange("queue:mail", 0, -1)))
    assert waiting <= accepted_bytes(each_redis) <= 3_000
    assert 10 <= count <= 16
    assert all(json.loads(data)["aw_accepted"] > 0 for data in each_redis.lrange("queue:mail", 0, -1))


def test_duplicate_is_not_counted(client, each_redis):
    cls = worker(5, idempotent=True)
    jids = [cls.perform_async(1) for _ in range(3)]
    assert jids[1:] == [None, None]
    cls.perform_bulk([(1,), (2,), (2,)])
    assert accepted(each_redis) == each_redis.llen("queue:mail") == 2


def test_class_without_the_attribute_is_not_counted(client, each_redis):
    worker(None).perform_async(1)
    assert each_redis.exists(keys.ACCEPTED_JOBS) == 0
    assert b"aw_accepted" not in each_redis.lindex("queue:mail", 0)


def test_dropped_job_is_counted_and_logged(client, each_redis, caplog):
    cls = worker(2, on_full="drop")
    jids = cls.perform_bulk([(number,) for number in range(5)])
    assert jids[2:] == [None] * 3
    assert cls.perform_async(9) is None
    assert each_redis.llen("queue:mail") == 2
    assert each_redis.hgetall(keys.COUNTERS) == {f'{DROPPED}{{worker="Mail"}}'.encode(): b"4"}
    assert "jobs are dropped" in caplog.text


def test_kept_jobs_are_written_when_there_is_room(client, each_redis, tmp_path, each_redis_url):
    keeper = ReliablePush(
        tmp_path / "kept", KeepLimits(1_000, 10_000_000), {"main": opened(each_redis_url)}, period_s=60
    )
    client(fallback=keeper)
    cls = worker(20, on_full="keep")
    jids = cls.perform_bulk([(number,) for number in range(25)])
    assert len(set(jids)) == 25
    worker(None, "Other").perform_async(1)
    assert (each_redis.llen("queue:mail"), keeper.kept[0]) == (21, 5)
    keeper.replay()
    assert (accepted(each_redis), keeper.kept[0]) == (20, 5)
    each_redis.delete(keys.ACCEPTED_JOBS)
    keeper.replay()
    assert (accepted(each_redis), keeper.kept[0]) == (5, 0)
    assert each_redis.llen("queue:mail") == 26


def test_full_class_without_a_push_file_is_refused(client):
    cls = worker(1, on_full="keep")
    cls.perform_async(1)
    with pytest.raises(BacklogFullError):
        cls.perform_async(2)


def test_full_redis_refuses_and_counts_nothing(client, each_redis):
    cls = worker(5)
    with full_memory(each_redis), pytest.raises(Exception, match="OOM"):
        cls.perform_async(1)
    assert accepted(each_redis) == 0


def test_count_of_another_type_limits_nothing(client, each_redis):
    each_redis.set(keys.ACCEPTED_JOBS, "garbage")
    cls = worker(1)
    assert cls.perform_async(1)
    assert cls.perform_async(2)


@pytest.mark.parametrize("wrong", [0, -1, True, "many", 1.5])
def test_wrong_limit_is_refused(wrong):
    with registry.isolated(), pytest.raises(DeclarationError, match="max_waiting"):
        worker(wrong)


def test_limit_of_nothing_is_refused():
    with pytest.raises(DeclarationError, match="jobs or bytes"):
        MaxWaiting()


def test_error_names_class_limit_and_remedy(client):
    cls = worker(1)
    cls.perform_async(1)
    with pytest.raises(
        BacklogFullError, match=r"Mail: its backlog on shard 'main' is full: 1 job .*allows 1 job.*jobs memory"
    ):
        cls.perform_async(2)
