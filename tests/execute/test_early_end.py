"""Jobs that end without running: too old."""

import json
import time

import pytest

from framework.declare import registry
from framework.finish.endings import EXPIRED_JOBS
from framework.policies.concurrency.admission import ClassLimit
from framework.policies.concurrency.limits import FleetSlots, Limits
from framework.policies.concurrency.slots import LimitSlots
from framework.telemetry.counters import counters
from framework.wire import keys
from tests.execute.processor_bench import ProcessorBench, state, worker
from tests.harness import IDENTITY, enqueue, until

JID = "ab" * 12


@pytest.fixture
def bench(redis, redis_url, monkeypatch):
    monkeypatch.setattr(counters, "_counts", {})
    made = []

    def make(count=1, **options):
        made.append(ProcessorBench(redis, redis_url, count, (), **options))
        return made[-1]

    with registry.isolated():
        yield make
        for one in made:
            one.stop()


def test_expired_job_ends_without_running(bench, redis):
    ran = []
    worker(lambda self: ran.append(self.jid))
    lock = keys.lock("e")
    redis.hset(lock, mapping={"jid": "old", "class": "Job"})
    now = time.time()
    enqueue(redis, "Job", jid="old", expires_in=60, enqueued_at=now - 90, status_expiration=60, idempotency_key=lock)
    enqueue(redis, "Job", jid="young", expires_in=60, enqueued_at=now - 30)
    enqueue(redis, "Job", jid="fixed", expires_in=60, expiry=now - 5, enqueued_at=now)
    one = bench().start()
    until(one.done)
    assert ran == ["young"]
    assert (state(redis, "old"), redis.exists(lock)) == ("expired", 0)
    (line, other) = one.lines(job_status="expired")
    assert (line["jid"], other["jid"]) == ("old", "fixed")
    assert line["expired_for_s"] >= 30
    assert other["expired_for_s"] >= 5
    assert counters._counts == {f'{EXPIRED_JOBS}{{worker="Job"}}': 2}
    assert (one.runs.totals().processed, one.runs.totals().failed, one.failed) == (3, 0, [])


@pytest.mark.parametrize("kind", ["alone", "together"])
def test_expired_job_asks_no_policy_and_takes_no_slot(bench, redis, granted, kind):
    """It waits in the buffer of a process, where other jobs are admitted together."""
    limit, taken = keys.limit("Job"), []
    worker(lambda self: taken.append(redis.zcard(f"{limit}:running")), concurrency_limit=10)
    policy = ClassLimit(LimitSlots(granted, IDENTITY), Limits(FleetSlots(granted), {}))
    old = {"expires_in": 60, "enqueued_at": time.time() - 61}
    for number in range(4 if kind == "together" else 1):
        enqueue(redis, "Job", jid=f"a{number}")
        enqueue(redis, "Job", jid=f"b{number}", status_expiration=60, **old)
    one = bench(policies=[policy]).start()
    until(one.done)
    assert len(one.lines(job_status="expired")) == len(taken)
    assert max(taken) <= len(taken)
    assert redis.zcard(f"{limit}:running") == 0
    assert state(redis, "b0") == "expired"


def test_retry_of_a_job_keeps_the_first_expiry(bench, redis):
    worker(lambda self: 1 / 0)
    pushed = round(time.time(), 1) + 0.05
    enqueue(redis, "Job", jid=JID, expires_in=60, enqueued_at=pushed, retry=3)
    enqueue(redis, "Job", jid="dead", expires_in=60, expiry=pushed + 60, enqueued_at=pushed, retry=0)
    until(bench().start().done)
    (again,) = map(json.loads, redis.zrange(keys.RETRY, 0, -1))
    assert again["expiry"] == pytest.approx(pushed + 60, abs=1e-3)
    (dead,) = map(json.loads, redis.zrange(keys.DEAD, 0, -1))
    assert "expiry" not in dead


def test_expired_job_of_a_foreign_class_is_left_alone(bench, redis):
    enqueue(redis, "Unknown", jid=JID, expires_in=60, enqueued_at=time.time() - 61)
    one = bench().start()
    until(lambda: redis.zcard(keys.SCHEDULE) == 1)
    (job,) = map(json.loads, redis.zrange(keys.SCHEDULE, 0, -1))
    assert (one.unknown, job["expires_in"], "expiry" in job) == (["Unknown"], 60, True)
