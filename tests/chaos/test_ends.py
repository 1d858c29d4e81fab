"""Test the end of processes whose jobs do not end."""

import json
import signal

import pytest

from tests.harness import is_metric, until


def waiting(scene, queue="default"):
    """Return the jobs of a queue, next to run first."""
    return [json.loads(data) for data in reversed(scene.client.lrange(f"queue:{queue}", 0, -1))]


def test_term_during_long_jobs_returns_them(scene):
    names = [f"job {number}" for number in range(12)]
    for name in names:
        scene.enqueue("LongWorker", name, jid=name)
    process = scene.worker("-c", "4", "-t", "0.5").ready()
    scene.wait_for("begun", *names[:4])
    assert process.end() == 0
    assert [(job["jid"], job.get("interrupted_count")) for job in waiting(scene)] == [
        *((name, 1) for name in names[:4]),
        *((name, None) for name in names[4:]),
    ]
    assert set(scene.proven("begun")) == set(names[:4])
    left = {key for key in scene.client.keys("*") if not (key.startswith(b"stat:") or is_metric(key))}
    assert left - {b"aw:steady_since", b"aw:held_alert"} == {
        b"queues",
        b"queue:default",
    }  # both keys expire
    for name in names:
        scene.let_end(name)
    successor = scene.worker("-c", "4").ready()
    scene.wait_for("ended", *names)
    scene.settled(successor)
    scene.once("ended")
    assert successor.end() == 0


def test_quiet_process_fetches_no_more_jobs(scene):
    scene.enqueue("LongWorker", "running")
    process = scene.worker("-c", "1").ready()
    scene.wait_for("begun", "running")
    process.send(signal.SIGTSTP)
    process.line(event_name="process.quiet")
    values = [str(number) for number in range(5)]
    for value in values:
        scene.enqueue("NoteWorker", value, jid=value)
    scene.let_end("running")
    scene.wait_for("ended", "running")
    scene.settled(process)
    until(lambda: [job["jid"] for job in waiting(scene)] == values, "all wait in order")
    successor = scene.worker("-c", "1").ready()
    scene.wait_for("note", *values)
    scene.once()
    assert process.popen.poll() is None
    assert process.end() == 0
    assert successor.end() == 0


@pytest.mark.proves("F27")
@pytest.mark.parametrize("kind", ["lock", "c"])
def test_thread_hanging_in_c_code_does_not_keep_process(scene, kind):
    scene.enqueue("HangWorker", kind, jid=kind)
    process = scene.worker("-c", "2", "-t", "0.2").ready()
    scene.wait_for("begun", kind)
    process.send(signal.SIGTTIN)
    stack = process.line(event_name="process.stack", jid=kind)
    assert any("perform" in frame for frame in stack["stack"])
    assert process.end() == 0
    assert [(job["jid"], job["interrupted_count"]) for job in waiting(scene)] == [(kind, 1)]


def test_second_term_ends_process_at_once(scene):
    scene.enqueue("LongWorker", "long", jid="long")
    process = scene.worker("-c", "2", "-t", "300").ready()
    scene.wait_for("begun", "long")
    process.send(signal.SIGTERM)
    process.line(event_name="process.stopping")
    assert process.end() == 0  # gives up after 40 s
    assert [(job["jid"], job["interrupted_count"]) for job in waiting(scene)] == [("long", 1)]


def test_stack_dump_names_every_running_job(scene):
    names = [f"job {number}" for number in range(5)]
    for name in names:
        scene.enqueue("LongWorker", name, jid=name)
    process = scene.worker("-c", "5", "-t", "0").ready()
    scene.wait_for("begun", *names)
    process.send(signal.SIGTTIN)
    for name in names:
        stack = process.line(jid=name, event_name="process.stack")["stack"]
        assert any("jobs.py" in frame and "perform" in frame for frame in stack)
    assert process.end() == 0


def test_term_without_redis_ends_process_and_loses_no_job(scene):
    data = scene.enqueue("LongWorker", "long")
    process = scene.worker("-c", "2", "-t", "0.2").ready()
    identity = process.identity
    scene.wait_for("begun", "long")
    scene.server.stop()
    process.send(signal.SIGTERM)
    assert process.wait() in (0, 1)
    scene.server.start()
    # The log of every process that sweeps; tests/process tests it alone, as that takes the lease's 15 s.
    assert scene.client.lrange(f"aw:working:{identity}", 0, -1) == [data]
    assert scene.client.zscore("aw:processes", identity)
