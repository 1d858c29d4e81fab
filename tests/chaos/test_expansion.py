"""Test jobs of some kilobytes that would fill the memory of a host when they are decoded."""

import base64
import json
import zlib

import pytest

from tests.harness import payload, until

MEGABYTES = 512

LIMITED = f"""
import resource
resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20))  # of each thread, so that stacks are no part of this
resource.setrlimit(resource.RLIMIT_DATA, ({MEGABYTES} << 20, {MEGABYTES} << 20))
from framework.cli.worker import worker
worker()
"""


def expanding_job(inside: bytes, name: str) -> bytes:
    """Return a compressed job whose second argument is ``inside``, over and over."""
    arguments = b'["%b",[%b1]]' % (name.encode(), inside)
    text = base64.b64encode(zlib.compress(arguments, 9)).decode()
    marks = {"compressed": True, "original_job_size_bytes": len(arguments)}
    return json.dumps(payload("RowsWorker", args=[text], jid=name, **marks)).encode()


ABOVE = [
    (b"[],", 33_000_000),
    (b"{},", 30_000_000),
    (b'{"a":1},', 12_000_000),
    (b"[[[]]],", 14_000_000),
    (b'"ab",', 19_000_000),
]
"""An element, and how many of it need more memory than the worker has. Multiplied by the test, as the text takes 100 MB."""


def limited_worker(scene):
    module = scene.module("expanding_jobs")
    return scene.site.start("-c", LIMITED, "-q", "default", "-c", "5", "-r", "jobs", "-r", module, REDIS_URL=scene.url)


@pytest.mark.campaign
@pytest.mark.proves("R60")
def test_expanding_jobs_move_to_dead_set_undecoded(scene):
    process = limited_worker(scene).ready()
    jobs = [expanding_job(element * count, f"job {number}") for number, (element, count) in enumerate(ABOVE)]
    assert max(map(len, jobs)) < 300_000
    for number, data in enumerate(jobs):
        scene.client.lpush("queue:default", data)
        scene.enqueue("NoteWorker", f"neighbour {number}")
    scene.wait_for("note", *(f"neighbour {number}" for number in range(len(ABOVE))), timeout_s=60)
    until(lambda: scene.client.zcard("dead") == len(ABOVE), "all in the dead set", 60)
    entries = {job["jid"]: job for job in scene.jobs_of("dead")}
    for data in map(json.loads, jobs):
        entry = entries[data["jid"]]
        assert {name: entry[name] for name in data} == data
        assert "size_limit.decoded_limit" in entry["error_message"]
    scene.enqueue("PeakWorker")
    (peak,) = until(lambda: scene.proven("peak"), "the process reports its memory")
    assert int(peak) < 200
    scene.settled(process)
    assert process.end() == 0
    assert not process.find(event_name="lease.lost")
    assert not process.find(event_name="component.died")
    scene.once()


@pytest.mark.campaign
@pytest.mark.proves("R60")
def test_large_jobs_in_all_threads_wait_for_memory(scene):
    """Each is within the limits and takes most of the budget: they run one after the other, and small ones meanwhile."""
    process = limited_worker(scene).ready()
    rows, count = 1_100_000, 5
    large = [expanding_job(b"[7]," * rows, f"large {number}") for number in range(count)]
    for data in large:
        scene.client.lpush("queue:default", data)
    until(lambda: scene.proven("rows"), "the first has run", 60)
    scene.enqueue("NoteWorker", "neighbour")
    until(lambda: len(scene.proven("rows")) == count, "all have run", 120)
    results = [json.loads(value) for value in scene.proven("rows")]
    assert {name: count for name, count, _ in results} == {f"large {number}": rows + 1 for number in range(count)}
    assert {at_once for _, _, at_once in results} == {1}
    scene.wait_for("note", "neighbour")
    scene.settled(process)
    assert process.end() == 0
    assert not scene.client.exists("dead", "retry")
    assert not process.find(event_name="lease.lost")
