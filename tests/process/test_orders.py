"""Orders about running jobs: their stacks, and their ends, for jobs in threads, tasks and processes."""

import json
import shutil
import signal
from pathlib import Path

import pytest

from framework.wire import keys
from tests.harness import until

WORKERS = ("TimedWorker", "ThreadWorker", "TaskWorker", "ProcessWorker", "ProcessTaskWorker", "ItemsWorker")


@pytest.fixture
def start(site):
    shutil.copy(Path(__file__).parent / "order_jobs.py", site.folder)

    def run(workers=WORKERS):
        process = site.hurried_worker("-r", "order_jobs", "-q", "default", "-c", "8").ready()
        code = "import order_jobs\n" + "\n".join(f"print(order_jobs.{one}.perform_async())" for one in workers)
        done = site.run("-c", code)
        assert done.returncode == 0, done.stderr
        return process, dict(zip(workers, done.stdout.split(), strict=True))

    return run


@pytest.fixture
def run_jobs(site):
    def run(*words, status=0):
        done = site.run("-m", "framework", "jobs", *words)
        assert done.returncode == status, done.stdout + done.stderr
        return json.loads(done.stdout) if "--json" in words else done.stdout + done.stderr

    return run


def shown(redis, process, count):
    """Wait until the record of the process shows so many jobs."""
    until(lambda: redis.hlen(keys.work(process.identity)[0]) == count, "a record of the jobs")


def released(redis):
    """Return whether the last job has left: no working list, no lock, no slot."""
    held = [key for key in redis.keys("aw:*") if key.startswith((b"aw:working:", b"aw:lock:"))]
    return not held and not any(redis.zcard(key) for key in redis.keys("aw:limit:*:running"))


def test_stacks_show_where_each_job_is(start, run_jobs, redis, proofs):
    process, jids = start()
    proofs("runs", len(jids))
    shown(redis, process, len(jids))
    text = run_jobs("stack", process.identity.rpartition(":")[0])
    assert "hunter2" not in text
    found = {one["class"]: one for one in run_jobs("stack", process.identity, "--json")["stacks"][::-1]}
    assert {one["jid"] for one in found.values()} == set(jids.values())
    for name, place, innermost, outermost in (
        ("TimedWorker", "thread", "wait_here", "TimedWorker.perform"),
        ("ThreadWorker", "thread", "wait_here", "ThreadWorker.perform"),
        ("TaskWorker", "task", "await_here", "TaskWorker.perform"),
        ("ProcessWorker", "process", "wait_here", "perform"),
        ("ItemsWorker", "thread", "wait_here", "ItemsWorker.each_iteration"),
    ):
        functions = [call["function"] for call in found[name]["stack"]]
        assert (found[name]["runs_in"], functions[-1]) == (place, outermost), functions
        assert innermost in functions
        assert found[name]["begun"]
        assert found[name]["process_pid"] is None or found[name]["process_pid"] != process.pid
    (one, *more) = [one for one in run_jobs("stack", jids["ProcessTaskWorker"], "--json")["stacks"] if one["stack"]]
    functions = [call["function"] for each in (one, *more) for call in each["stack"]]
    assert "await_here" in functions
    assert all(Path(call["file"]).name for call in one["stack"])


def test_stopped_jobs_end_as_the_operator_chose(start, run_jobs, redis, proofs):
    workers = ("TimedWorker", "TaskWorker", "ProcessWorker", "ItemsWorker")
    process, jids = start(workers)
    proofs("runs", len(jids))
    shown(redis, process, len(jids))
    for name, option in zip(workers, ("--kill", "--kill", "--requeue", "--requeue"), strict=True):
        assert name in run_jobs("stop", jids[name], option)
    assert redis.zcard(keys.DEAD) == 2
    assert set(proofs("runs", 5)[4:]) <= {jids["ProcessWorker"], jids["ItemsWorker"]}
    assert redis.llen("proof:on_cancel") == 0


@pytest.mark.campaign
@pytest.mark.parametrize("fate", ["cancel", "requeue", "kill"])
def test_every_kind_of_job_ends_by_every_fate(fate, start, run_jobs, redis, proofs):
    process, jids = start()
    proofs("runs", len(jids))
    shown(redis, process, len(jids))
    options = [] if fate == "cancel" else [f"--{fate}"]
    for name, jid in jids.items():
        told = run_jobs("stop", jid, *options)
        assert name in told
        # A cancelled job may have ended by its mark before its process reads the order.
        if fate != "cancel":
            line = process.line(event_name="job.stopped", jid=jid)
            assert (line["fate"], line["ended"]) == (fate, True)
    if fate == "requeue":
        assert len(set(proofs("runs", 2 * len(jids) - 1))) == len(jids)
        assert redis.llen("proof:on_cancel") == 0
        return
    assert redis.zcard(keys.DEAD) == (len(jids) if fate == "kill" else 0)
    assert all(process.line(jid=jid, job_status="fail" if fate == "kill" else "cancelled") for jid in jids.values())
    assert redis.llen(keys.queue("default")) + redis.zcard(keys.RETRY) + redis.zcard(keys.SCHEDULE) == 0
    until(lambda: released(redis), "the release of locks and slots")


def test_thread_without_timeout_is_only_asked(start, run_jobs, redis, proofs):
    process, _ = start(["ThreadWorker"])
    (jid,) = proofs("runs")
    shown(redis, process, 1)
    line = run_jobs("stop", jid)
    assert "self.cancelled" in line


@pytest.mark.campaign
def test_stopped_job_is_cancelled_after_the_death_of_its_process(start, run_jobs, redis, proofs, site):
    process, jids = start(["TimedWorker"])
    proofs("runs")
    shown(redis, process, 1)
    process.send(signal.SIGSTOP)
    told = run_jobs("stop", jids["TimedWorker"], status=1)
    assert f"{process.identity} does not answer" in told
    assert redis.llen(keys.orders(process.identity)) == 0
    assert f"{process.identity} does not answer" in run_jobs("stack", process.identity, status=1)
    process.kill()
    successor = site.hurried_worker("-r", "order_jobs", "-q", "default").ready()
    assert successor.line(jid=jids["TimedWorker"], job_status="cancelled")
    assert redis.llen("proof:runs") == 1


def test_name_of_no_job_and_no_process_is_an_error(run_jobs):
    for verb in ("stack", "stop"):
        assert "no running process is named 'nothing'" in run_jobs(verb, "nothing", status=1)
    assert "--requeue and --kill are for jobs" in run_jobs("stop", "--all", "--kill", status=2)
