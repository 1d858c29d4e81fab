"""Jobs that end early: too old, or cancelled before or during their run."""

import asyncio
import json
import threading
import time

import pytest

from framework.declare import registry
from framework.errors import RetryLater
from framework.execute.admission import LimitSlots
from framework.features.concurrency.admission import ClassLimit
from framework.features.concurrency.limits import FleetSlots, Limits
from framework.finish.endings import CANCELLED_JOBS, EXPIRED_JOBS
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


# --- cancellation ---------------------------------------------------------------------------------------------------


def cancel(one, *jids):
    """Mark jobs, and let the process read the marks, as it does every few seconds."""
    assert one.shard.cancel(jids) == [True] * len(jids)
    one.cancellations.refresh()


def test_cancelled_job_ends_without_running(bench, redis):
    ran = []
    worker(lambda self: ran.append(self.jid))
    one = bench()
    cancel(one, JID, "unknown", "elsewhere")
    lock = keys.lock("c")
    redis.hset(lock, mapping={"jid": JID, "class": "Job"})
    enqueue(redis, "Job", jid=JID, idempotency_key=lock, status_expiration=60)
    enqueue(redis, "Unknown", jid="unknown", status_expiration=60)
    enqueue(redis, "Job", jid=["elsewhere"])
    enqueue(redis, "Job", jid="another")
    until(one.start().done)
    assert sorted(map(str, ran)) == ["['elsewhere']", "another"]
    assert (state(redis, JID), state(redis, "unknown"), redis.exists(lock)) == ("cancelled", "cancelled", 0)
    assert [line["jid"] for line in one.lines(job_status="cancelled")] == [JID, "unknown"]
    assert sum(counters._counts[f'{CANCELLED_JOBS}{{worker="{name}"}}'] for name in ("Job", "Unknown")) == 2
    # The marks of the two go with them, in the step that removes the jobs.
    assert redis.zrange(keys.CANCELLED, 0, -1) == [b"elsewhere"]
    assert (one.runs.totals().processed, one.runs.totals().failed) == (4, 0)


def test_thread_that_reads_cancelled_and_returns_is_cancelled(bench, redis):
    started, ends = threading.Event(), []

    def perform(self, reads):
        started.set()
        until(lambda: self.jid in one.runs.cancelled)
        ends.append(reads and self.cancelled)

    worker(perform)
    enqueue(redis, "Job", jid="reads", args=[True], status_expiration=60)
    enqueue(redis, "Job", jid="works", args=[False], status_expiration=60)
    one = bench(2)
    one.start()
    started.wait(10)
    cancel(one, "reads", "works")
    until(one.done)
    # A job that has not asked has done all of its work.
    assert (state(redis, "reads"), state(redis, "works")) == ("cancelled", "completed")
    assert sorted(ends) == [False, True]
    (line,) = one.lines(job_status="cancelled")
    assert (line["jid"], line["duration_s"] > 0) == ("reads", True)


@pytest.mark.parametrize(
    ("how", "end"), [("awaits", "cancelled"), ("returns", "cancelled"), ("fails", "retrying"), ("snoozes", "queued")]
)
def test_task_of_a_cancelled_async_job_is_cancelled(bench, redis, how, end):
    running, cleaned = [], []

    async def perform(self):
        running.append(self.jid)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cleaned.append(self.cancelled)
            if how == "fails":
                raise ValueError("no") from None
            if how == "snoozes":
                raise RetryLater(60) from None
            if how == "awaits":
                raise

    worker(perform)
    enqueue(redis, "Job", jid=JID, status_expiration=60, retry=3)
    one = bench().start()
    until(lambda: running)
    cancel(one, JID)
    # A second look does not cancel the clean-up.
    one.cancellations.refresh()
    until(one.done)
    assert (state(redis, JID), cleaned, one.died) == (end, [True], [])
    # A job that is not at its end keeps its mark, and ends when its turn comes.
    assert redis.zcard(keys.CANCELLED) == (0 if end == "cancelled" else 1)


def test_cancelled_error_of_another_job_is_a_failure(bench, redis):
    async def perform(self):
        raise asyncio.CancelledError

    worker(perform)
    one = bench()
    cancel(one, "another")
    enqueue(redis, "Job", jid=JID, status_expiration=60)
    until(one.start().done)
    assert state(redis, JID) == "retrying"


def test_cancelled_job_that_a_limit_holds_stays_held(bench, redis, granted):
    """The limit has moved it together with another: it is not this process's to end."""
    limit = keys.limit("Job")
    worker(lambda self: None, concurrency_limit=1)
    redis.zadd(f"{limit}:running", {"another job": time.time() + 1_000})
    policy = ClassLimit(LimitSlots(granted, IDENTITY), Limits(FleetSlots(granted), {}))
    one = bench(policies=[policy])
    for number in range(3):
        enqueue(redis, "Job", jid=str(number))
    redis.zadd(keys.CANCELLED, {"2": time.time()})
    one.start()
    until(lambda: len(one.lines(job_status="concurrency_limit")) == 3)
    assert one.fenced_units == []
