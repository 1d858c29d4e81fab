"""Test every signal that ends a process: running jobs finish or return to their queue, in order, in the promised time."""

import json
import os
import signal
import time
from collections import Counter
from datetime import datetime

import pytest

from tests.chaos.conftest import runs
from tests.harness import until

SLACK_S = 5.0
"""The time beyond a promise that a loaded machine may take."""


def at(line):
    return datetime.fromisoformat(line["time"]).timestamp()


def ended_in_s(process, *numbers):
    """Send signals, each when the one before has arrived; return the seconds from the last to the end, and the status."""
    for number in numbers[:-1]:
        process.send(number)
        process.line(event_name="process.stopping")
    begun = time.monotonic()
    status = process.end(numbers[-1])
    return time.monotonic() - begun, status


@pytest.mark.proves("F3")
def test_term_during_quick_jobs_returns_rest_and_repeats_none(scene, measured):
    """``test_ends`` shows that the order is kept."""
    values = [str(number) for number in range(5_000)]
    scene.client.lpush("queue:default", *(_note(value) for value in values))
    process = scene.worker("-c", "1").ready()
    until(lambda: len(scene.proven("note")) > 300, "in the midst of it")
    took_s, status = ended_in_s(process, signal.SIGTERM)
    assert status == 0
    done, left = scene.proven("note"), [job["args"][0] for job in scene.jobs_of("default")]
    assert left
    assert Counter(done + left) == dict.fromkeys(values, 1)
    assert took_s <= 0.5 + SLACK_S
    (stopping,), (stopped,) = (process.find(event_name=f"process.{what}") for what in ("stopping", "stopped"))
    late_s = max(at(line) for line in process.find(job_status="start")) - at(stopping)
    assert late_s <= 0.1 + SLACK_S
    measured("ended_s", took_s)
    measured("last_begin_s", late_s)
    measured("all_back_s", at(stopped) - at(stopping))


@pytest.mark.proves("F3", "F7")
@pytest.mark.parametrize("fault", ["lost connection", "restart"])
def test_stop_while_redis_fails_repeats_no_ended_job(scene, fault):
    process = scene.worker("-c", "1").ready()
    scene.enqueue("LongWorker", "one")
    scene.wait_for("begun", "one")
    process.send(signal.SIGTERM)
    process.line(event_name="process.stopping")
    if fault == "restart":
        scene.server.kill()
        process.line(event_name="redis.failed")
    else:
        # The stopping process does not read from this connection, so it does not notice.
        scene.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    scene.let_end("one")
    scene.wait_for("ended", "one")
    if fault == "restart":
        process.line(job_status="done")
        scene.server.start()
    assert process.wait() == 0
    assert process.line(event_name="process.stopped")["finished"]
    assert not scene.client.exists(f"aw:working:{process.identity}", "queue:default")


@pytest.mark.proves("F7")
def test_stop_while_redis_is_away_ends_at_deadline(scene):
    process = scene.worker("-c", "1", "-t", "2").ready()
    scene.enqueue("LongWorker", "one")
    scene.wait_for("begun", "one")
    process.send(signal.SIGTERM)
    process.line(event_name="process.stopping")
    scene.server.kill()
    scene.let_end("one")
    assert process.wait() == 0
    assert not process.find(event_name="process.stopped")
    (line,) = [line for line in process.lines if "another process will recover its jobs" in line["message"]]
    assert line["exception.class"] == "redis.exceptions.ConnectionError"
    scene.server.start()
    # It is not lost: another process recovers it.
    assert scene.client.llen(f"aw:working:{process.identity}") == 1


def _note(value):
    return json.dumps(
        {"class": "NoteWorker", "args": [value], "jid": f"note {value}", "queue": "default", "retry": True}
    )


@pytest.mark.proves("F4")
def test_jobs_unfinished_at_deadline_run_elsewhere(scene, measured):
    scene.enqueue("LongWorker", "long", jid="long")
    first = scene.worker("-c", "2", "-t", "0.5").ready()
    scene.wait_for("begun", "long")
    second = scene.worker("-c", "2").ready()
    begun = time.monotonic()
    first.send(signal.SIGTERM)
    until(lambda: scene.proven("begun") == ["long"] * 2, "it runs again", 0.5 + 1 + SLACK_S)
    again_s = time.monotonic() - begun
    assert first.wait() == 0
    ended_s = time.monotonic() - begun
    assert ended_s <= 0.5 + 2 + SLACK_S
    measured("again_s", again_s)
    measured("ended_s", ended_s)
    scene.let_end("long")
    scene.wait_for("ended", "long")
    scene.settled(second)
    assert second.end() == 0
    assert first.line(event_name="process.stopped")["returned"] == 1
    assert second.line(job_status="done", jid="long")["interrupted_count"] == 1


WAYS = {"term": (signal.SIGTERM,) * 2, "int": (signal.SIGINT,) * 2, "quit": (signal.SIGQUIT,)}


@pytest.mark.proves("F5")
def test_second_signal_or_quit_ends_at_once_hangup_does_not(scene, measured):
    processes = {way: scene.worker("-q", way, "-c", "2", "-t", "300") for way in WAYS}
    for way, process in processes.items():
        scene.enqueue("LongWorker", way, queue=way, jid=way)
        process.ready()
        scene.wait_for("begun", way)
        process.send(signal.SIGHUP)
        process.line(event_name="process.hangup")
    for way, process in processes.items():
        took_s, status = ended_in_s(process, *WAYS[way])
        measured(f"ended_by_{way}_s", took_s)
        assert (status, took_s <= 2 + SLACK_S) == (0, True)
        assert [(job["jid"], job["interrupted_count"]) for job in scene.jobs_of(way)] == [(way, 1)]
        assert len(process.find(event_name="process.forced")) == (way != "quit")
        assert process.line(event_name="process.stopping")["signal"] == WAYS[way][0].name
        assert process.line(event_name="process.stopped")["returned"] == 1


@pytest.mark.proves("F5", "R67")
def test_term_to_process_group_counts_once(scene, measured):
    names = [f"job {number}" for number in range(4)]
    for name in names:
        scene.enqueue("LongWorker", name, jid=name)
    group = scene.cluster("--processes", "2", "--max-concurrency", "2", "--timeout", "300")
    scene.wait_for("begun", *names)
    group.send(signal.SIGHUP)
    children = [line["child_pid"] for line in group.find(event_name="child.started")]
    for pid in (*children, group.pid):
        os.kill(pid, signal.SIGTERM)  # as systemd does; each child gets another signal from its parent
    until(lambda: len(group.find(event_name="process.stopping")) == 2, "each child stops")
    group.line(event_name="cluster.stopping")
    ends, stays = {}, []
    for name in names:
        pid = group.line(jid=name, job_status="start")["pid"]
        stays.append(name) if pid in ends else ends.update({pid: name})
    for name in ends.values():  # one of each child
        scene.let_end(name)
        group.line(jid=name, job_status="done")
    until(lambda: sum(map(scene.client.llen, scene.client.keys("aw:working:*"))) == 2, "the other two are held")
    assert scene.client.llen("queue:default") == 0  # the deadline holds
    assert all(map(runs, children))
    assert not group.find(event_name="process.forced")
    took_s, status = ended_in_s(group, signal.SIGTERM)
    measured("ended_s", took_s)
    assert (status, took_s <= 2 + SLACK_S) == (0, True)
    assert sorted(job["jid"] for job in scene.jobs_of("default")) == stays
    assert {line["jid"] for line in group.find(job_status="done")} == set(ends.values())
    assert not group.find(event_name="child.killed")


@pytest.mark.proves("F28", "R69")
def test_hanging_process_is_killed_at_deadline_and_job_returns(scene, measured):
    kinds = ["swallows", "ignores", "holds the interpreter"]
    for kind in kinds:
        scene.enqueue("UnstoppableWorker", kind, jid=kind)
    module = scene.module("hostile_jobs")
    group = scene.cluster("-r", module, "--processes", "3", "--max-concurrency", "1", "--timeout", "0.5")
    scene.wait_for("begun", *kinds)
    took_s, status = ended_in_s(group, signal.SIGTERM)
    measured("ended_s", took_s)
    assert (status, took_s <= 0.5 + 2 + SLACK_S) == (1, True)
    assert len(group.find(event_name="child.killed")) == 2
    rescuer = scene.worker("-q", "other").ready()
    until(lambda: sorted(job["jid"] for job in scene.jobs_of("default")) == sorted(kinds), "all are back")
    counts = [(job.get("interrupted_count"), job.get("aw_death_count")) for job in scene.jobs_of("default")]
    assert sorted(counts, key=str) == [(1, None), (None, 1), (None, 1)]  # one could still be stopped
    assert rescuer.end() == 0  # its lines are all written then
    assert len(rescuer.find(job_status="recovered")) == 2
