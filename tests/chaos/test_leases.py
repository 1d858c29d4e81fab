"""Test leases: a process silent for a lease loses its jobs, one that only seems silent does not; one scene of half a
minute.
"""

import os
import signal
import time
from collections import Counter
from functools import partial

import pytest

from framework.recover.suspects import MAX_UNACKNOWLEDGED
from tests.chaos.test_signals import SLACK_S, at
from tests.harness import until

SLOTS = 3
HELD_S = 21
"""Longer than a lease, a heartbeat and a sweep: a process without heartbeats for so long would have lost its jobs."""


SCALED = """
from framework import timings
timings.use(timings.STANDARD.scaled(0.2))
from framework.cli.worker import main
main()
"""
"""A worker whose lease expires after 3 s instead of 15; the scene after the next test has the real waits."""


@pytest.mark.proves("F2")
def test_killed_process_loses_its_jobs_after_its_lease(scene):
    """Both processes are without a supervisor, so only the lease shows that one of them is dead."""
    start = partial(scene.site.start, "-c", SCALED, "-r", "jobs", "-q", "default", "-c", "2", REDIS_URL=scene.url)
    first = start().ready()
    scene.enqueue("LongWorker", "one", jid="one")
    scene.wait_for("begun", "one")
    second = start().ready()
    first.kill()
    until(lambda: scene.proven("begun").count("one") == 2, "the job runs in the other process")
    until(
        lambda: [line["jid"] for line in second.find(job_status="recovered")] == ["one"],
        "the log line of the recovered job is written",
    )
    scene.let_end("one")
    scene.wait_for("ended", "one")
    scene.settled(second)
    assert second.end() == 0


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.proves("F2", "F6", "R18", "R22", "R23", "R28", "R30")
def test_lease_expiry_recovers_frozen_and_killed_only(scene, measured):
    module = scene.module("hostile_jobs")
    witness = scene.worker("-q", "other").ready()  # an idle peer
    holder = scene.cluster("holding", "-r", module, "--max-concurrency", "1")
    group = scene.cluster("pulled", "-r", module, "--max-concurrency", "1", "--processes", "2")
    frozen = scene.worker("-r", module, "-q", "held", "-q", "stream", "-c", str(SLOTS)).ready()
    scene.enqueue("HoldWorker", HELD_S, queue="holding", jid="holding")
    for name, queue in (("held", "held"), ("pulled 0", "pulled"), ("pulled 1", "pulled")):
        scene.enqueue("LongWorker", name, queue=queue, jid=name)
    until(lambda: scene.proven("holding"), "the interpreter is held")
    scene.wait_for("begun", "held", "pulled 0", "pulled 1")
    values = [str(number) for number in range(3_000)]
    for value in values:
        scene.enqueue("NoteWorker", value, queue="stream", jid=f"note {value}")
    until(lambda: len(scene.proven("note")) > 300, "the stream flows")

    frozen.send(signal.SIGSTOP)
    for pid in (group.pid, *(line["child_pid"] for line in group.find(event_name="child.started"))):
        os.kill(pid, signal.SIGKILL)  # as if the host had gone
    gone_at = time.monotonic()
    runner = scene.worker(
        "-r", module, "-q", "held", "-q", "pulled", "-q", "stream", "-q", "holding", "-c", "8"
    ).ready()
    for name in ("held", "pulled 0", "pulled 1"):
        until(lambda name=name: scene.proven("begun").count(name) == 2, f"{name} runs again", 25 + SLACK_S)
        measured(f"{name}_again_s", time.monotonic() - gone_at)
    scene.wait_for("note", *values)

    runner.send(signal.SIGTSTP)
    runner.line(event_name="process.quiet")
    scene.enqueue("NoteWorker", "after", queue="stream", jid="after")
    woken_at, reported_before = time.time(), len(frozen.lines)
    begun_at = time.monotonic()
    frozen.send(signal.SIGCONT)
    scene.wait_for("note", "after", timeout_s=5 + SLACK_S)
    measured("at_work_again_s", time.monotonic() - begun_at)
    for name in ("held", "pulled 0", "pulled 1"):
        scene.let_end(name)
    until(lambda: scene.proven("ended").count("held") == 2, "both runs of the job end")
    until(lambda: frozen.find(job_status="fenced", queue="held"), "the end of the first is not written")
    until(lambda: scene.proven("held"), "the interpreter is given back")
    for process in (frozen, runner, witness, holder):
        assert process.end() == 0

    begun = {
        line["jid"]
        for line in frozen.lines[reported_before:]
        if line.get("job_status") == "start" and at(line) > woken_at
    }
    assert "after" in begun
    # Nothing of the prefetched, but each thread may have been about to start a job when it was stopped.
    assert len(begun) <= 1 + SLOTS
    assert len(frozen.find(event_name="lease.lost")) == 1
    assert len(scene.proven("held")) == 1
    again = Counter(scene.proven("note"))
    measured("extra_runs", sum(again.values()) - len(values) - 1)
    assert sum(again.values()) - len(values) - 1 <= SLOTS + MAX_UNACKNOWLEDGED
    recovered = [line for process in (runner, witness, holder) for line in process.find(job_status="recovered")]
    back = Counter(line["jid"] for line in recovered)
    assert set(back.values()) == {1}
    assert set(back) >= {"held", "pulled 0", "pulled 1"}
    assert "holding" not in back
    assert not scene.client.exists("retry", "dead", "interrupted")
