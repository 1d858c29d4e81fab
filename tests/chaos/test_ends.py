"""How processes end when their jobs do not want to."""

import json
import signal

import pytest

from tests.harness import is_metric, until


def waiting(scene, queue="default"):
    """The jobs of a queue, next to run first."""
    return [json.loads(data) for data in reversed(scene.client.lrange(f"queue:{queue}", 0, -1))]


def test_term_in_the_middle_of_long_jobs(scene):
    names = [f"job {number}" for number in range(12)]
    for name in names:
        scene.enqueue("GateWorker", name, jid=name)
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
    }  # those two run out by themselves
    for name in names:
        scene.open_gate(name)
    successor = scene.worker("-c", "4").ready()
    scene.wait_for("ended", *names)
    scene.settled(successor)
    scene.once("ended")
    assert successor.end() == 0


def test_a_quiet_process_takes_nothing_more(scene):
    scene.enqueue("GateWorker", "running")
    process = scene.worker("-c", "1").ready()
    scene.wait_for("begun", "running")
    process.send(signal.SIGTSTP)
    process.line(event_name="process.quiet")
    values = [str(number) for number in range(5)]
    for value in values:
        scene.enqueue("NoteWorker", value, jid=value)
    scene.open_gate("running")
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
def test_a_thread_that_hangs_in_c_code_keeps_no_process(scene, kind):
    scene.enqueue("HangWorker", kind, jid=kind)
    process = scene.worker("-c", "2", "-t", "0.2").ready()
    scene.wait_for("begun", kind)
    process.send(signal.SIGTTIN)
    stack = process.line(event_name="process.stack", jid=kind)
    assert any("perform" in frame for frame in stack["stack"])
    assert process.end() == 0
    assert [(job["jid"], job["interrupted_count"]) for job in waiting(scene)] == [(kind, 1)]


def test_the_second_term_waits_for_nothing(scene):
    scene.enqueue("GateWorker", "long", jid="long")
    process = scene.worker("-c", "2", "-t", "300").ready()
    scene.wait_for("begun", "long")
    process.send(signal.SIGTERM)
    process.line(event_name="process.stopping")
    assert process.end() == 0  # gives up after 40 s
    assert [(job["jid"], job["interrupted_count"]) for job in waiting(scene)] == [("long", 1)]


def test_stacks_name_every_running_job(scene):
    names = [f"job {number}" for number in range(5)]
    for name in names:
        scene.enqueue("GateWorker", name, jid=name)
    process = scene.worker("-c", "5", "-t", "0").ready()
    scene.wait_for("begun", *names)
    process.send(signal.SIGTTIN)
    for name in names:
        stack = process.line(jid=name, event_name="process.stack")["stack"]
        assert any("jobs.py" in frame and "perform" in frame for frame in stack)
    assert process.end() == 0


def test_term_while_redis_is_away_ends_and_loses_nothing(scene):
    data = scene.enqueue("GateWorker", "long")
    process = scene.worker("-c", "2", "-t", "0.2").ready()
    identity = process.identity
    scene.wait_for("begun", "long")
    scene.server.stop()
    process.send(signal.SIGTERM)
    assert process.wait() in (0, 1)
    scene.server.start()
    # Where every process looks that sweeps; with a test of its own in tests/process, as that takes the lease's 15 s.
    assert scene.client.lrange(f"aw:working:{identity}", 0, -1) == [data]
    assert scene.client.zscore("aw:processes", identity)
