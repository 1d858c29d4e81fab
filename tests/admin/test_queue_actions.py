"""Test pauses of queues that end by themselves."""

import pytest

from framework import admin
from framework.admin.queue_actions import pause_ends
from framework.store.script import END_PAUSES
from framework.wire import keys
from tests.harness import enqueue, until

PLACES = [keys.PAUSED, keys.PAUSE_ENDS]


def test_pause_with_an_end_lets_a_process_fetch_after_it(site, shard, redis):
    enqueue(redis, "NoopWorker")
    admin.Queue("default").pause(for_s=0.2)
    site.hurried_worker("-q", "default").ready()
    until(lambda: redis.exists("proof:noop"), "the job runs after the pause")
    assert not redis.exists(*PLACES)


def test_script_ends_due_pauses_only(redis):
    redis.sadd(keys.PAUSED, "due", "later", "endless")
    later = redis.time()[0] + 600
    redis.hset(keys.PAUSE_ENDS, mapping={"due": 1, "later": later, "not paused": later})
    assert END_PAUSES(redis, PLACES, []) == [b"due"]
    assert redis.smembers(keys.PAUSED) == {b"later", b"endless"}
    assert redis.hkeys(keys.PAUSE_ENDS) == [b"later"]


def test_last_pause_decides_about_the_end(shard, redis):
    enqueue(redis, "NoopWorker")
    queue = admin.Queue("default")
    queue.pause(for_s=600)
    assert 590 < pause_ends(redis)["default"] - redis.time()[0] <= 601
    queue.pause()
    assert (pause_ends(redis), queue.paused) == ({}, True)
    queue.pause(for_s=600)
    queue.unpause()
    assert (pause_ends(redis), queue.paused) == ({}, False)


@pytest.mark.parametrize("for_s", [0, -1, 1e9, float("nan")])
def test_pause_of_an_impossible_time_is_refused(shard, redis, for_s):
    enqueue(redis, "NoopWorker")
    with pytest.raises(ValueError, match="for_s must be a number of seconds above 0, at most 31,622,400"):
        admin.Queue("default").pause(for_s=for_s)
    assert not redis.exists(*PLACES)
