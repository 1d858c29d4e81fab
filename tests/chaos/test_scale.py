"""Test large numbers: thousands of queues, tens of thousands of due jobs, payloads of megabytes. No command is slow.

The same with millions is run by hand; the figures are in docs/internals/reliability.md.
"""

import json
import os
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from framework.wire import keys
from tests.harness import encoded, until

SLOW_US = 10_000
"""Promised: no command of the framework takes longer (reference R55)."""
STOLEN_US = 40_000
"""The time that other programs may take from one of them."""


@contextmanager
def no_slow_command(client):
    """Check that no command within takes too long, nor the average of the framework's scripts.

    Other programs' time counts less in the average of hundreds of runs; a script is run once or twice as text (EVAL).
    """
    client.config_set("slowlog-log-slower-than", SLOW_US + STOLEN_US)
    client.slowlog_reset()
    client.config_resetstat()
    yield
    assert not [entry["command"][:80] for entry in client.slowlog_get(128)]
    scripts = [one for name, one in client.info("commandstats").items() if name.startswith("cmdstat_eval")]
    calls = sum(one["calls"] for one in scripts)
    assert calls > 100
    assert sum(one["usec"] for one in scripts) / calls < SLOW_US / 2
    client.config_set("slowlog-log-slower-than", -1)


def used_s(*pids):
    """Return the seconds of processor time of these processes, which do not depend on the load of the machine."""
    ticks = [
        int(tick) for pid in pids for tick in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    ]
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def resident_mb(process):
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * 4096 / 1e6


def fill(client, write, count, name="NopWorker"):
    for start in range(0, count, 5_000):
        payloads = [
            encoded(name, args=["x" * 200], jid=f"j{number}") for number in range(start, min(count, start + 5_000))
        ]
        write(client, payloads)


@pytest.mark.campaign
@pytest.mark.proves("F36", "R29", "R33", "R55")
def test_thousands_of_due_jobs_block_redis_briefly(scene, measured):
    """Promised: 5,000 a second (of a processor), in the memory of a few."""
    count = 5_000
    process = scene.worker("-q", "unused").ready()
    until(lambda: scene.client.exists(process.identity), "the process is registered")
    before_mb, pids = resident_mb(process), (process.pid, scene.server.pid)
    for key in ("later", "again"):
        fill(scene.client, lambda client, jobs, key=key: client.zadd(key, dict.fromkeys(jobs, 1.0)), count)
    with no_slow_command(scene.client):
        before_s = used_s(*pids)
        scene.client.rename("later", keys.SCHEDULE)
        scene.client.rename("again", keys.RETRY)
        until(lambda: not scene.client.exists(keys.SCHEDULE, keys.RETRY), "all have moved")
        rate = 2 * count / (used_s(*pids) - before_s)
    measured("promoted_per_s", rate)
    measured("grown_mb", resident_mb(process) - before_mb)
    assert scene.client.llen("queue:default") == 2 * count
    assert rate >= 5_000
    assert resident_mb(process) - before_mb < 10.0
    assert process.end() == 0


@pytest.mark.campaign
@pytest.mark.proves("F35", "R55", "R57")
def test_thousands_of_queues_block_redis_briefly(scene, measured):
    count = 10_000
    names = [f"q{number}" for number in range(count)]
    options = scene.site.folder / "options.yml"
    options.write_text(json.dumps({":queues": [[name, 1] for name in names]}))
    began = time.monotonic()
    process = scene.site.worker("-C", str(options), "-c", "4", REDIS_URL=scene.url).ready()
    measured("boot_s", time.monotonic() - began)
    with no_slow_command(scene.client):
        took = []
        for name in ("q0", "q4999", "q9999"):
            began = time.monotonic()
            scene.client.lpush(f"queue:{name}", encoded("NoteWorker", args=[name], jid=name, queue=name))
            scene.wait_for("note", name)
            took.append(time.monotonic() - began)
        values = [f"of {name}" for name in names[::20]]
        pipeline = scene.client.pipeline(transaction=False)
        for name, value in zip(names[::20], values, strict=True):
            pipeline.lpush(f"queue:{name}", encoded("NoteWorker", args=[value], jid=name, queue=name))
        pipeline.execute()
        scene.wait_for("note", *values)
    measured("idle_to_run_s", max(took))
    scene.once()
    assert max(took) < 6.0  # a sweep each second
    scene.settled(process)
    assert process.end() == 0


@pytest.mark.campaign
@pytest.mark.proves("F37")
def test_large_payloads_do_not_delay_small_ones(scene, measured):
    large = "".join(chr(97 + number % 26) for number in range(4_900_000))
    process = scene.worker("-q", "default", "-q", "large", "-c", "4").ready()
    for number in range(12):
        data = encoded("NopWorker", args=[large], jid=f"large {number}", queue="large")
        scene.client.lpush("queue:large", data)
    took = []
    for number in range(20):
        began = time.monotonic()
        scene.enqueue("NoteWorker", str(number))
        scene.wait_for("note", str(number))
        took.append(time.monotonic() - began)
    until(lambda: not scene.client.exists("queue:large"), "all of them have been taken")
    scene.settled(process)
    took.sort()
    measured("small_p50_s", took[10])
    measured("small_most_s", took[-1])
    assert took[-1] < 2.0
    assert not process.find(event_name="lease.lost")
    assert not process.find(job_status="recovered")
    assert process.end() == 0
