"""The work of the leader: it begins in recorded applications only, and survives its errors."""

import time
from functools import partial
from types import SimpleNamespace

import pytest

from framework.all_settings import load
from framework.application_worker import ApplicationWorker
from framework.features.tasks import ledger
from framework.features.tasks.access import LazyRecorder
from framework.features.tasks.apply import apply_changes
from framework.features.tasks.worker import TaskUpkeep
from framework.push.protection import NO_PROTECTION
from framework.store.absent_keys import AbsentKeys
from framework.wire import keys
from tests.features.tasks.task_bench import change
from tests.harness import opened, until


@pytest.fixture
def application():
    return ""


@pytest.fixture
def recorder(tmp_path, redis_url, monkeypatch, application):
    (tmp_path / "application.yml").write_text(application)
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("REDIS_URL", redis_url)
    shard = opened(redis_url)
    made = LazyRecorder(load(), {"main": shard}, NO_PROTECTION, f"sqlite:///{tmp_path}/tasks.db")
    yield made
    made.close()
    shard.close()


def process_of(client, leads):
    absent = AbsentKeys((keys.TASK_EVENTS,))
    return SimpleNamespace(upkeep=client, shard=SimpleNamespace(name="main"), leads=leads, absent=absent)


def test_leader_writes_the_spool_of_a_recorded_application(recorder, redis, own_classes, caplog):
    asked, entry = [], change("j", "end", 1.0, "finish", "completed").encode()
    upkeep = TaskUpkeep(process_of(redis, lambda: asked.append(1) or True), recorder)
    upkeep.step()
    assert (asked, recorder.is_open) == ([], False)  # no class is recorded: nothing is asked, nothing is loaded
    redis.zadd(keys.TASK_EVENTS, {entry: 1.0})
    others = TaskUpkeep(process_of(redis, lambda: asked.append(2) and False), recorder)
    others.step()
    assert asked == [2]  # jobs of set(track=True) may be recorded: the leader looks
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
    assert asked == [2, 1]  # the next pass is not due
    follower = TaskUpkeep(process_of(redis, lambda: False), recorder)
    follower.step()
    assert follower._thread is None


@pytest.mark.parametrize("application", ["tasks: {ledger: heal, keep: 30}"])
def test_leader_heals_lost_jobs_and_removes_old_events(recorder, redis, caplog, monkeypatch):
    monkeypatch.setattr(ledger, "_PAUSE_S", 0.0)
    database = recorder.store.database
    lost = change("lost", "push", time.time() - 120, payload='{"jid":"lost","track":true}')
    old = [change("old", "push", 1.0), change("old", "end", 1.0, "finish", "completed")]
    database.write(partial(apply_changes, changes=[lost, *old]))
    upkeep = TaskUpkeep(process_of(redis, lambda: True), recorder)
    with caplog.at_level("INFO", "framework"):
        upkeep.work()
        assert redis.llen("queue:default") == 0  # one pass is not enough: its producer may be slow
        assert (upkeep._reconciler.step(), upkeep._reconciler.lost) == (0, {"lost"})  # left to the ledger
        upkeep.work()
        upkeep.work()
    assert (caplog.text.count("tasks.jobs_healed"), caplog.text.count("tasks.pruned")) == (1, 1)
    assert redis.llen("queue:default") == 1
    with database.reading() as connection:
        assert connection.exec_driver_sql("SELECT jid, state FROM aw_events").all() == [("lost", "queued")]


def test_error_of_a_pass_is_logged_and_the_next_pass_works(recorder, redis, own_classes, caplog):
    redis.set(keys.TASK_EVENTS, "no sorted set")
    type(
        "KeptWorker",
        (ApplicationWorker,),
        {"feature_category": "not_owned", "track": True, "perform": lambda self: None},
    )
    upkeep = TaskUpkeep(process_of(redis, lambda: True), recorder, pass_period_s=0.0)
    upkeep.step()
    until(lambda: "tasks.upkeep_failed" in caplog.text)
    redis.delete(keys.TASK_EVENTS)
    redis.zadd(keys.TASK_EVENTS, {change("j", "end", 1.0, "finish", "completed").encode(): 1.0})
    until(lambda: upkeep.step() or not redis.exists(keys.TASK_EVENTS))
