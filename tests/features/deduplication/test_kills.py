"""Push a few keys from 64 threads while worker processes are killed; then check the history of the server at each instant."""

import json
import os
import random
import shutil
import signal
import time
from collections import defaultdict
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import pytest

from framework.schedule.poller import PAGE_SIZE
from framework.wire import keys
from framework.wire.resources import IDEMPOTENCY_KEY
from tests.harness import Site, until
from tests.proofs.aof import History
from tests.proofs.keyspace import Fields, Keyspace
from tests.proofs.places import DUE, END, WAITING, place_of
from tests.proofs.prover import prove
from tests.servers.recorded import RecordedServer

HERE = Path(__file__).resolve().parent
SECONDS = 1.6
RELEASED_AT_START = {"ExecutingWorker", "WaitingWorker"}
KILL_EVERY_S = 0.5


@lru_cache(maxsize=10_000)
def read(payload):
    return json.loads(payload)


class HistoryChecker:
    """Replay a history; after each step check that no two live jobs share a key and that each waiting job has its lock."""

    def __init__(self):
        self.keyspace = Keyspace()
        self.problems = []
        self.pushed, self.next_runs = set(), set()

    def apply(self, group):
        for command in group.commands:
            self.keyspace.apply(command)
        if self.keyspace.moves or self.keyspace.held:
            self.keyspace.moves.clear()
            self.keyspace.held.clear()
            self._check_state(group.number)

    def _check_state(self, number):
        found = defaultdict(list)
        for key, members in self.keyspace.keys.items():
            place = place_of(key)
            if place in (None, END):
                continue
            for member in members:
                job = read(member)
                (self.next_runs if job.get("rescheduled_once") else self.pushed).add(job["jid"])
                if IDEMPOTENCY_KEY in job:
                    found[job[IDEMPOTENCY_KEY]].append((job, place))
        for key, jobs in found.items():
            self._check_key(number, key, jobs)

    def _check_key(self, number, key, jobs):
        fields = self.keyspace.keys.get(key.encode())
        owner = fields[b"jid"].decode() if isinstance(fields, Fields) else None
        # A job that was interrupted during its run has released its lock; an equal job may wait at the same time.
        waiting = [job for job, place in jobs if place == WAITING and not job.get("aw_suspect")]
        is_released = jobs[0][0]["class"] in RELEASED_AT_START
        live = waiting if is_released else [job for job, _ in jobs]
        if len(live) > 1:
            self.problems.append((number, "two live jobs", key, [job["jid"] for job in live]))
        if live and owner != live[0]["jid"]:
            self.problems.append((number, "a live job without its lock", key, live[0]["jid"], owner))
        if owner is None and not is_released and any(place in (WAITING, DUE) for _, place in jobs):
            self.problems.append((number, "one that waits has no lock", key))


def children(cluster):
    alive = set()
    for line in cluster.lines:
        if line.get("event_name") == "process.ready":
            alive.add(line["pid"])
        elif line.get("event_name") in ("child.died", "child.stopped", "child.killed"):
            alive.discard(line["child_pid"])
    return sorted(alive)


@pytest.fixture
def bench(short_path):
    with RecordedServer(short_path / "redis") as server, server.open() as client:
        site = Site(short_path, server.url, warm=True)
        site.write("application.yml", {"poll_interval": 0.1})
        shutil.copy(HERE / "dedup_jobs.py", short_path / "jobs.py")
        shutil.copy(HERE / "dedup_producer.py", short_path)
        yield site, server, client
        site.close()


COUNT_JOBS = """
local count = redis.call("zcard", KEYS[1]) + redis.call("zcard", KEYS[2])
for _, pattern in ipairs(ARGV) do
  for _, key in ipairs(redis.call("keys", pattern)) do count = count + redis.call("llen", key) end
end
return count
"""


def left(client):
    """Return how many jobs have not ended, counted at one instant, as jobs move meanwhile; and make all retries due."""
    for member in client.zrange(keys.RETRY, 0, -1):
        client.zadd(keys.RETRY, {member: 1}, xx=True)
    return client.eval(COUNT_JOBS, 2, keys.SCHEDULE, keys.RETRY, "queue:*", "aw:working:*")


def push_and_kill(site, cluster, seconds, *classes, meanwhile=lambda: None):
    """Push these classes from four processes, and kill those that run the jobs; return what was pushed, and the number of kills."""
    producer = str(site.folder / "dedup_producer.py")
    producers = [site.start(producer, str(seconds), *classes) for _ in range(4)]
    rng, kills, killed_at = random.Random(7), 0, time.monotonic()
    while any(one.popen.poll() is None for one in producers):
        time.sleep(0.02)
        meanwhile()
        if time.monotonic() - killed_at > KILL_EVERY_S and (found := children(cluster)):
            killed_at = time.monotonic()
            with suppress(ProcessLookupError):
                os.kill(rng.choice(found), signal.SIGKILL)
                kills += 1
    results = [one.lines[-1] for one in producers]
    assert [one["errors"] for one in results] == [[]] * 4
    return results, kills


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.proves("F44", "I9")
def test_kills_leave_no_lock_of_a_job_that_is_gone(bench):
    """Another program deletes waiting jobs; the leader, which is killed too, deletes their locks, and those of no other job."""
    site, server, client = bench
    size = ("--processes", "2", "--max-concurrency", "4")
    cluster = site.start("-m", "framework", "cluster", "-r", "jobs", "default,other", *size)
    until(lambda: len(children(cluster)) == 2, "two processes are ready")
    stolen = []
    results, kills = push_and_kill(
        site, cluster, 8.0, "WaitingWorker", meanwhile=lambda: stolen.extend(client.rpop("queue:default", 5) or [])
    )
    until(lambda: not left(client), "every job has come to its end", timeout_s=60)
    until(lambda: client.keys("aw:lock:*") == [], "no lock is left", timeout_s=120)
    assert cluster.end() == 0
    server.written()
    assert kills >= 2
    assert len(stolen) > 20
    checker = HistoryChecker()
    for group in History(site.folder / "redis").groups():
        checker.apply(group)
    assert checker.problems[:3] == []
    assert checker.pushed == {jid for one in results for jid in one["accepted"]}
    deleted = sum(line["count"] for line in cluster.find(event_name="deduplication.locks_left"))
    assert 0 < deleted <= len(stolen)


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.proves("F44", "R38", "R40", "I9")
def test_dedup_kills_leave_one_of_equal_jobs(bench):
    site, server, client = bench
    size = ("--processes", "2", "--max-concurrency", "4")
    cluster = site.start("-m", "framework", "cluster", "-r", "jobs", "default,other", *size)
    until(lambda: len(children(cluster)) == 2, "two processes are ready")
    results, kills = push_and_kill(site, cluster, SECONDS, "ExecutingWorker", "ExecutedWorker", "OnceMoreWorker")
    until(lambda: not left(client), "every job has come to its end", timeout_s=60)
    logged = {status: len(cluster.find(job_status=status)) for status in ("rescheduled", "deduplicated")}
    counted = sum(int(value) for name, value in client.hgetall(keys.COUNTERS).items() if b"deduplicated" in name)
    assert client.keys("aw:lock:*") == []
    assert cluster.end() == 0
    server.written()

    accepted = [jid for one in results for jid in one["accepted"]]
    assert kills >= 2
    assert len(accepted) == len(set(accepted)) > 100
    checker = HistoryChecker()
    for group in History(site.folder / "redis").groups():
        checker.apply(group)
    assert checker.problems[:3] == []
    assert checker.pushed == set(accepted)
    verdict = prove(site.folder / "redis")
    assert not [str(violation) for violation in verdict.violations]
    dropped_when_due = verdict.ends["dropped, a duplicate when it became due"]
    assert counted == sum(one["dropped"] for one in results) + dropped_when_due > 100
    # A process that is killed at that moment does not write its log line.
    assert 0 < logged["deduplicated"] <= dropped_when_due <= logged["deduplicated"] + PAGE_SIZE * kills
    assert 0 < logged["rescheduled"] <= len(checker.next_runs) <= logged["rescheduled"] + PAGE_SIZE * kills
