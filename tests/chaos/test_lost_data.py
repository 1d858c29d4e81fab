"""Test a Redis that comes back empty: the loss is logged; the processes live on and work."""

import shutil

import pytest

from framework.wire import keys
from tests.chaos.test_redis_in_trouble import at_work
from tests.harness import until

REPORTED_S = 10.0
"""Promised from the return of Redis until the loss is logged."""


@pytest.mark.proves("F8", "F15", "R6", "R61")
def test_redis_back_without_data_is_logged(scene):
    scene.client.config_set("appendonly", "no")
    scene.client.config_set("maxmemory-policy", "allkeys-lru")
    process = scene.site.hurried_worker("-q", "default", "-c", "2", REDIS_URL=scene.url).ready()
    process.line(event_name="config.unsafe_eviction", policy="allkeys-lru")
    scene.enqueue("LongWorker", "one")
    scene.enqueue("NoteWorker", "forgotten", queue="later")
    scene.wait_for("begun", "one")
    scene.client.shutdown(nosave=True)
    until(lambda: not scene.server.running)
    shutil.rmtree(scene.server.data_dir / "appendonlydir")
    scene.server.start()
    until(lambda: process.find(event_name="shard.data_loss"), "the loss is logged", REPORTED_S)
    assert not scene.client.exists("queue:later")
    scene.let_end("one")
    scene.wait_for("ended", "one")
    until(lambda: process.find(job_status="fenced"), "its end is not written: nothing is known of it")
    at_work(scene, process, "next")
    scene.once("begun")
    until(lambda: process.identity.encode() in scene.client.smembers("processes"), "Sidekiq's pages see it again")
    assert len(process.find(event_name="shard.data_loss")) == 1
    assert float(scene.client.hget(process.identity, "aw_lost_at")) > 0
    assert process.end() == 0


@pytest.mark.proves("F8", "R61")
def test_redis_back_with_an_older_snapshot_is_logged(scene):
    process = scene.site.hurried_worker("-q", "default", "-c", "2", REDIS_URL=scene.url).ready()
    files, copy = scene.server.data_dir / "appendonlydir", scene.server.data_dir / "older"
    shutil.copytree(files, copy)
    saved = float(scene.client.zscore(keys.REGISTRY, process.identity))
    scene.enqueue("LongWorker", "one")
    scene.wait_for("begun", "one")
    until(lambda: float(scene.client.zscore(keys.REGISTRY, process.identity)) > saved, "a later heartbeat is written")
    scene.client.shutdown(nosave=True)
    until(lambda: not scene.server.running)
    shutil.rmtree(files)
    copy.rename(files)
    scene.server.start()
    line = process.line(event_name="shard.data_loss")
    assert line["restored_at"] < line["written_at"]
    assert [name.split()[0] for name in line["affected_jobs"]] == ["LongWorker"]
    scene.let_end("one")
    assert process.end() == 0
