"""The work of the leader: it begins in recorded applications only, and survives its errors."""

import pytest

from framework.declare.worker import ApplicationWorker
from framework.settings.load import load
from framework.tasks.access import LazyRecorder
from framework.tasks.upkeep import TaskUpkeep
from framework.wire import keys
from tests.harness import opened, until
from tests.tasks.task_bench import change


@pytest.fixture
def recorder(tmp_path, redis_url, monkeypatch):
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("REDIS_URL", redis_url)
    shard = opened(redis_url)
    made = LazyRecorder(load(), {"main": shard}, f"sqlite:///{tmp_path}/tasks.db")
    yield made
    made.close()
    shard.close()


def test_leader_writes_the_spool_of_a_recorded_application(recorder, redis, own_classes, caplog):
    redis.zadd(keys.TASK_EVENTS, {change("j", "end", 1.0, "finish", "completed").encode(): 1.0})
    asked = []
    upkeep = TaskUpkeep(redis, "main", recorder, lambda: asked.append(1) or True)
    upkeep.step()
    assert (asked, recorder.is_open) == ([], False)  # no class is recorded: nothing is asked, nothing is loaded
    type(
        "KeptWorker",
        (ApplicationWorker,),
        {"feature_category": "not_owned", "track": True, "perform": lambda self: None},
    )
    with caplog.at_level("INFO", "framework"):
        upkeep.step()
        until(lambda: "tasks.spool_written" in caplog.text)
    assert not redis.exists(keys.TASK_EVENTS)
    upkeep.step()
    assert len(asked) == 2


def test_follower_does_nothing(recorder, redis, own_classes):
    redis.zadd(keys.TASK_EVENTS, {change("j", "end", 1.0, "finish", "completed").encode(): 1.0})
    type(
        "KeptWorker",
        (ApplicationWorker,),
        {"feature_category": "not_owned", "track": True, "perform": lambda self: None},
    )
    upkeep = TaskUpkeep(redis, "main", recorder, lambda: False)
    upkeep.step()
    assert (upkeep._thread, redis.zcard(keys.TASK_EVENTS)) == (None, 1)


def test_error_of_a_pass_is_logged_and_the_next_pass_works(recorder, redis, own_classes, caplog):
    redis.set(keys.TASK_EVENTS, "no sorted set")
    type(
        "KeptWorker",
        (ApplicationWorker,),
        {"feature_category": "not_owned", "track": True, "perform": lambda self: None},
    )
    upkeep = TaskUpkeep(redis, "main", recorder, lambda: True, pass_period_s=0.0)
    upkeep.step()
    until(lambda: "tasks.upkeep_failed" in caplog.text)
    redis.delete(keys.TASK_EVENTS)
    redis.zadd(keys.TASK_EVENTS, {change("j", "end", 1.0, "finish", "completed").encode(): 1.0})
    until(lambda: upkeep.step() or not redis.exists(keys.TASK_EVENTS))
