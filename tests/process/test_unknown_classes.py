"""Run jobs in processes that lack their class or have an older version of it, as in a rolling deploy."""

import json
import shutil
import signal

import pytest

from framework.wire import keys
from tests.harness import ROOT, encoded, enqueue, until

JOBS = ROOT / "tests" / "process" / "unknown_jobs.py"
WAITS = ("aw_unknown_class_count", "aw_unknown_class_since")


@pytest.fixture
def site(site):
    shutil.copy(JOBS, site.folder / "jobs.py")
    site.write("application.yml", {"poll_interval": 0.1})
    return site


def push(site, text):
    """Push from a process of the new release."""
    done = site.run("-c", f"from jobs import *\nprint({text})", RELEASE="new")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def old(site, *options, **env):
    return site.worker("-q", "default", *options, RELEASE="old", **env)


def members(redis, key):
    return [json.loads(data) for data in redis.zrange(key, 0, -1)]


def due_now(redis, key=keys.SCHEDULE):
    for member in redis.zrange(key, 0, -1):
        redis.zadd(key, {member: 1}, xx=True)


def nothing_left(redis):
    sets = (keys.SCHEDULE, keys.RETRY, keys.DEAD, keys.INTERRUPTED)
    return (
        not any(redis.zcard(key) for key in sets) and not redis.llen("queue:default") and not redis.keys("aw:working:*")
    )


@pytest.mark.proves("F39")
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
def test_rolling_deploy_of_new_class_spends_no_job(site, redis, proofs, stop):
    first = old(site).ready()
    for number, retry in enumerate((False, 0, 3)):
        push(site, f"NewWorker.set(retry={retry}).perform_async({number})")
    enqueue(redis, "OldWorker", args=[1])
    until(lambda: len({line["jid"] for line in first.find(job_status="deferred")}) == 3, "each has met the old process")
    jobs = until(lambda: len(found := members(redis, keys.SCHEDULE)) == 3 and found, "all wait")
    assert proofs("ran") == ["OldWorker 1"]  # its own jobs continue
    for job in jobs:
        assert "retry_count" not in job
        assert job["aw_unknown_class_count"] >= 1
        assert 0 <= job["aw_unknown_class_since"] - job["created_at"] < 60
        assert job["error_class"] == "framework.errors.UnknownWorkerError"
        assert "no worker named 'NewWorker' is registered here (nearest known name: " in job["error_message"]
    assert sorted(job["retry"] for job in jobs) == [0, 0, 3]
    line = first.find(job_status="deferred")[0]
    assert (line["job_deferred_by"], line["deferred_count"]) == ("unknown_class", 1)
    assert 1 <= line["deferred_for_s"] <= 2
    assert first.find(job_status="start") == first.find(job_status="start", **{"class": "OldWorker"})
    (line,) = first.find(event_name="class.unknown")  # one line of that class in a minute for any number of jobs
    assert (line["severity"], line["class"], line["count"]) == ("WARN", "NewWorker", 1)
    until(
        lambda: int(redis.hget(keys.COUNTERS, 'sidekiq_jobs_unknown_class_total{worker="unknown"}') or 0) >= 3,
        "counted",
    )
    second = site.worker("-q", "default", RELEASE="new").ready()
    first.end(stop)
    assert sorted(proofs("ran", 4)) == ["NewWorker 0", "NewWorker 1", "NewWorker 2", "OldWorker 1"]
    until(lambda: nothing_left(redis), "nothing is left")
    assert redis.llen("proof:ran") == 4  # each once
    assert second.find(job_status="fail") == []
    assert int(redis.get(keys.STAT_FAILED) or 0) == 0


def test_quiet_process_leaves_unknown_jobs_in_their_queue(site, redis, proofs):
    first = old(site).ready()
    push(site, "NewWorker.perform_async(1)")
    first.line(job_status="deferred")
    first.send(signal.SIGTSTP)
    first.line(event_name="process.quiet")
    due_now(redis)
    until(lambda: redis.llen("queue:default") == 1, "its poller moves it")
    assert json.loads(redis.lindex("queue:default", 0))["queue"] == "default"
    assert first.end() == 0
    site.worker("-q", "default", RELEASE="new")
    assert proofs("ran") == ["NewWorker 1"]


def test_newer_version_waits_and_invalid_older_version_fails(site, redis, proofs):
    first = old(site).ready()
    push(site, "ReportWorker.perform_async('secret', 'all')")
    push(site, "ReportWorker.perform_async('fits', '7')")
    enqueue(redis, "ReportWorker", args=[5], version=1, jid="misfit", retry=3)
    until(lambda: len({line["jid"] for line in first.find(job_status="deferred")}) == 2, "both wait")
    line = first.find(job_status="deferred")[0]
    assert (line["job_deferred_by"], line["version"], line["args"]) == ("newer_version", 2, ["[FILTERED]"] * 2)
    (failed,) = until(lambda: members(redis, keys.RETRY), "it fails as ever")
    assert (failed["jid"], failed["retry_count"]) == ("misfit", 0)
    assert not set(WAITS) & failed.keys()
    jobs = until(lambda: len(found := members(redis, keys.SCHEDULE)) == 2 and found, "both wait")
    assert {job["error_class"] for job in jobs} == {"framework.errors.NewerVersionError"}
    assert "the job has version 2, and the class here has version 1" in jobs[0]["error_message"]
    assert redis.llen("proof:ran") == 0
    site.worker("-q", "default", RELEASE="new").ready()
    first.end()
    assert sorted(proofs("ran", 2)) == ["ReportWorker fits 7", "ReportWorker secret all"]


def test_lock_and_state_wait_with_their_job(site, redis, proofs):
    first = old(site).ready()
    jid = push(site, "LockedWorker.perform_async(1)")
    first.line(job_status="deferred")
    (lock,) = redis.keys(f"{keys.LOCKS}*")
    assert push(site, "LockedWorker.perform_async(1)") == "None"  # a duplicate
    # Two hours, as the class says, which this process does not know. The line comes before the job has moved.
    until(lambda: redis.pttl(lock) > 6_000_000, "the lock waits as long as the class says")
    assert redis.get(keys.status(jid)) == b"queued"
    site.worker("-q", "default", RELEASE="new").ready()
    first.end()
    assert proofs("ran") == ["LockedWorker 1"]
    until(lambda: redis.get(keys.status(jid)) == b"completed", "its state")
    assert redis.keys(f"{keys.LOCKS}*") == []


def test_job_that_waited_too_long_is_quarantined(site, redis):
    first = old(site, FRAMEWORK_UNKNOWN_CLASS_MAX_WAIT="1").ready()
    jid = push(site, "LockedWorker.perform_async(1)")
    line = first.line(job_status="quarantined")
    assert (line["severity"], line["class"], line["jid"], line["queue"]) == ("ERROR", "LockedWorker", jid, "default")
    assert line["waited_s"] >= 1
    (job,) = until(lambda: members(redis, keys.INTERRUPTED), "it is set aside")
    assert (job["jid"], job["error_class"]) == (jid, "framework.errors.UnknownWorkerError")
    assert set(WAITS) <= job.keys()
    assert redis.get(keys.status(jid)) == b"failed"
    assert redis.keys(f"{keys.LOCKS}*") == []
    until(lambda: redis.zcard(keys.SCHEDULE) == 0 and not redis.keys("aw:working:*"), "it is nowhere else")


@pytest.mark.parametrize("then", ["fail", "later"])
def test_unknown_class_error_is_removed_by_the_first_run(site, redis, then):
    first = old(site).ready()
    push(site, f"OddWorker.perform_async('{then}')")
    first.line(job_status="deferred")
    assert first.end() == 0
    due_now(redis)
    second = site.worker("-q", "default", RELEASE="new")
    second.line(job_status="fail" if then == "fail" else "snoozed")
    (job,) = until(lambda: members(redis, keys.RETRY if then == "fail" else keys.SCHEDULE), "where it goes then")
    assert not set(WAITS) & job.keys()
    assert job.get("error_class") == ("ValueError" if then == "fail" else None)
    assert job.get("retry_count") == (0 if then == "fail" else None)


def test_retired_class_is_dropped_not_delayed(site, redis):
    enqueue(redis, "GoneWorker", jid="gone")
    retired = {"FRAMEWORK_RETIRED_WORKERS": json.dumps({"GoneWorker": "over"}), "FRAMEWORK_FOREIGN_CLASSES": "Gone*"}
    assert old(site, **retired).line(jid="gone", job_status="dropped")["dropped_reason"] == "the class is retired: over"
    until(lambda: nothing_left(redis), "nothing is left")


def test_unknown_job_keeps_queue_and_shard_when_due(site, redis, second_redis, second_redis_url):
    site.write("redis.yml", {"shards": {"main": {"url": site.url}, "second": {"url": second_redis_url}}})
    site.write("routing.yml", {"routing_rules": [["*", "elsewhere", "main"]]})
    second_redis.sadd(keys.QUEUES, "odd")
    second_redis.lpush("queue:odd", encoded("NewWorker", queue="odd", args=[1]))
    process = site.worker("-q", "odd", "--shard", "second", RELEASE="old")
    until(lambda: len(process.find(job_status="deferred")) >= 2, "it came back to its queue")
    assert {line["queue"] for line in process.find(job_status="deferred")} == {"odd"}
    assert redis.keys("queue:*") == []


def test_foreign_jobs_go_back_without_error_lines(site, redis, proofs):
    for number in range(30):
        enqueue(redis, "Ruby::FooJob", args=[number], jid=f"foo {number}", retry=False)
    enqueue(redis, "Ruby::BarJob", jid="bar")
    enqueue(redis, "OldWorker", args=[7])
    process = old(site, "-c", "2", FRAMEWORK_FOREIGN_CLASSES="Ruby::Foo*, Ruby::Bar*")
    assert proofs("ran") == ["OldWorker 7"]  # behind all of them
    until(lambda: redis.zcard(keys.SCHEDULE) + redis.llen("queue:default") == 31, "all are there")
    until(lambda: any(job["aw_unknown_class_count"] > 1 for job in members(redis, keys.SCHEDULE)), "again and again")
    assert process.end() == 0
    lines = process.find(event_name="class.foreign")
    counts = [sum(line["classes"].get(f"Ruby::{name}Job", 0) for line in lines) for name in ("Foo", "Bar")]
    assert counts[0] >= 31
    assert counts[1] >= 1
    assert sum(line["count"] for line in lines) == sum(counts)
    assert len(lines) <= 2  # one in a minute, and the last before the end
    assert not [
        line for line in process.lines if line.get("class", "").startswith("Ruby") or line["severity"] != "INFO"
    ]
    jobs = [*members(redis, keys.SCHEDULE), *map(json.loads, redis.lrange("queue:default", 0, -1))]
    assert len(jobs) == 31
    assert not any({"error_class", "retry_count", "aw_unknown_class_since"} & job.keys() for job in jobs)


def test_boot_invalid_pattern_is_refused(site):
    process = old(site, FRAMEWORK_FOREIGN_CLASSES="Ruby::*,two words")
    assert process.wait() == 78
    assert "FRAMEWORK_FOREIGN_CLASSES[1]" in process.errors.read_text()
    assert "pattern of class names" in process.errors.read_text()
