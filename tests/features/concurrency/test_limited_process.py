"""Check limits in real processes; each job records how many jobs run at its start."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from framework.wire import keys
from tests.harness import ROOT, enqueue, until

FREQUENT_CHECKS = """
from dataclasses import replace
from framework import timings
timings.use(replace(timings.STANDARD, record_period_s=0.3, sweep_period_s=0.3))
from framework.cli.worker import main
main()
"""
"""A worker that sweeps limits, and writes its record, several times a second instead of once in 5 s."""

ONE, ASKED = keys.limit("OneWorker"), keys.limit("AskedWorker")


def words(redis, key):
    return [name.decode() for name in redis.lrange(key, 0, -1)]


def waiting(redis, base, scope=""):
    return [member.split(b"\n", 1)[1] for member in redis.zrange(f"{base}:waiting:{scope}", 0, -1)]


def settled(redis):
    """Wait until nothing is in flight, and no key of a limit is left."""
    until(lambda: not redis.keys("aw:working:*") and not redis.keys("aw:limit:*:*"), "nothing is left")
    assert not redis.smembers(keys.LIMITS_WAITING)


@pytest.mark.proves("R42", "R43", "R44", "I10", "I12")
def test_limit_process_waiting_jobs_are_unchanged_and_in_order(site, redis):
    """Check the log lines, the counter, the hooks, an override and a stopping process in one run."""
    holder, other = site.hurried_worker("-q", "default", "-c", "1"), site.hurried_worker("-q", "default", "-c", "1")
    enqueue(redis, "OneWorker", args=["first", "go"], jid="first")
    until(lambda: words(redis, "ran") == ["first"], "it runs")
    pushed = [enqueue(redis, "OneWorker", args=[f"{n}"], jid=f"j{n}", version=0, tags=["t"]) for n in range(5)]
    reserved = time.time() + 600
    for name in ("FreeWorker", "BrokenWorker"):  # which the first did not need, being without a limit now
        redis.zadd(f"{keys.limit(name)}:running", {f" {name}": reserved})
        enqueue(redis, name, args=["free"], jid=name, concurrency_limit_buffered_at=1.5)
    until(lambda: "free" in words(redis, "ended") and redis.zcard("retry"), "those of other classes run")
    assert "concurrency_limit_buffered_at" not in json.loads(redis.zrange("retry", 0, 0)[0])
    stamped = waiting(redis, ONE)
    assert [data[: len(old) - 1] for data, old in zip(stamped, pushed, strict=True)] == [old[:-1] for old in pushed]
    assert all(b',"concurrency_limit_buffered_at":' in data for data in stamped)
    assert words(redis, "deferred") == [f"{n}" for n in range(5)]
    running = next(one for one in (holder, other) if one.find(job_status="start", jid="first"))
    waits = next(one for one in (holder, other) if one is not running)
    line = waits.line(job_status="concurrency_limit", jid="j1")
    facts = ("concurrency_limit", "current_concurrency", "concurrency_limit_queue_size")
    assert [line[name] for name in facts] == [1, 1, 2]
    counted = 'sidekiq_concurrency_limit_deferred_jobs_total{worker="OneWorker"}'
    until(lambda: redis.hget(keys.COUNTERS, counted) == b"5", "counted")
    assert waits.end() == 0
    redis.set("go", 1)
    until(lambda: len(words(redis, "ended")) == 7, "all have run")
    assert words(redis, "ran") == ["first", "free", *(f"{n}" for n in range(5))]
    assert words(redis, "resumed") == [f"{n}" for n in range(5)]
    started = running.line(job_status="start", jid="j4")
    assert started["concurrency_limit_buffering_duration_s"] > 0
    assert started["scheduling_latency_s"] > started["concurrency_limit_buffering_duration_s"]
    assert running.find(event_name="concurrency_limit.hook_failed")[0]["severity"] == "ERROR"
    settled(redis)


@pytest.mark.proves("R44")
def test_limit_process_changed_callable_releases_waiting_jobs(site, redis):
    process = site.start("-c", FREQUENT_CHECKS, "-r", "jobs", "-q", "default", "-c", "5").ready()
    redis.set("limit", -1)
    for number in range(6):
        enqueue(redis, "AskedWorker", args=[f"{number}"], jid=f"j{number}")
        enqueue(redis, "GoneWorker", args=[], jid=f"g{number}")
    until(lambda: len(waiting(redis, ASKED)) == 6, "they wait")
    assert words(redis, "ran") == []
    redis.set("limit", "nonsense")  # the last good answer counts
    process.line(event_name="concurrency_limit.unknown", severity="WARN")
    redis.set("limit", 2)
    until(lambda: len(words(redis, "ended")) == 6, "they run")
    assert max(map(int, words(redis, "seen"))) <= 2
    until(
        lambda: sum(line["resumed_job_count"] for line in process.find(job_status="resumed")) >= 1,
        "a line that says so",
    )
    settled(redis)


@pytest.mark.proves("R44", "I10")
def test_limit_process_tenant_share_leaves_turns_to_others(site, redis):
    site.worker("-q", "default", "-c", "10").ready()
    for number in range(30):
        enqueue(redis, "TenantWorker", args=[f"a{number}", "go"], jid=f"a{number}", **{"meta.user": "a"})
    until(lambda: len(words(redis, "ran")) == 2 and redis.zcard("aw:limit:TenantWorker:waiting:a") == 28, "its share")
    for number in range(3):
        enqueue(redis, "TenantWorker", args=[f"b{number}", "go"], jid=f"b{number}", **{"meta.user": "b"})
    until(lambda: len(words(redis, "ran")) == 3 and redis.zcard("aw:limit:TenantWorker:waiting:b") == 2, "b has one")
    redis.set("go", 1)
    until(lambda: len(words(redis, "ended")) == 33, "all have run")
    assert max(words(redis, "ran").index(f"b{number}") for number in range(3)) < 10
    settled(redis)


@pytest.mark.campaign
@pytest.mark.proves("F45", "R42", "R44", "I10", "I24")
def test_limit_process_killed_children_never_exceed_five(site, redis, start_cluster):
    """Run fifty threads in three processes and kill two of them; each job counts the running jobs.

    The throughput is measured by ``scripts/prove limit``.
    """
    jobs = 60
    for number in range(jobs):
        enqueue(redis, "FiveWorker", args=[f"{number}", "", 0.1], jid=f"j{number}")
    supervisor = start_cluster("default", "--processes", "3", "--max-concurrency", "17")
    until(lambda: words(redis, "ran"), "the first job runs")
    killed: set[bytes] = set()
    due = time.monotonic()
    while len(set(words(redis, "ended"))) < jobs:
        running = redis.zrange("aw:limit:FiveWorker:running", 0, -1)
        assert len(running) <= 5
        holders = sorted({member.split()[0] for member in running if not member.startswith(b" ")} - killed)
        if holders and len(killed) < 2 and time.monotonic() >= due:
            os.kill(int(holders[0].split(b":")[1]), signal.SIGKILL)
            killed.add(holders[0])
            due = time.monotonic() + 0.5
        time.sleep(0.01)
    assert len(killed) == 2
    assert 2 <= max(map(int, words(redis, "seen"))) <= 5
    settled(redis)
    assert supervisor.end() == 0


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.proves("F45", "R42", "R44", "I10")
def test_limit_proof_after_kills_leaves_no_keys(short_path):
    """Run ``scripts/prove limit`` for a short time; its throughput is not checked."""
    argv = [sys.executable, str(ROOT / "scripts" / "prove"), "limit", "--seconds", "5"]
    env = {**os.environ, "FRAMEWORK_VAR_DIR": str(short_path)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "jobs, each counted the jobs running at its time: at most 5\n" in done.stdout
    assert re.search(r"^ +[12] kills ", done.stdout, re.MULTILINE)
    assert "Every promise held." in done.stdout
