"""Test jobs that no worker can read, run or report: kept with their bytes, logged, and harmless for the others."""

import json

import pytest

from tests.harness import encoded, until, unwrapped

MEGABYTE = 1_000_000

UNREADABLE = {
    "truncated": b'{"class":"NoteWorker","args":["x"',
    "no JSON": b"\x80\x04\x95pickle",
    "not UTF-8": b'{"class":"NoteWorker","args":["\xff\xfe"],"jid":"a","queue":"default"}',
    "NUL": b"\x00",
    "nothing": b"",
    "a list": b"[]",
    "null": b"null",
    "a number": b"5",
    "a text": b'"x"',
    "no class": b'{"args":[],"jid":"b"}',
    "class of another type": b'{"class":["NoteWorker"],"args":[],"jid":"c"}',
    "arguments of another type": b'{"class":"NoteWorker","args":{"value":1},"jid":"d"}',
    "too deep": b'{"class":"NoteWorker","args":' + b"[" * 5_000 + b"]" * 5_000 + b',"jid":"e"}',
    "long and broken": b'{"class":"' + b"N" * MEGABYTE,
    "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
}


def test_malformed_payload_is_kept_unchanged(scene):
    process = scene.worker("-c", "2").ready()
    for number, data in enumerate(UNREADABLE.values()):
        scene.client.lpush("queue:default", data)
        scene.enqueue("NoteWorker", f"neighbour {number}")
    scene.wait_for("note", *(f"neighbour {number}" for number in range(len(UNREADABLE))))
    until(lambda: scene.client.zcard("dead") == len(UNREADABLE), "all in the dead set")
    assert set(map(unwrapped, scene.client.zrange("dead", 0, -1))) == set(UNREADABLE.values())
    scene.settled(process)
    assert process.end() == 0
    lines = process.find(job_status="quarantined")
    assert len(lines) == len(UNREADABLE)
    assert all(line["severity"] == "ERROR" and line["queue"] == "default" for line in lines)
    assert max(map(len, process.log.read_bytes().splitlines())) < 50_000  # a broken megabyte is not written out
    scene.once()
    assert process.errors.read_text() == ""


# A job that cannot run or whose error cannot be written: retried like any failure, its payload unchanged.
UNRUNNABLE = {
    "argument of another type": encoded("NoteWorker", args=[5]),
    "too many arguments": encoded("NoteWorker", args=["x", "y"]),
    "an error without words": encoded("FailWorker", args=["unspeakable"]),
    "an error of a megabyte": encoded("FailWorker", args=["huge"]),
    "an error that is no text": encoded("FailWorker", args=["bytes"]),
    "recursion": encoded("FailWorker", args=["recursion"]),
}


def test_job_of_unknown_class_waits_for_its_retry(scene):
    process = scene.worker("-c", "2").ready()
    for number, data in enumerate(UNRUNNABLE.values()):
        scene.client.lpush("queue:default", data.replace(b"ab" * 12, f"{number:024}".encode()))
        scene.enqueue("NoteWorker", f"neighbour {number}")
    scene.wait_for("note", *(f"neighbour {number}" for number in range(len(UNRUNNABLE))))
    until(lambda: scene.client.zcard("retry") == len(UNRUNNABLE), "all wait for their retry")
    scene.settled(process)
    kept = sorted((json.loads(data) for data in scene.client.zrange("retry", 0, -1)), key=lambda job: job["jid"])
    for before, after in zip(UNRUNNABLE.values(), kept, strict=True):
        was = json.loads(before)
        assert after == {**after, **was, "jid": after["jid"]}  # all its members are still there
        assert after["retry_count"] == 0
        assert after["error_class"]
        assert len(after["error_message"]) <= 10_000
        process.line(job_status="fail", jid=after["jid"])
    assert process.end() == 0
    assert process.errors.read_text() == ""


def test_payload_of_one_megabyte_arrives_unchanged(scene):
    process = scene.worker("-c", "2").ready()
    long = "y" * MEGABYTE
    scene.enqueue("NoteWorker", long)
    scene.enqueue("NoteWorker", "neighbour")
    scene.wait_for("note", long, "neighbour")
    scene.settled(process)
    assert process.end() == 0


@pytest.mark.parametrize("order", [("spoilt", "default"), ("default", "spoilt")], ids=" ".join)
def test_queue_of_wrong_type_stops_no_other_queue(scene, order):
    scene.client.set("queue:spoilt", "text")
    process = scene.worker("-q", order[0], "-q", order[1], "-c", "2").ready()
    values = [str(number) for number in range(20)]
    for value in values:
        scene.enqueue("NoteWorker", value)
    scene.wait_for("note", *values)
    logged = until(lambda: [line for line in process.lines if line.get("queue") == "spoilt"], "it is logged")
    assert logged[0]["severity"] in ("WARN", "ERROR")
    assert scene.client.get("queue:spoilt") == b"text"
    scene.client.delete("queue:spoilt")
    scene.enqueue("NoteWorker", "healed", queue="spoilt")
    scene.wait_for("note", "healed")
    scene.settled(process)
    scene.once()
    assert process.end() == 0


def test_retry_set_of_wrong_type_loses_no_job(scene):
    """The failure cannot be written: the job stays in flight, and is retried later."""
    scene.client.set("retry", "text")
    process = scene.worker("-c", "2").ready()
    data = scene.enqueue("FailWorker", "kept")
    scene.wait_for("failing", "kept")
    scene.enqueue("NoteWorker", "neighbour")
    scene.wait_for("note", "neighbour")
    until(lambda: [line for line in process.lines if line["severity"] in ("WARN", "ERROR")], "it is logged")
    assert scene.client.get("retry") == b"text"
    assert process.popen.poll() is None
    scene.client.delete("retry")
    process.end()
    places = scene.client.zrange("retry", 0, -1)
    for key in scene.client.keys("queue:*") + scene.client.keys("aw:working:*"):
        places += scene.client.lrange(key, 0, -1)
    assert [json.loads(place)["jid"] for place in places] == [json.loads(data)["jid"]]
