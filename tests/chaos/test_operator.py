"""Test that an operator's changes survive faults of Redis: pauses, quiet, a deleted queue, a cleared set."""

import pytest

from framework.wire import keys
from tests.harness import until


@pytest.mark.proves("F46", "R5", "R62", "I15")
def test_operator_changes_survive_redis_crash(scene):
    client = scene.client
    options = ("-q", "default", "-q", "paused", "-q", "doomed", "-c", "2")
    process = scene.site.hurried_worker(*options, REDIS_URL=scene.url).ready()
    other = scene.site.hurried_worker("-q", "quiet", REDIS_URL=scene.url).ready()
    client.sadd(keys.PAUSED, "paused")
    process.line(event_name="queues.paused", queues=["paused"])
    client.lpush(keys.signals(other.identity), "TSTP")
    other.line(event_name="process.quiet")
    for queue in ("doomed", "paused", "quiet"):
        client.sadd(keys.QUEUES, queue)
    client.zadd(keys.DEAD, {"buried": 1})

    scene.server.kill()
    until(lambda: process.find(event_name="redis.failed"), "it has noticed")
    scene.server.start()
    client.unlink("queue:doomed", keys.DEAD)
    client.srem(keys.QUEUES, "doomed")
    for queue in ("paused", "quiet", "default", "doomed"):
        scene.enqueue("NoteWorker", f"of {queue}", queue=queue, jid=queue)
    scene.wait_for("note", "of default", "of doomed")
    until(lambda: scene.client.info("clients")["blocked_clients"] == 2, "no process waits at the two other queues")
    assert (client.llen("queue:paused"), client.llen("queue:quiet")) == (1, 1)

    client.srem(keys.PAUSED, "paused")
    scene.wait_for("note", "of paused")
    client.lpush(keys.signals(other.identity), "TERM")
    assert other.wait() == 0
    assert client.llen("queue:quiet") == 1
    assert not client.exists(keys.DEAD)
    scene.once()
    assert process.end() == 0
