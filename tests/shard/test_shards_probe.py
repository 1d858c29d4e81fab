"""Test the probe of several shards: a frozen one delays no other, and is given up after its time. Real servers are frozen."""

import os
import signal
from contextlib import contextmanager

import pytest

from framework.shard.shards import answering
from tests.harness import opened


@contextmanager
def frozen(server):
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@pytest.fixture
def shards(redis, redis_url, second_redis, second_redis_url):
    """The frozen shard comes first in the order of the names."""
    found = [opened(second_redis_url, "away"), opened(redis_url)]
    yield found
    for shard in found:
        shard.close()


def test_shard_that_answers_late_comes_last(shards, second_server):
    found = []
    with frozen(second_server):
        for shard, error in answering(shards, within_s=60):
            found.append((shard.name, error))
            os.kill(second_server.pid, signal.SIGCONT)
    assert found == [("main", None), ("away", None)]


def test_shard_without_an_answer_is_given_up(shards, second_server):
    with frozen(second_server):
        (first, answered), (last, error) = answering(shards, within_s=0.01)
    assert (first.name, answered, last.name) == ("main", None, "away")
    assert "no answer within 0.01 s" in str(error)


def test_refused_connection_is_an_answer(shards, redis_url):
    """The next command reports it; a probe only finds out that it will not wait."""
    nowhere = opened("redis://127.0.0.1:1/0", "nowhere")
    assert [(shard.name, error) for shard, error in answering([nowhere, shards[1]])] == [
        ("nowhere", None),
        ("main", None),
    ]
