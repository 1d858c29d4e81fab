"""Calls of ``retry_failed`` at the same time, and calls that were killed, with jobs in a real Redis."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from framework import ApplicationWorker
from framework.admin.shard_job_set import ShardJobSet
from framework.all_settings import load
from framework.features.tasks import retrying
from framework.features.tasks.change import EventChange
from framework.features.tasks.database import TaskDatabase
from framework.features.tasks.task import open_database
from framework.shard.shard import Shard
from framework.tasks import Task
from framework.wire import keys
from framework.wiring import client as wiring


class ImportedRowWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "default"

    def perform(self, row: int) -> None:
        raise NotImplementedError


@pytest.fixture(params=["sqlite", "postgresql"])
def task(request, tmp_path, monkeypatch, redis_url, redis):
    """A task of six failed jobs: the odd rows are in the dead set."""
    url = f"sqlite:///{tmp_path}/tasks.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("database")
        made = TaskDatabase(url)
        made.migrate()
        made.dispose()
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("FRAMEWORK_TASKS__URL", url)
    client = wiring.ProcessClient(load())
    wiring.bind(client)
    with Task.create(ImportedRowWorker) as found:
        jids = found.perform_bulk(ImportedRowWorker, [(row,) for row in range(6)])
    payloads = {job["jid"]: data for data in redis.lrange("queue:default", 0, -1) if (job := json.loads(data))}
    redis.delete("queue:default")
    redis.zadd(keys.DEAD, {payloads[jid]: time.time() for jid in jids[1::2]})
    end([EventChange(jid, "end", time.time(), "failed", "failed") for jid in jids[::2]])
    end([EventChange(jid, "end", time.time(), "error", "dead") for jid in jids[1::2]])
    yield found
    client.recorder.close()
    client.shards.close()
    wiring.bind_default()


def end(changes):
    open_database().writer.write(changes)


def rows(redis):
    return sorted(json.loads(data)["args"][0] for data in redis.lrange("queue:default", 0, -1))


def test_two_calls_at_once_push_each_job_once(task, redis, monkeypatch):
    both_have_read, check = Barrier(2), retrying._check

    def wait(found):
        both_have_read.wait(30)
        check(found)

    monkeypatch.setattr(retrying, "_check", wait)
    with ThreadPoolExecutor(2) as calls:
        pushed = [one.result() for one in [calls.submit(task.retry_failed) for _ in range(2)]]
    assert (sum(pushed), rows(redis), redis.zcard(keys.DEAD)) == (6, [0, 1, 2, 3, 4, 5], 0)
    monkeypatch.undo()
    # The jobs succeed: a late write of the slower call must not open an event again.
    end(
        [
            EventChange(json.loads(data)["jid"], "end", time.time(), "finish", "completed")
            for data in redis.lrange("queue:default", 0, -1)
        ]
    )
    assert (task.progress().counts["finish"], task.retry_failed()) == (6, 0)


class Killed(BaseException):
    """Ends a call where a kill would."""


def killed(*_, **__):
    raise Killed


def test_killed_call_is_continued_by_the_next(task, redis, monkeypatch):
    monkeypatch.setattr(retrying, "_PUSH_S", 0.0)
    monkeypatch.setattr("framework.features.tasks.ledger._PAUSE_S", 0.0)
    monkeypatch.setattr(retrying, "PUSH_CHUNK", 2)
    act_on, acted = ShardJobSet.act_on, []

    def second_time(*args):
        acted.append(args)
        return act_on(*args) if len(acted) == 1 else killed()

    # After the claim of the second job in the dead set, before it moves.
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(ShardJobSet, "act_on", second_time)
        task.retry_failed()
    assert rows(redis) == [1]
    # After the claim of two events, before the jobs are written.
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Shard, "enqueue", killed)
        task.retry_failed()
    assert rows(redis) == [1, 3, 5]
    assert task.retry_failed() == 3
    assert (rows(redis), task.progress().counts["enqueue"]) == ([0, 1, 2, 3, 4, 5], 6)
    assert task.retry_failed() == 0


def test_job_that_an_operator_has_retried_is_not_pushed_again(task, redis, monkeypatch):
    monkeypatch.setattr("framework.features.tasks.ledger._PAUSE_S", 0.0)
    (data,) = redis.zrange(keys.DEAD, 0, 0)
    redis.zrem(keys.DEAD, data)
    redis.lpush("queue:default", data)
    assert task.retry_failed() == 5
    assert rows(redis) == [0, 1, 2, 3, 4, 5]
