"""Run jobs of a former release: their version, their former class name, and a removed class."""

import json
import os
import shutil
import signal

import pytest

from framework.wire import keys
from tests.harness import ROOT, encoded, enqueue, is_metric, until

VERSIONED = ROOT / "tests" / "process" / "versioned_jobs.py"


@pytest.fixture
def site(site):
    shutil.copy(VERSIONED, site.folder / "jobs.py")
    return site


def push(site, text, release="old"):
    """Push from a process of one release of the application."""
    done = site.run("-c", f"from jobs import *\nprint({text})", RELEASE=release)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def retiring(**names):
    return {"FRAMEWORK_RETIRED_WORKERS": json.dumps(names)}


# --- versions -------------------------------------------------------------------------------------------------------------


def test_job_of_former_release_runs_its_own_version(site, proofs):
    push(site, 'ImportWorker.perform_async("a.csv")')
    push(site, "ImportWorker.perform_async(5, {}, path='b')", release="new")
    process = site.worker("-q", "import")
    assert sorted(proofs("ran", 2)) == ["ImportWorker 1 perform_v1 a.csv", "ImportWorker 3 perform 5 b"]
    old = process.line(job_status="done", version=1)
    new = process.line(job_status="done", version=3)
    assert (old["args"], new["args"]) == (["a.csv"], ["5", "[FILTERED]", "b"])  # by name: another position then


@pytest.mark.parametrize("then", ["fail", "later"])
def test_retries_and_later_runs_keep_the_version_of_the_job(site, redis, proofs, then):
    site.write("application.yml", {"poll_interval": 0.1})
    push(site, f'ImportWorker.perform_async("a.csv", "{then}")')
    process = site.worker("-q", "import")
    if then == "fail":  # its delay has a jitter of up to 10 s
        # A test that a loaded machine stopped for so long finds the retry ended.
        until(lambda: redis.zrange(keys.RETRY, 0, -1) or redis.llen("proof:ran") == 2)
        for failed in redis.zrange(keys.RETRY, 0, -1):
            redis.zadd(keys.RETRY, {failed: 1}, xx=True)
    assert proofs("ran", 2) == ["ImportWorker 1 perform_v1 a.csv"] * 2
    assert process.line(job_status="fail" if then == "fail" else "snoozed")["version"] == 1
    assert process.line(job_status="done")["version"] == 1


def test_scheduled_job_keeps_version_across_queue_and_shard(site, redis, second_redis, second_redis_url, proofs):
    site.write("redis.yml", {"shards": {"main": {"url": site.url}, "second": {"url": second_redis_url}}})
    push(site, 'ImportWorker.perform_in(0.01, "a.csv")')
    site.write("routing.yml", {"routing_rules": [["*", "elsewhere", "second"]]})
    site.worker("-q", "none")  # its poller moves the due jobs of main
    site.worker("-q", "elsewhere", "--shard", "second")
    assert proofs("ran") == ["ImportWorker 1 perform_v1 a.csv"]
    until(lambda: not redis.zcard(keys.SCHEDULE) and not redis.llen("queue:import"))


@pytest.mark.proves("I5")
def test_interrupted_job_keeps_its_version(site, redis, proofs):
    push(site, 'ImportWorker.perform_async("a.csv", "hang")')
    process = site.worker("-q", "import", "-t", "0.1")
    proofs("ran")
    assert process.end(signal.SIGTERM) == 0
    assert json.loads(redis.lindex("queue:import", 0))["version"] == 1
    site.worker("-q", "import")
    assert proofs("ran", 2) == ["ImportWorker 1 perform_v1 a.csv"] * 2


def test_version_written_as_text_is_read(site, redis, proofs):
    enqueue(redis, "ImportWorker", args=["a.csv"], queue="import", version="1")
    site.worker("-q", "import")
    assert proofs("ran") == ["ImportWorker 1 perform_v1 a.csv"]


def test_arguments_not_fitting_the_handler_name_it(site, redis):
    enqueue(redis, "ImportWorker", args=[5, {}], queue="import", version=1)
    process = site.worker("-q", "import")
    failed = process.line(job_status="fail")
    assert failed["exception.class"] == "framework.errors.ArgumentsMismatchError"
    assert "(version 1) do not fit perform_v1: argument 'path'" in failed["exception.message"]


def test_inline_runs_the_current_version(site, redis, proofs):
    push(site, "ImportWorker.perform_inline(5, {})", release="new")
    assert proofs("ran") == ["ImportWorker 3 perform 5 "]


# --- names ------------------------------------------------------------------------------------------------------------------


def test_job_of_a_former_name_runs_in_the_renamed_class(site, redis, proofs):
    site.write("application.yml", {"poll_interval": 0.1})
    push(site, "RenamedWorker.perform_async(1)")
    push(site, "RenamedWorker.perform_in(0.01, 2)")
    redis.zadd(keys.RETRY, {encoded("Old::ReportWorker", args=[3], queue="old_report", retry_count=0): 1})
    enqueue(redis, "Old::ReportWorker", args=[4], queue="old_report")  # a Ruby process knows the old name only
    process = site.worker("-q", "old_report", "-q", "reports_report")
    assert sorted(proofs("ran", 4)) == [f"RenamedWorker 0 {number}" for number in (1, 2, 3, 4)]
    until(lambda: len(process.find(job_status="done")) == 4)
    for line in process.find(job_status="done"):
        assert (line["class"], line["worker_name"]) == ("Old::ReportWorker", "Reports::ReportWorker")
        assert line["extra.reports_report_worker.rows"] == int(line["args"][0])
    queues = {line["args"][0]: line["queue"] for line in process.find(job_status="done")}
    assert queues == {"1": "old_report", "2": "reports_report", "3": "reports_report", "4": "old_report"}


# --- retired classes ----------------------------------------------------------------------------------------------------------


def test_worker_retired_class_is_dropped_logged_counted(site, redis):
    site.write("application.yml", {"poll_interval": 0.1})
    for number in range(3):
        push(site, f'RemovedWorker.perform_async("secret {number}")')
    redis.zadd(keys.SCHEDULE, {encoded("RemovedWorker", args=["secret"], queue="removed", jid="due"): 1})
    redis.zadd(keys.RETRY, {encoded("RemovedWorker", args=["secret"], queue="removed", retry_count=24): 1})
    process = site.worker("-q", "removed", **retiring(RemovedWorker="its reports had no readers"))
    until(lambda: redis.hget(keys.RETIRED, "RemovedWorker") == b"5")
    until(lambda: len(process.find(job_status="dropped")) == 5)
    for line in process.find(job_status="dropped"):
        assert line["dropped_reason"] == "the class is retired: its reports had no readers"
        assert (line["class"], line["args"], line["severity"]) == ("RemovedWorker", ["[FILTERED]"], "INFO")
    assert not process.find(job_status="fail")
    assert process.end() == 0
    assert redis.get("stat:failed") is None
    left = {
        key
        for key in redis.keys("*")
        if not (key.startswith((b"stat:", b"aw:steady_since", b"aw:held_alert")) or is_metric(key))
    }
    assert left == {b"queues", b"aw:retired"}
    assert "secret" not in process.log.read_text()
    looked = site.run(str(ROOT / "scripts" / "retired"), **retiring(RemovedWorker="its reports had no readers"))
    assert "dropped 5, waiting 0" in looked.stdout
    assert "nothing left: remove the entry" in looked.stdout


@pytest.mark.proves("F42")
def test_process_of_the_former_release_runs_retired_jobs(site, redis, proofs):
    push(site, 'RemovedWorker.perform_async("secret")')
    site.worker("-q", "removed", RELEASE="old")
    assert proofs("ran") == ["RemovedWorker 0 secret"]
    assert not redis.exists(keys.RETIRED)


def test_boot_class_registered_and_retired_is_refused(site):
    process = site.worker("-q", "removed", **retiring(RemovedWorker="x", **{"Old::ReportWorker": "y"}), RELEASE="old")
    assert process.wait() == 78
    errors = process.errors.read_text()
    assert "jobs.RemovedWorker: wire_name: 'RemovedWorker' is also in the setting retired_workers" in errors
    assert "jobs.RenamedWorker: wire_name: 'Old::ReportWorker' is also in" in errors
    other = site.worker("-q", "removed", **retiring(**{"Old::ReportWorker": "y"}))
    assert other.wait() == 78
    assert "jobs.RenamedWorker: aliases: 'Old::ReportWorker' is also in" in other.errors.read_text()


def test_kill_after_drop_counts_no_job_twice(site, redis):
    for number in range(200):
        enqueue(redis, "RemovedWorker", args=["x"], queue="removed", jid=str(number))
    process = site.worker("-q", "removed", **retiring(RemovedWorker="x"))
    until(lambda: int(redis.hget(keys.RETIRED, "RemovedWorker") or 0) >= 20)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    counted = int(redis.hget(keys.RETIRED, "RemovedWorker"))
    held = sum(redis.llen(key) for key in redis.keys("aw:working:*"))
    assert counted + held + redis.llen("queue:removed") == 200  # each is waiting, in flight, or dropped and counted
