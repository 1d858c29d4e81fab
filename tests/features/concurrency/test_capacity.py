"""Check limited capacity workers in real processes: at most the limit runs, and after any kill the limit runs again."""

import json
import shutil
import threading
from pathlib import Path

import pytest

from framework.all_settings import load
from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.errors import ArgumentsError, DeclarationError
from framework.features.concurrency.limited_capacity import LimitedCapacityWorker
from framework.process.signals import SWEEP
from framework.wire import keys
from framework.wiring.client import ProcessClient, override
from tests.harness import until
from tests.tables import each_row

JOBS = Path(__file__).resolve().parent / "capacity_jobs.py"
QUICK = """
from dataclasses import replace
from framework import timings
timings.use(replace(timings.STANDARD, record_period_s=0.2, sweep_period_s=0.2))
from framework.features.concurrency import limits
limits.CALLABLE_TTL_S = 0.05
from framework.cli.worker import main
main()
"""
RUNNING = f"{keys.limit('DrainWorker')}:running"


@pytest.fixture
def site(site):
    shutil.copy(JOBS, site.folder / "jobs.py")
    return site


@pytest.fixture
def worker(site):
    return lambda: site.start("-c", QUICK, "-r", "jobs", "-c", "4").ready()


@pytest.fixture
def capacity(site):
    """Call ``perform_with_capacity`` as a cron job would; return how many jobs it enqueued."""

    def call(text="DrainWorker.perform_with_capacity(7, mode='fast')"):
        done = site.run("-c", f"from jobs import *\nprint(len({text}))")
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    return call


def never_more_than(redis, limit):
    assert max(map(int, redis.lrange("seen", 0, -1))) <= limit
    return True


def test_capacity_jobs_until_work_ends_stay_within_limit(worker, capacity, redis):
    redis.rpush("work", *range(60))
    redis.rpush("async work", *range(20))
    assert (capacity(), capacity()) == (3, 0)
    assert [json.loads(job)["args"] for job in redis.lrange("queue:default", 0, -1)] == [[7, "fast"]] * 3
    assert capacity("AsyncDrainWorker.perform_with_capacity()") == 2
    first, _ = worker(), worker()
    until(lambda: redis.llen("done") == 60, "all is done")
    until(lambda: redis.llen("async done") == 20, "all of the others too")
    until(lambda: not redis.exists("queue:default", RUNNING), "all have ended")
    never_more_than(redis, 3)
    assert sorted(map(int, redis.lrange("done", 0, -1))) == list(range(60))
    line = first.line(job_status="done", **{"class": "DrainWorker"})
    assert line["extra.drain_worker.remaining_work_count"] >= 0
    assert capacity() == 3  # no work: the jobs find none, and end
    until(lambda: not redis.exists("queue:default", RUNNING), "they have looked")


def test_capacity_failed_or_killed_job_is_replaced(worker, capacity, redis):
    redis.rpush("work", "fail", *range(10))  # the last that is taken
    redis.rpush("work", "fail", "fail")  # the first
    redis.set("hold", 1)
    processes = [worker(), worker()]
    assert capacity() == 3
    until(lambda: redis.llen("seen") == 3, "three hold the slots")
    assert (redis.zcard(RUNNING), capacity()) == (3, 0)
    assert capacity("[DrainWorker.perform_async(7)]") == 1  # one too many
    lines = until(lambda: [line for process in processes for line in process.find(job_status="dropped")], "dropped")
    assert lines[0]["dropped_reason"] == "running or about to run: 3 of 3 jobs (max_running_jobs)"
    assert not redis.keys(f"{keys.limit('DrainWorker')}:waiting*")  # no job waits for a slot
    killed = max(
        processes, key=lambda process: sum(process.identity in str(one) for one in redis.zrange(RUNNING, 0, -1))
    )
    processes.remove(killed)
    killed.kill()
    # The lease is still there: none of its jobs has started again, and the count of the running ones can be corrected.
    redis.set(
        "running", redis.zcard(RUNNING) - sum(killed.identity in str(one) for one in redis.zrange(RUNNING, 0, -1))
    )
    redis.delete(keys.lease(killed.identity))
    redis.zadd(keys.REGISTRY, {killed.identity: -1})

    def back():
        processes[0].send(SWEEP)
        return redis.zcard(RUNNING) == 3 and all(
            killed.identity.encode() not in one for one in redis.zrange(RUNNING, 0, -1)
        )

    until(back, "what was killed runs again")
    assert capacity() == 0
    redis.delete("hold")
    until(lambda: redis.zcard(keys.DEAD) + redis.llen("done") >= 9, "other jobs run")
    until(lambda: not redis.exists("queue:default", RUNNING), "until no job is left")
    while redis.llen("work"):
        assert 0 <= capacity() <= 3  # a job that has just ended may be about to be followed by the next
        until(lambda: not redis.exists("queue:default", RUNNING), "again")
    never_more_than(redis, 3)
    assert redis.zcard(keys.RETRY) == 0


def test_capacity_failing_callable_keeps_limit_and_zero_stops(worker, capacity, redis):
    redis.set("hold", 1)
    redis.rpush("work", *range(8))
    process = worker()
    redis.set("most", 2)
    assert capacity() == 2
    until(lambda: redis.llen("seen") == 2, "two run")
    redis.set("most", "raises")
    redis.delete("hold")
    process.line(event_name="limited_capacity.push_failed")  # the first of them: how many to enqueue is not known
    redis.set("most", 0)
    assert capacity() == 0
    until(lambda: not redis.exists("queue:default"), "the rest of the way")
    redis.set("most", 2)
    assert capacity() <= 2
    until(lambda: redis.llen("done") == 8, "the remaining jobs run")
    until(lambda: not redis.exists("queue:default", RUNNING), "and comes to rest")
    redis.rpush("work", 1)
    assert capacity() == 2
    until(lambda: redis.llen("done") == 9)


def test_capacity_zero_ends_waiting_jobs_unknown_runs_one(worker, capacity, redis):
    redis.set("most", 2)
    assert capacity() == 2
    redis.set("most", 0)
    process = worker()
    lines = until(lambda: len(found := process.find(job_status="dropped")) == 2 and found, "both end")
    assert lines[0]["dropped_reason"] == "max_running_jobs is 0"
    until(lambda: not redis.exists(RUNNING), "their slots are free")
    redis.set("most", 2)
    redis.set("hold", 1)
    until(lambda: capacity() == 0 and redis.llen("seen") == 2, "they run, once the process has asked again")
    redis.delete("hold")
    process.end()
    redis.set("most", "raises")
    worker()
    assert capacity("[DrainWorker.perform_async(7)]") == 1
    until(lambda: redis.llen("seen") == 3, "it runs")


@pytest.fixture
def drain(redis, redis_url):
    # An earlier test of this process may have opened the default client on another server.
    client = ProcessClient(load({"REDIS_URL": redis_url}))
    with override(client), registry.isolated():

        class DrainWorker(LimitedCapacityWorker):
            feature_category = "not_owned"
            queue = "default"
            wire_name = "DrainWorker"
            max_running_jobs = 5

            def perform_work(self, shop):
                pass

            def remaining_work_count(self, shop):
                return 0

        yield DrainWorker
    client.shards.close()


def test_capacity_overlapping_calls_enqueue_only_missing_jobs(drain, redis):
    found = []
    threads = [threading.Thread(target=lambda: found.extend(drain.perform_with_capacity(1))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == redis.llen("queue:default") == redis.zcard(RUNNING) == 5
    assert {f" {jid}".encode() for jid in found} == set(redis.zrange(RUNNING, 0, -1))
    redis.zadd(RUNNING, {f" {found[0]}": 1, f" {found[1]}": 1})  # they have waited for too long, or are lost
    assert len(drain.perform_with_capacity(1)) == 2
    with pytest.raises(ArgumentsError, match="is missing"):
        drain.perform_with_capacity()


def declared(base=LimitedCapacityWorker, **body):
    return type(
        "OddWorker", (base,), {"__module__": __name__, "feature_category": "not_owned", "max_running_jobs": 1, **body}
    )


def work(self, shop):
    pass


async def async_count(self, shop):
    return 0


@each_row(
    ("body", "attribute", "words"),
    [
        ({"perform": work}, "perform", "Write def perform_work"),
        ({"perform_work": None}, "perform_work", "missing"),
        ({"remaining_work_count": None}, "remaining_work_count", "missing"),
        ({"remaining_work_count": lambda self: 0}, "remaining_work_count", "must have the parameters of perform_work"),
        ({"remaining_work_count": async_count}, "remaining_work_count", "would not be awaited"),
        ({"max_running_jobs": None}, "max_running_jobs", "missing"),
        ({"max_running_jobs": "many"}, "max_running_jobs", "Allowed: a whole number"),
        ({"retry": 3}, "retry", "the next perform_with_capacity replaces a retry"),
        ({"concurrency_limit": 3}, "concurrency_limit", "Leave it out"),
    ],
)
def test_capacity_contradicting_declaration_is_refused(body, attribute, words):
    whole = {"perform_work": work, "remaining_work_count": lambda self, shop: 0} | body
    with registry.isolated(), pytest.raises(DeclarationError, match=words) as caught:
        declared(**{name: value for name, value in whole.items() if value is not None or name == "max_running_jobs"})
    assert caught.value.attribute == attribute


def test_capacity_attribute_on_other_worker_is_refused():
    with registry.isolated(), pytest.raises(DeclarationError, match="belongs to a LimitedCapacityWorker"):
        declared(ApplicationWorker, perform=work)


def test_capacity_idempotent_worker_is_not_deduplicated(drain):
    class IdempotentWorker(drain):
        idempotent = True

    assert IdempotentWorker.declaration().deduplicate is None
