"""Test rolling restarts of a real group under load: no job is lost or cut off, and the capacity never drops."""

import os
import shutil
import signal
import threading
from collections import Counter

import pytest

from framework.wire import keys
from tests.cluster.conftest import children, has_ended, read_health
from tests.harness import encoded, until

PROCESSES = 3


class BackgroundLoop:
    """Call ``step`` repeatedly from a thread of its own, within the block."""

    def __init__(self):
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _run(self):
        while not self._over.wait(0.02):
            self.step()


class Load(BackgroundLoop):
    """Push jobs, each with a jid of its own."""

    def __init__(self, redis):
        super().__init__()
        self.pushed = 0
        self._redis = redis

    def step(self):
        jobs = [encoded("NoopWorker", jid=f"noop-{self.pushed + number}") for number in range(5)]
        self._redis.lpush(keys.queue("default"), *jobs)
        self.pushed += len(jobs)


class Samples(BackgroundLoop):
    """Sample the number of ready processes, as the supervisor reports it over HTTP."""

    def __init__(self, process):
        super().__init__()
        self.ready = []
        self._process = process

    def step(self):
        status, shown = read_health(self._process, "/readiness")
        self.ready.append(sum(child["fetches"] for child in shown["children"]) if status == 200 else 0)


def states(process):
    return Counter(child["state"] for child in read_health(process, "/readiness")[1]["children"])


@pytest.mark.campaign
def test_rolling_restart_under_load_keeps_jobs_and_capacity(cluster, redis, proofs, release):
    process = cluster(
        "default", "--processes", str(PROCESSES), "--max-concurrency", "2", "--timeout", "0.1", "--health-port", "0"
    )
    until(lambda: states(process) == {"ready": PROCESSES}, "every process is ready")
    before = children(process)
    redis.lpush(keys.queue("default"), encoded("LongWorker", args=["long"], jid="long"))
    (holder,) = proofs("begun:long")
    with Load(redis) as load, Samples(process) as samples:
        process.send(signal.SIGUSR2)
        # The child with the long job drains; until it ends, no other child is replaced.
        until(lambda: int(holder) in children(process, "replaced"), "the holder of the long job is replaced")
        replaced, so_far = children(process, "replaced"), load.pushed
        until(lambda: redis.llen("proof:noop") > so_far + 200, "the others go on, for longer than the deadline")
        assert children(process, "replaced") == replaced
        assert states(process) == {"ready": PROCESSES, "draining": 1}
        release("long")
        process.line(event_name="cluster.restarted")
    assert proofs("ended:long") == [holder]
    until(lambda: redis.llen("proof:noop") >= load.pushed, "every job has run")
    assert Counter(proofs("noop")) == {f"noop-{number}": 1 for number in range(load.pushed)}
    assert min(samples.ready) >= PROCESSES
    assert children(process, "drained") == children(process, "replaced")
    assert sorted(children(process, "drained")) == sorted(before)
    assert {line.get("status") for line in process.find(event_name="child.drained")} == {0}
    assert not [line for line in process.lines if line.get("interrupted_count")]
    draining = process.line(event_name="process.draining", pid=int(holder))
    # One other child may be draining at the same time.
    assert [job for job in draining["running_jobs"] if job["class"] != "NoopWorker"] == [
        {"jid": "long", "class": "LongWorker"}
    ]
    assert process.end() == 0
    assert all(has_ended(pid) for pid in children(process))


RELEASE = """
from jobs import *
from jobs import Base, prove


class WhichWorker(Base):
    def perform(self) -> None:
        prove("which", "{name}")
"""


@pytest.mark.campaign
def test_rolling_restart_of_broken_release_keeps_the_old(cluster, site, redis, proofs, release):
    """Each deployment points the link ``current`` to another folder. A child dies during a restart; TERM comes in another."""
    current = site.folder / "current"

    def deploy(name, text):
        folder = site.folder / name
        folder.mkdir()
        shutil.copy(site.folder / "jobs.py", folder)
        (folder / "release.py").write_text(text)
        current.unlink(missing_ok=True)
        current.symlink_to(folder)

    def running_release():
        redis.lpush(keys.queue("default"), encoded("WhichWorker"))
        return until(lambda: redis.lpop("proof:which")).decode()

    deploy("first", RELEASE.format(name="first"))
    program_text = "import os; os.chdir('current'); from framework.cli.main import main; main()"
    process = cluster(
        "default", "--processes", "2", "--max-concurrency", "1", "--health-port", "0", "-r", "release",
        program=("-c", program_text), PWD=str(current),
    )  # fmt: skip
    until(lambda: states(process) == {"ready": 2}, "both children are ready")
    before = children(process)
    assert running_release() == "first"

    deploy("broken", "raise RuntimeError('half a release')")
    process.send(signal.SIGUSR2)
    assert process.line(event_name="child.not_ready")["status"] == 78
    process.line(event_name="cluster.restart_failed")
    assert states(process) == {"ready": 2}
    assert running_release() == "first"

    site.write("routing.yml", "routing_rules: [")
    process.send(signal.SIGUSR2)
    until(lambda: len(process.find(event_name="cluster.restart_failed")) == 2, "no child is even started")
    assert "routing.yml" in process.find(event_name="cluster.restart_failed")[1]["exception.message"]
    assert len(children(process)) == 3
    (site.folder / "config" / "routing.yml").unlink()

    deploy("second", RELEASE.format(name="second"))
    redis.lpush(keys.queue("default"), encoded("LongWorker", args=["long"]))
    (holder,) = proofs("begun:long")
    process.send(signal.SIGUSR2)
    until(lambda: int(holder) in children(process, "replaced"), "the holder drains")
    second = next(pid for pid in before if pid != int(holder))
    if second not in children(process, "replaced"):
        os.kill(second, signal.SIGKILL)
    process.send(signal.SIGUSR2)
    until(lambda: len(process.find(event_name="cluster.restarting")) == 3, "the third restart is requested")
    release("long")
    process.line(event_name="cluster.restarted")
    assert proofs("ended:long") == [holder]
    assert {running_release() for _ in range(4)} == {"second"}

    process.send(signal.SIGUSR2)
    until(lambda: len(process.find(event_name="cluster.restarting")) == 4, "the fourth restart is requested")
    assert process.end() == 0
    assert all(has_ended(pid) for pid in children(process))
    assert redis.scard(keys.PROCESSES) == 0


def test_worker_drain_signal_ends_after_running_jobs(site, redis, proofs, release):
    process = site.worker("-q", "default", "-c", "2", "-t", "0.1")
    for name in ("one", "other"):
        redis.lpush(keys.queue("default"), encoded("LongWorker", args=[name], jid=name))
    proofs("begun:one"), proofs("begun:other")
    process.send(signal.SIGUSR2)
    process.line(event_name="process.draining")
    redis.lpush(keys.queue("default"), encoded("NoopWorker"))
    process.send(signal.SIGTTIN)
    until(
        lambda: [line for line in process.find(event_name="process.stack") if line["jid"] == "one"],
        "the draining process still answers signals",
    )
    release("one")
    until(lambda: process.find(job_status="done", jid="one"))
    working = keys.working(process.identity)
    until(lambda: redis.llen(working) == 1, "the end of one job is acknowledged while the other runs")
    assert process.end(signal.SIGTERM) == 0  # TERM ends the drain with the ordinary deadline
    assert (redis.llen(keys.queue("default")), redis.llen("proof:noop")) == (2, 0)
    assert process.line(event_name="process.stopped")["returned"] == 1
