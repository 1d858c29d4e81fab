"""Compare the actions of the data API with those of Ruby's ``sidekiq/api``: the same data, the same result in Redis."""

import json
import time

import pytest

from framework import admin
from framework.admin.port import Access, opener
from framework.all_settings import load
from framework.shard.shards import Shards
from framework.wire import keys
from framework.wire.job import timestamp
from tests.harness import encoded, opened

NOW = float(int(time.time())) + 0.25
SETS = {"schedule": admin.scheduled, "retry": admin.retries, "dead": admin.dead}
FIELDS = {
    "queue": "mail",
    "retry_count": 2,
    "failed_at": NOW - 50,
    "retried_at": NOW - 5,
    "error_class": "ArgumentError",
    "error_message": "é😀",
    "bid": "b-1_x",
    "deep": {"a": [1.5, None, {"c": 2**70}]},
}


@pytest.fixture
def both_sides(ruby, environment, redis, redis_url):
    """Return a function that runs an action in Ruby and in Python on the same jobs, and returns both results."""
    shards = Shards({"main": opened(redis_url)})

    def result():
        queued = [json.loads(data) for data in redis.lrange("queue:mail", 0, -1)]
        for job in queued:
            # Sidekiq 8 writes milliseconds.
            assert abs((timestamp(job.pop("enqueued_at")) or 0.0) - time.time()) < 60
        sets = {
            key: [
                (data, "now" if abs(score - time.time()) < 60 else round(score, 3))
                for data, score in redis.zrange(key, 0, -1, withscores=True)
            ]
            for key in SETS
        }
        return queued, sorted(redis.smembers(keys.QUEUES)), sets

    def run(key, ruby_action, act, at=None, **fields):
        found = []
        for side in ("ruby", "python"):
            redis.flushall()
            redis.zadd(
                key,
                {encoded("Ruby::OnlyWorker", jid=f"{n}" * 24, **{**FIELDS, **fields}): NOW - 500 + n for n in range(3)},
            )
            redis.zadd(keys.DEAD, {encoded("Old", jid="0" * 23 + "x"): NOW - 200 * 86_400})
            if side == "ruby":
                ruby("act", set=key, jid="1" * 24, action=ruby_action, at=at)
            else:
                assert act(SETS[key]().find("1" * 24))
            found.append(result())
        return found

    with opener.override(lambda: Access(shards, load())):
        yield run
    shards.close()


@pytest.mark.parametrize(
    ("key", "ruby_action", "act"),
    [
        ("retry", "retry", lambda entry: entry.retry()),
        ("dead", "retry", lambda entry: entry.retry()),
        ("schedule", "add_to_queue", lambda entry: entry.enqueue_now()),
        ("retry", "add_to_queue", lambda entry: entry.enqueue_now()),
        ("retry", "kill", lambda entry: entry.kill()),
        ("schedule", "kill", lambda entry: entry.kill()),
        ("dead", "delete", lambda entry: entry.delete()),
        ("schedule", "delete", lambda entry: entry.delete()),
    ],
)
def test_action_leaves_what_ruby_leaves(both_sides, key, ruby_action, act):
    in_ruby, in_python = both_sides(key, ruby_action, act)
    assert in_ruby == in_python
    assert in_ruby[0] or ruby_action in ("kill", "delete")


def test_reschedule_leaves_what_ruby_leaves(both_sides):
    """Ruby 6.4 finds the entry by what it would write itself: of a job with other bytes, here of ``é``, it adds a second entry."""
    in_ruby, in_python = both_sides(
        "schedule", "", lambda entry: entry.reschedule(NOW + 86_400), at=NOW + 86_400, error_message="plain"
    )
    assert in_ruby == in_python
    assert in_ruby[2]["schedule"][-1][1] == pytest.approx(NOW + 86_400, abs=0.001)
