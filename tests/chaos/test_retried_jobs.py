"""Retry many dead jobs by a filter, by two operators at once, while workers run; kill workers and operators with SIGKILL.

``RETRIED_JOBS=100000`` in the environment, and ``--timeout=1500``, make it as long as the run by hand of 25 November 2026: 95
operators, 0 lost, 7 second runs, each after a kill.
"""

import os
import signal
import time
from collections import Counter, defaultdict

import pytest

from framework.wire import keys
from tests.harness import ROOT, encoded, until

JOBS = int(os.environ.get("RETRIED_JOBS", "20000"))
KILLS = 6
OTHERS = 200
ACKNOWLEDGED_S = 5.0
"""A process that lives this long after the end of a run has acknowledged it."""

MODULE = '''
"""Jobs that write each of their runs to a file."""

import os
import time

from framework import ApplicationWorker

FILE = os.open(os.environ["RUNS_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


class RetriedWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "retried"
    idempotent = True
    max_retries_after_interruption = -1
    status_expiration = 3600

    def perform(self, number: int) -> None:
        os.write(FILE, f"{self.jid} {os.getpid()} {time.monotonic()}\\n".encode())
'''


def fill(redis):
    now = time.time()
    for start in range(0, JOBS, 5_000):
        pipeline = redis.pipeline(transaction=False)
        for number in range(start, min(JOBS, start + 5_000)):
            fields = {"queue": "retried", "retry_count": 25, "error_class": "OSError", "failed_at": now - 60.5}
            fields |= {"idempotency_key": keys.lock(f"{number:064x}"), "status_expiration": 3600}
            data = encoded("RetriedWorker", jid=f"{number:024x}", args=[number], **fields)
            pipeline.zadd(keys.DEAD, {data: now - number / 1_000})
        pipeline.execute()
    redis.zadd(keys.DEAD, {encoded("OtherWorker", jid=f"other{number}"): now for number in range(OTHERS)})


class Operators:
    """Two commands at a time that retry the same jobs, each for a second; every third one is killed."""

    def __init__(self, site):
        self._site = site
        self._running = []
        self.started = 0

    def step(self):
        self._running = [one for one in self._running if one.popen.poll() is None]
        while len(self._running) < 2:
            words = ("retry", "--class", "RetriedWorker", "--error", "OSError", "--yes", "--time-limit", "1s")
            self._running.append(self._site.start(str(ROOT / "scripts" / "jobs"), *words))
            self.started += 1
            if self.started % 3 == 0:
                time.sleep(0.3)  # somewhere in its work
                self._running[-1].kill()

    def end(self):
        for one in self._running:
            one.wait()


def unexplained(runs, killed):
    """Return the jobs that ran again although no process was killed before it could acknowledge their run."""
    found = []
    for jid, ran in runs.items():
        for pid, ended_at in sorted(ran, key=lambda run: run[1])[:-1]:
            if pid not in killed or killed[pid] - ended_at > ACKNOWLEDGED_S:
                found.append((jid, ran))
    return found


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.proves("F1", "I1", "R31")
def test_dead_jobs_retried_under_kills_run_and_none_is_doubled(site, redis, measured, record_property):
    record_property("jobs", JOBS)
    (site.folder / "retried_jobs.py").write_text(MODULE)
    runs_file = site.folder / "runs"
    fill(redis)
    environment = {"RUNS_FILE": str(runs_file), "FRAMEWORK_LOGGING__JOBS": "false"}
    workers = [site.worker("-r", "retried_jobs", "-q", "retried", "-c", "5", **environment).ready() for _ in range(2)]
    operators, killed = Operators(site), {}
    done_before_kill = iter(range(JOBS // (KILLS + 1), JOBS, JOBS // (KILLS + 1)))
    next_kill = next(done_before_kill)
    while redis.zcard(keys.DEAD) > OTHERS:
        operators.step()
        if JOBS + OTHERS - redis.zcard(keys.DEAD) > next_kill:
            next_kill = next(done_before_kill, JOBS)
            victim = workers.pop(0)
            victim.send(signal.SIGKILL)
            victim.popen.wait(20)
            killed[victim.pid] = time.monotonic()
            workers.append(site.worker("-r", "retried_jobs", "-q", "retried", "-c", "5", **environment).ready())
    operators.end()
    working = [keys.working(name.decode()) for name in redis.zrange(keys.REGISTRY, 0, -1)]
    until(lambda: not redis.llen("queue:retried") and not any(map(redis.llen, working)), "the end of the jobs", 120)
    until(lambda: len({line.split()[0] for line in runs_file.read_text().splitlines()}) == JOBS, "the last run", 60)
    for worker in workers:
        assert worker.end() == 0
    runs = defaultdict(list)
    for line in runs_file.read_text().splitlines():
        jid, pid, ended_at = line.split()
        runs[jid].append((int(pid), float(ended_at)))
    assert len(runs) == JOBS
    assert not unexplained(runs, killed), Counter(len(ran) for ran in runs.values())
    # How many depends on the machine: the operators retry thousands of jobs in a second.
    assert killed
    assert redis.zcard(keys.DEAD) == OTHERS
    assert not redis.exists(keys.RETRY, keys.INTERRUPTED, keys.SCHEDULE)
    assert not redis.keys(f"{keys.LOCKS}*")
    states = Counter(redis.mget([keys.status(f"{number:024x}") for number in range(JOBS)]))
    assert states == {b"completed": JOBS}
    measured("second runs", sum(map(len, runs.values())) - JOBS)
    measured("operators", operators.started)
