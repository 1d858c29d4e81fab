"""Test that failures leak nothing: the thousandth lost connection costs as much as the first."""

import json
import resource
from pathlib import Path

import pytest

from tests.harness import payload, until


@pytest.mark.campaign
def test_failed_pushes_leak_no_memory_in_producer(scene):
    """Every resource of a connection must be freed with it, above all of connections that failed."""
    producer = scene.producer()
    scene.server.stop()
    for number in range(250):
        answer = producer.push("NoteWorker", f"refused {number}")
        assert (answer["error"], answer["maybe_written"]) == ("ShardUnavailableError", False)
    scene.server.start()
    answer = producer.push("NoteWorker", "taken")
    assert answer.get("jid"), answer
    for number in range(250):
        scene.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        answer = producer.push("NoteWorker", f"after reset {number}")
        assert answer.get("jid"), answer


@pytest.mark.campaign
def test_lost_connections_leak_no_memory_in_process(scene):
    process = scene.worker("-c", "2").ready()
    for number in range(70):
        scene.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        scene.enqueue("NoteWorker", f"after {number}")
        scene.wait_for("note", f"after {number}", timeout_s=10)
    scene.settled(process)
    assert process.end() == 0


@pytest.mark.campaign
@pytest.mark.proves("R68")
def test_failing_jobs_leak_no_memory_in_process(scene, measured):
    """A kept failure, above all its traceback with its objects, takes more than 500 bytes."""
    process = scene.worker("-c", "3").ready()
    _fail(scene, process, 1_500)
    before = _resident_bytes(process)
    _fail(scene, process, 3_000)
    grown = _resident_bytes(process) - before
    measured("bytes_a_job", grown / 3_000)
    assert grown < 500 * 3_000
    assert process.end() == 0


def _fail(scene, process, count):
    """Let so many jobs fail, without a retry."""
    job = payload("FailWorker", args=["at once"], retry=False)
    scene.client.lpush("queue:default", *(json.dumps({**job, "jid": str(number)}) for number in range(count)))
    until(lambda: not scene.client.llen("queue:default"), "all are taken")
    scene.settled(process)


def _resident_bytes(process):
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * resource.getpagesize()
