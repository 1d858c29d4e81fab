"""Check deduplication with real producers and a real worker process: flags of the shard, the poller, admission."""

import json
import signal

import pytest

from framework.features.flags.flag import Flag
from framework.features.flags.redis_flags import set_flag
from framework.wire import keys
from tests.harness import until

JOBS = """
import os
import time

from redis import Redis

from framework import ApplicationWorker, Deduplicate


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue = "default"
    idempotent = True


class PlainWorker(Base):
    def perform(self, number: int) -> None: ...


class FlaggedWorker(Base):
    deduplicate = Deduplicate(feature_flag="dedup_flagged")

    def perform(self, number: int) -> None: ...


class SlowWorker(Base):
    deduplicate = Deduplicate("until_executed")

    def perform(self, number: int) -> None:
        with Redis.from_url(os.environ["PROOF_URL"]) as proofs:
            while not proofs.exists("proof:free"):
                time.sleep(0.01)
"""


@pytest.fixture
def site(site):
    (site.folder / "jobs.py").write_text(JOBS)
    site.write("application.yml", {"poll_interval": 0.1})
    return site


@pytest.fixture
def pushed(site):
    """Push in an own process; return for each call whether the job was accepted."""

    def run(*calls):
        shown = ", ".join(f"jobs.{call} is not None" for call in calls)
        done = site.run("-c", f"import json, jobs; print(json.dumps([{shown}]))")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_dedup_process_uses_flags_poller_and_policies(site, redis, pushed):
    twice = ["FlaggedWorker.perform_async(1)"] * 2
    assert pushed("PlainWorker.perform_async(1)", "PlainWorker.perform_async(1)", *twice) == [True, False, True, True]
    set_flag(redis, Flag("dedup_flagged", 100), None)
    assert pushed(*twice, *["FlaggedWorker.perform_in(0.2, 2)"] * 2) == [True, False, True, True]
    assert len(redis.keys("aw:lock:*")) == 2
    until(lambda: redis.zcount(keys.SCHEDULE, "-inf", redis.time()[0]) == 2, "both are due")
    process = site.worker("-q", "default")
    assert process.line(job_status="deduplicated")["deduplication.type"] == "until executing"
    until(lambda: len(process.find(job_status="done")) == 5, "every job that was not dropped has run")
    until(lambda: not redis.keys("aw:lock:*"), "no lock is left")
    assert process.end() == 0


@pytest.mark.proves("F44", "R38")
def test_dedup_process_killed_run_keeps_lock_until_next_run(site, redis, pushed):
    process = site.worker("-q", "default")
    assert pushed("SlowWorker.perform_async(1)", "SlowWorker.perform_async(1)") == [True, False]
    line = process.line(job_status="start")
    process.end(signal.SIGKILL)
    redis.delete(keys.lease(process.identity))
    (lock,) = redis.keys("aw:lock:*")
    redis.zadd(keys.REGISTRY, {process.identity: -1.0})  # as a parent that has seen it die would
    successor = site.worker("-q", "default")
    assert successor.line(job_status="start")["jid"] == line["jid"]
    assert redis.hget(lock, "jid").decode() == line["jid"]
    assert pushed("SlowWorker.perform_async(1)") == [False]
    redis.set("proof:free", 1)
    successor.line(job_status="done", jid=line["jid"])
    until(lambda: not redis.exists(lock), "the lock is free")
    assert pushed("SlowWorker.perform_async(1)") == [True]
