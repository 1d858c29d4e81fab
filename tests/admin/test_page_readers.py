"""Test what pages read: errors by class, one job as a value, the classes, rates, and the health of shards."""

import json

import pytest

from framework import admin
from framework.admin.rates import QueueRates
from framework.errors import UnknownNameError
from framework.wire import keys
from tests.harness import enqueue
from workers.webhooks.deliver_webhook_worker import DeliverWebhookWorker


def kill(redis, jid, cls, error, message):
    job = {"class": cls, "jid": jid, "args": [], "queue": "default", "error_class": error, "error_message": message}
    redis.zadd(keys.DEAD, {json.dumps(job): 1})


def test_errors_are_grouped_with_their_classes(both_shards, redis, second_redis):
    kill(redis, "a", "Mail", "Timeout", "after 5 s")
    kill(redis, "b", "Mail", "Timeout", "after 7 s")
    kill(second_redis, "c", "Report", "Timeout", "after 9 s")
    kill(redis, "d", "Report", "KeyError", "name")
    found = admin.error_groups()
    assert [(one.error, one.jobs, [(cls.name, cls.jobs) for cls in one.classes]) for one in found.groups] == [
        ("Timeout: after N s", 3, [("Mail", 2), ("Report", 1)]),
        ("KeyError: name", 1, [("Report", 1)]),
    ]
    assert (found.total, found.is_estimate) == (4, False)
    with pytest.raises(ValueError, match="interrupted"):
        admin.error_groups("queues")


def test_story_of_a_job_has_its_place_and_reasons(shard, redis):
    enqueue(redis, "Mail", queue="mailers", jid="j1")
    redis.sadd(keys.PAUSED, "mailers")
    story = admin.job_story("j1")
    (place,) = story.places
    assert (place.record.worker, place.explanation.where) == ("Mail", "queue mailers, next of 1")
    assert any("pause" in one.why for one in place.explanation.blockers)
    assert story.is_known
    assert not admin.job_story("nothing").is_known


def test_classes_have_their_attributes_and_route():
    name = DeliverWebhookWorker.declaration().wire_name
    one = admin.worker_class(name)
    assert one in admin.worker_classes()
    assert (one.queue, one.shard) == tuple(DeliverWebhookWorker.route())[:2]
    assert one.attributes["urgency"] == DeliverWebhookWorker.declaration().urgency
    assert "concurrency_limit" in one.attributes
    with pytest.raises(UnknownNameError, match=name):
        admin.worker_class(name + "x")


def test_dead_shard_is_reported_beside_the_others(silent_second):
    first, second = admin.shard_health()
    assert (first.answers, first.role, second.answers) == (True, "master", False)
    assert first.memory
    assert second.error


@pytest.mark.parametrize(
    ("rates", "size", "expected"),
    [
        (QueueRates(2.0, 4.0), 10, 5.0),
        (QueueRates(4.0, 4.0), 10, None),
        (QueueRates(None, 4.0), 10, None),
        (QueueRates(), 0, 0.0),
    ],
)
def test_time_to_empty_is_that_of_the_rates(rates, size, expected):
    assert rates.empty_in_s(size) == expected


def test_limit_has_its_holders(shard, redis):
    redis.sadd(keys.LIMITS, keys.limit("Mail"))
    redis.zadd(f"{keys.limit('Mail')}:running", {"host:1:abcdefabcdef j1": 2_000_000_000})
    (found,) = admin.limit_holders("Mail")
    assert (found.shard, [one.jid for one in found.holders]) == ("main", ["j1"])
    assert admin.limit_holders("Other") == []
