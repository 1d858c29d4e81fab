"""Check whole processes that serve a queue with levels: order, a kill, a stop, a pause, retries, and a Ruby process at the queue."""

import json
from collections import Counter

import pytest

from framework.store.script import RING
from framework.wire import keys
from tests.harness import register_process, until

JOBS = """
import os, time, redis
from framework import ApplicationWorker

proofs = redis.Redis.from_url(os.environ["PROOF_URL"])


class LevelWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "levels"
    priority = "low"
    retry = 3
    max_retries_after_interruption = -1

    @classmethod
    def retry_in(cls, count, error, job):
        return 0

    def perform(self, level: str, number: int) -> None:
        proofs.rpush("ran", f"{level} {number}")
        while proofs.exists("hold"):
            time.sleep(0.01)
        if number == 7 and proofs.hincrby("failed", level, 1) == 1:
            raise ValueError("once")
"""
PUSH = """
from jobs import LevelWorker
LevelWorker.perform_bulk([("low", number) for number in range(200)])
for level in ("normal", "high", "critical"):
    LevelWorker.set(priority=level).perform_bulk([(level, number) for number in range(20)])
"""
ARGS = ("-q", "levels", "-c", "2")


@pytest.mark.campaign
def test_killed_process_of_a_queue_with_levels_loses_no_job(redis, site):
    (site.folder / "jobs.py").write_text(JOBS)
    redis.set("hold", 1)
    killed = site.worker(*ARGS)
    assert site.run("-c", PUSH).returncode == 0
    until(lambda: redis.llen("ran") == 2, "two jobs")
    killed.kill()
    stopped = site.hurried_worker(*ARGS, "-t", "1")
    until(lambda: redis.llen("ran") == 4, "the next two jobs")
    assert {one.split()[0] for one in redis.lrange("ran", 2, 3)} <= {b"critical", b"high", b"low"}
    assert stopped.end() == 0
    # Every job is in a list of the queue, and each level has its own.
    counts = {name: redis.llen(f"queue:levels{name}") for name in ("", "~critical^", "~high^", "~low^")}
    in_flight = sum(redis.llen(key) for key in redis.scan_iter("aw:working:*"))
    assert sum(counts.values()) + in_flight == 260
    redis.delete("hold", "ran")
    # A program deletes the job for which idle processes wait, and puts it back without a word to them.
    last = site.hurried_worker(*ARGS)
    until(lambda: len(set(redis.lrange("ran", 0, -1))) == 260, "all jobs", 60)
    until(lambda: redis.hlen("failed") == 4 and redis.llen("ran") >= 264, "the second runs")
    until(lambda: not redis.exists(keys.turns("levels"), keys.levels("levels"), "queue:levels"), "no turns")
    assert last.end() == 0
    ran = [one.decode().split()[0] for one in redis.lrange("ran", 0, -1)]
    assert Counter(ran[:50])["low"] <= 8
    assert redis.smembers(keys.QUEUES) == {b"levels"}
    register_process(redis, {"queues": ["levels"], "labels": []})
    refused = site.worker(*ARGS)
    assert refused.wait() == 78
    assert "LevelWorker declares priority, and a Ruby process serves its queue levels" in refused.output


@pytest.mark.campaign
def test_idle_process_finds_jobs_that_no_push_announces(redis, site):
    (site.folder / "jobs.py").write_text(JOBS)
    idle = site.hurried_worker(*ARGS)
    until(lambda: any("b" in one["flags"] for one in redis.client_list()), "a blocking call")
    assert site.run("-c", "from jobs import *; LevelWorker.perform_async('first', 0)").returncode == 0
    until(lambda: redis.llen("ran") == 1, "a job")
    # As after a program has deleted the only job of the queue's own list.
    payload = json.dumps(
        {"class": "LevelWorker", "jid": "f" * 24, "args": ["found", 1], "queue": "levels", "retry": True}
    )
    redis.lpush("queue:levels~low^", payload)
    redis.zadd(keys.turns("levels"), {"low^": 2**44 + 1})
    until(lambda: redis.llen("ran") == 2, "the job of the sub-queue", 30)
    assert idle.end() == 0
    RING(redis, [], ["levels"])
    assert not redis.exists(keys.levels("levels"))
