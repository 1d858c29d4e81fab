"""Test a Redis that comes back empty: the loss is logged; the processes live on and work."""

import shutil

import pytest

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
    assert process.end() == 0
