"""Test a stalled Redis, and a slow and narrow network: no process counts as dead, and work continues at once.

A job runs through all of it, and a second process would reclaim it if its owner seemed dead.
"""

import os
import signal
import threading
import time
from contextlib import contextmanager, suppress

import pytest
from redis.exceptions import RedisError

from framework.store.connect import Endpoint, open_client
from tests.harness import until

LOADED_S = 5.0
"""The time that a loaded machine may add to a promise."""

STALL_S = 6.0
"""Longer than any read waits (5 s), so that each connection is given up once."""


def refusal(client):
    try:
        client.ping()
    except RedisError as error:
        return str(error)
    return ""


@contextmanager
def standing_still(scene):
    """Stop the server's process, as a fork of many gigabytes or a swapping host does."""
    os.kill(scene.server.pid, signal.SIGSTOP)
    began = time.monotonic()
    yield
    until(lambda: time.monotonic() - began > STALL_S)
    os.kill(scene.server.pid, signal.SIGCONT)


@contextmanager
def busy(scene):
    """Run another client's endless script: after 50 ms the server answers BUSY to all clients."""
    scene.client.config_set("busy-reply-threshold", 50)

    def block_server():
        with open_client(Endpoint(scene.url), name="hog", read_timeout_s=60.0) as client, suppress(RedisError):
            client.eval("while true do end", 0)

    thread = threading.Thread(target=block_server)
    thread.start()
    until(lambda: "busy" in refusal(scene.client).lower(), "the server is busy")
    yield
    scene.client.script_kill()
    thread.join()


@pytest.mark.campaign
@pytest.mark.proves("F13")
@pytest.mark.parametrize("trouble", [standing_still, busy])
def test_stalled_redis_makes_no_process_dead(scene, trouble):
    process = scene.worker("-c", "2").ready()
    peer = scene.worker("-q", "other").ready()
    scene.enqueue("LongWorker", "one")
    scene.wait_for("begun", "one")
    with trouble(scene):
        until(lambda: process.find(event_name="redis.failed") and peer.find(event_name="redis.failed"), "both noticed")
    scene.enqueue("NoteWorker", "after")
    scene.wait_for("note", "after", timeout_s=2.0 + LOADED_S)
    scene.let_end("one")
    scene.wait_for("ended", "one")
    scene.settled(process)
    scene.once("begun")
    assert not [line for one in (process, peer) for line in one.find(job_status="recovered")]
    assert not process.find(event_name="lease.lost")
    assert [one.end() for one in (process, peer)] == [0, 0]


@pytest.mark.campaign
@pytest.mark.proves("F12")
def test_slow_network_makes_no_process_dead(scene, measured):
    size, count, bytes_per_s = 10_000, 15, 100_000
    values = [f"{number} {'x' * size}" for number in range(count)]
    with scene.proxy() as proxy:
        process = scene.worker("-c", "4", url=proxy.url).ready()
        peer = scene.worker("-q", "other").ready()
        proxy.delay_s, proxy.wire_bytes_per_s = 0.2, bytes_per_s
        began = time.monotonic()
        for value in values:
            scene.enqueue("NoteWorker", value, jid=f"note {value[:2]}")
        scene.wait_for("note", *values, timeout_s=60.0)
        took_s = time.monotonic() - began
        scene.settled(process)
        proxy.heal()
        assert process.end() == 0
    scene.once()
    # Each payload is sent twice: fetched, and acknowledged by its bytes.
    bound_s = 2 * size * count / bytes_per_s
    measured("of_the_bandwidth", bound_s / took_s)
    assert took_s <= bound_s / 0.6 + LOADED_S
    assert not peer.find(job_status="recovered")
    assert not process.find(event_name="lease.lost")
    assert peer.end() == 0
