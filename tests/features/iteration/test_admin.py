"""Read the state of iterable jobs of Python and Ruby, and let one begin again."""

from datetime import timedelta

import pytest

from framework import admin
from framework.errors import ReadOnlyError
from framework.wire import keys

STATE = keys.iteration("j")


def test_iteration_of_a_job_of_ours(shard, redis):
    redis.hset(STATE, mapping={"ex": 3, "c": "[7]", "rt": "2.5", "aw_done": 5, "aw_total": 10, "aw_run": "token"})
    found = admin.iteration("j")
    assert (found.shard, found.runs, found.cursor, found.runtime) == ("main", 3, [7], timedelta(seconds=2.5))
    assert (found.done, found.total, found.rate, found.eta) == (5, 10, 2.0, timedelta(seconds=2.5))
    assert not found.cancelled


def test_iteration_of_a_job_of_ruby(shard, redis):
    redis.hset(STATE, mapping={"ex": 1, "c": "41", "rt": "0.5", "cancelled": 1_795_284_241})
    found = admin.iteration("j")
    assert (found.cursor, found.done, found.total, found.rate, found.eta) == (41, 0, None, None, None)
    assert found.cancelled


def test_iteration_reads_whatever_was_written(shard, redis):
    redis.hset(STATE, mapping={"ex": "x", "c": b"\xff{", "rt": "nan", "aw_done": "-1", "aw_total": "9" * 40})
    found = admin.iteration("j")
    assert (found.runs, found.cursor, found.runtime, found.done, found.total) == (0, "\\xff{", timedelta(0), 0, 0)
    redis.delete(STATE)
    redis.hset(STATE, "cancelled", 5)
    assert admin.iteration("j").cursor is None


def test_iteration_of_a_job_without_a_state(shard, redis):
    assert admin.iteration("j") is None
    for wrong, error in ((None, TypeError), (7, TypeError), ("", ValueError)):
        with pytest.raises(error):
            admin.iteration(wrong)


def test_later_run_counts_after_a_move(both_shards, redis, second_redis):
    redis.hset(STATE, mapping={"ex": 2, "c": "1"})
    second_redis.hset(STATE, mapping={"ex": 3, "c": "9"})
    assert (admin.iteration("j").shard, admin.iteration("j", "main").cursor) == ("second", 1)


def test_reset_lets_a_job_begin_again(shard, redis):
    redis.hset(STATE, mapping={"ex": 3, "c": "[7]"})
    with admin.read_only(), pytest.raises(ReadOnlyError):
        admin.reset_iteration("j")
    assert admin.reset_iteration("j")
    assert not redis.exists(STATE)
    assert not admin.reset_iteration("j")
