"""Test faults of the worker's own host: its clock, its disk, its output, its limits. Jobs continue, and it recovers."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.test_signals import SLACK_S
from tests.harness import payload, until

PROC = Path("/proc")
STACK = 8 * 1024 * 1024
"""The address space of a thread."""

HOUR, DAY = 3_600, 86_400

# Every Python process imports sitecustomize before anything else: the clock of the whole process jumps.
CLOCK = """
import os, time
_time, _file = time.time, os.environ.get("CLOCK_FILE")

def _jumped():
    with open(_file) as file:
        return _time() + float(file.read() or 0)

if _file:
    time.time = _jumped
"""


@pytest.mark.campaign
@pytest.mark.proves("F18", "R20", "R50", "I13", "I20")
def test_clock_jump_moves_no_job_and_no_lease(scene):
    """An hour ahead, an hour and a day behind, while jobs run and wait: no process is reaped, no job early, no duration
    negative.
    """
    (scene.site.folder / "sitecustomize.py").write_text(CLOCK)
    clock = scene.site.folder / "clock"
    clock.write_text("0")
    peer = scene.worker("-q", "other").ready()
    env = {"PYTHONPATH": str(scene.site.folder), "CLOCK_FILE": str(clock), "REDIS_URL": scene.url}
    scene.site.warm = False  # an interpreter that is already started reads no `sitecustomize`
    process = scene.site.worker("-q", "default", "-c", "3", **env).ready()
    for jump in (HOUR, -HOUR, -DAY, 0):
        scene.enqueue("LongWorker", f"long {jump}", jid=f"long {jump}")
        scene.wait_for("begun", f"long {jump}")
        clock.write_text(str(jump))
        now = _now(scene)
        scene.client.zadd("schedule", {_note(f"due {jump}"): now + 1})
        failing = f"fails {jump}"
        scene.enqueue("FailWorker", failing, jid=failing)
        due = until(lambda failing=failing: _due_of(scene, failing), "the retry of the job is kept")
        assert now + 15 <= due <= _now(scene) + 25
        scene.let_end(f"long {jump}")
        scene.wait_for("note", f"due {jump}")
        assert _now(scene) >= now + 1
    scene.settled(process)
    for one in (process, peer):
        assert one.end() == 0
        assert not one.find(job_status="recovered")
        assert not one.find(event_name="lease.lost")
    scene.once()
    scene.once("begun")
    assert all(line.get(name, 0) >= 0 for line in process.lines for name in ("queue_duration_s", "duration_s"))
    (skewed,) = process.find(event_name="clock.skew")  # logged once in 30 s
    assert abs(abs(skewed["skew_s"]) - HOUR) < 60 or abs(skewed["skew_s"] + DAY) < 60


def _now(scene):
    seconds, microseconds = scene.client.time()
    return seconds + microseconds / 1e6


def _note(value):
    return json.dumps(payload("NoteWorker", args=[value], jid=value))


def _due_of(scene, jid):
    entries = scene.client.zrange("retry", 0, -1, withscores=True)
    return next((score for data, score in entries if json.loads(data)["jid"] == jid), None)


@pytest.mark.proves("F20")
def test_full_disk_loses_no_job_and_no_log_line(scene):
    """No file can be written: not the log, not a temporary file, until there is space again."""
    process = scene.worker("-c", "2").ready()
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (process.log.stat().st_size, hard))
    values = [str(number) for number in range(500)]
    scene.client.lpush("queue:default", *map(_note, values))
    scene.wait_for("note", *values)
    scene.settled(process)
    assert not process.find(job_status="done")
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))
    until(lambda: len(process.find(job_status="done")) == len(values), "every line is written")
    assert process.end() == 0
    scene.once()
    assert not process.find(event_name="log.dropped")


FEW_LINES = (
    "import framework.telemetry.writer as writer; writer.MAX_PENDING, writer._BATCH = 200, 50; "
    "from framework.cli.worker import main; main()"
)
"""A worker that keeps 200 lines instead of 100,000 while its output is blocked."""


@pytest.mark.proves("F50")
def test_unread_log_output_delays_no_job_and_losses_are_counted(scene, measured):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"\n" * 4_096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    argv = [
        sys.executable,
        "-c",
        FEW_LINES,
        "-r",
        "jobs",
        "-r",
        scene.module("hostile_jobs"),
        "-q",
        "default",
        "-c",
        "1",
    ]
    env = scene.site.environment("worker", REDIS_URL=scene.url)
    with subprocess.Popen(argv, cwd=scene.site.folder, env=env, stdin=subprocess.DEVNULL, stdout=writer) as process:
        try:
            os.close(writer)
            jids = [str(number) for number in range(500)]
            for jid in jids:
                scene.enqueue("LogWorker", jid=jid)
            took_ms = [float(value) for value in until(lambda: _all_of(scene, "talked", len(jids)), "all have run")]
            measured("a_line_ms_p50", sorted(took_ms)[len(took_ms) // 2])
            assert sorted(took_ms)[len(took_ms) // 2] < 1
            process.send_signal(signal.SIGTERM)
            with os.fdopen(reader, "rb") as pipe:
                lines = [json.loads(line) for line in pipe.read().splitlines() if line]
        finally:
            process.kill()
    assert process.returncode == 0
    lost = sum(line["count"] for line in lines if line.get("event_name") == "log.dropped")
    assert lost > 0
    about_jobs = [line for line in lines if line.get("jid") in jids]
    others = {"process.ready", "process.stopping", "process.stopped", "queues.paused"}
    logged = [line for line in lines if line.get("event_name") in others]
    assert 3 * len(jids) <= len(about_jobs) + lost <= 3 * len(jids) + 3
    assert logged[-1]["event_name"] == "process.stopped"


def _all_of(scene, name, count):
    found = scene.proven(name)
    return found if len(found) == count else None


@pytest.mark.campaign
@pytest.mark.proves("F51", "F34")
def test_process_without_files_or_threads_recovers(scene, measured):
    process = scene.worker("-c", "4").ready()
    group = scene.cluster("grouped", "--max-concurrency", "1")
    child = group.line(event_name="process.ready")["pid"]

    with limited(process.pid, resource.RLIMIT_NOFILE, 4), limited(group.pid, resource.RLIMIT_NOFILE, 4):
        scene.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        os.kill(child, signal.SIGKILL)
        process.line(event_name="redis.failed")
        group.line(event_name="child.failed")
        scene.enqueue("NoteWorker", "with files")
        scene.enqueue("NoteWorker", "with a process", queue="grouped")
    begun_at = time.monotonic()
    scene.wait_for("note", "with files", "with a process", timeout_s=10 + SLACK_S)
    measured("back_s", time.monotonic() - begun_at)

    names = [f"job {number}" for number in range(4)]
    size = int((PROC / str(process.pid) / "statm").read_text().split()[0]) * resource.getpagesize()
    with limited(process.pid, resource.RLIMIT_AS, size + STACK // 2):
        for name in names:
            scene.enqueue("LongWorker", name)
        until(lambda: scene.proven("begun"), "the existing threads work")
        assert process.popen.poll() is None
    scene.wait_for("begun", *names, timeout_s=10 + SLACK_S)
    for name in names:
        scene.let_end(name)
    scene.wait_for("ended", *names)
    assert process.end() == 0
    assert group.end() == 0
    for name in ("note", "begun"):
        scene.once(name)


@contextmanager
def limited(pid, kind, soft):
    """Limit a resource of a process within the block."""
    before, hard = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (soft, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, kind, (before, hard))
