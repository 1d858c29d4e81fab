"""Isolated jobs in real worker processes: their middlewares and pushes, modules that start threads, and the death of the worker."""

import shutil
import signal
from pathlib import Path

from framework.wire import keys
from tests.harness import enqueue, until


def start(site, *options, **env):
    shutil.copy(Path(__file__).parent / "isolated_jobs.py", site.folder)
    return site.worker("-r", "isolated_jobs", "-q", "default", *options, **env)


def exists(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_middlewares_and_pushes_work_in_the_process(site, redis, proofs):
    enqueue(redis, "TenantWorker", args=["go"], jid="runs", correlation_id="cafe")
    enqueue(redis, "TenantWorker", args=["stop"], jid="stopped")
    enqueue(redis, "AsyncTenantWorker", jid="async")
    process = start(site)
    assert process.line(jid="runs", job_status="done")["process_pid"] != process.pid
    assert process.line(jid="async", job_status="done")
    assert proofs("tenant", 2) == ["True", "True"]
    assert proofs("after") == ["1"]
    assert process.line(**{"class": "NoopWorker", "job_status": "done"})["correlation_id"] == "cafe"
    dropped = process.line(jid="stopped", job_status="dropped")
    assert dropped["dropped_by"] == "middleware"
    assert not process.find(event_name="isolation.threads")
    assert process.end() == 0
    assert "a print in a process of its own" in process.errors.read_text()


def test_modules_with_threads_are_loaded_again_for_each_job(site, redis, proofs):
    process = start(site, IMPORT_STARTS_THREAD="1")
    for jid in ("one", "two"):
        enqueue(redis, "TenantWorker", args=["go"], jid=jid)
        assert process.line(jid=jid, job_status="done")
    assert len(process.find(event_name="isolation.threads")) == 1
    assert proofs("tenant", 2) == ["True", "True"]
    assert process.end() == 0


def test_capsules_have_their_middlewares_and_share_a_server(site, redis, proofs):
    process = start(site, "--capsule", "slow", "1", "mails")
    for queue in ("default", "mails"):
        enqueue(redis, "CapsuleWorker", queue=queue)
    assert sorted(proofs("capsule", 2)) == ["default", "slow"]
    # One stop kills the processes of all capsules.
    assert len(set(proofs("parent", 2))) == 1
    assert process.end() == 0


def test_killed_worker_takes_the_job_process_with_it(site, redis, proofs):
    enqueue(redis, "TenantWorker", args=["wait"], jid="waits")
    process = start(site)
    (pid,) = proofs("pid")
    process.send(signal.SIGKILL)
    until(lambda: not exists(pid), "the end of the job's process")
    assert any(b'"waits"' in data for data in redis.lrange(keys.working(process.identity), 0, -1))
