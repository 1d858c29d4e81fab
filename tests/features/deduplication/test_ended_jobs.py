"""A job that will not run holds up no equal push: after its cancellation, that of its batch, and its expiry."""

import json
from datetime import timedelta

import pytest

import framework
from framework.admin.queue_actions import drop_job
from framework.batches import Batch
from framework.declare.policy_options import Deduplicate
from framework.store.script import MARK_CANCELLED
from framework.testing import fake
from framework.wire import keys
from tests.features.deduplication.test_admission import EXECUTED, EXECUTING, EXPIRED, ONCE_MORE, Held
from tests.harness import until

SCHEDULED = Deduplicate("until_executed", including_scheduled=True)
ACCUMULATE = Deduplicate("accumulate", window=timedelta(minutes=1))
DEBOUNCE = Deduplicate("debounce", window=timedelta(minutes=1))
PLAIN = [EXECUTING, EXECUTED, ONCE_MORE, EXPIRED]


@pytest.fixture
def held():
    made = Held()
    yield made
    made.free.release(100)


def collect(self, items: list[int]) -> None:
    """Take the items of many pushes."""


def cancel(bench, jid):
    assert bench.at_admission.shards.cancel(jid)


@pytest.mark.parametrize("policy", PLAIN, ids=lambda one: one.strategy + (one.if_deduplicated or ""))
def test_ended_job_cancelled_frees_the_push(bench, policy):
    job = bench.worker(lambda self, number: None, policy)
    first = job.perform_async(1)
    cancel(bench, first)
    second = job.perform_async(1)
    assert second is not None
    # The new job has the lock, whatever becomes of the other.
    assert bench.locks().keys() == {second}
    assert job.perform_bulk([(1,), (2,), (2,)])[::2] == [None, None]


def test_ended_job_cancelled_in_the_schedule_frees_the_push(bench):
    job = bench.worker(lambda self, number: None, SCHEDULED)
    first = job.perform_in(3_600, 1)
    assert job.perform_in(60, 1) is None
    cancel(bench, first)
    assert job.perform_in(60, 1) is not None


@pytest.mark.parametrize("policy", [ACCUMULATE, DEBOUNCE], ids=lambda one: one.strategy)
def test_ended_job_cancelled_in_its_window_frees_the_push(bench, policy):
    job = bench.worker(collect, policy)
    cancel(bench, job.perform_async([1]))
    jid = job.perform_async([1])
    assert jid in [json.loads(data)["jid"] for data in bench.redis.zrange(keys.SCHEDULE, 0, -1)]
    assert bench.locks().keys() == {jid}


def test_ended_job_cancelled_with_its_batch_frees_the_push(bench):
    job = bench.worker(lambda self, number: None, EXECUTED)
    batch, later = Batch(), Batch()
    with batch.jobs():
        job.perform_async(1)
    assert job.perform_async(1) is None
    batch.cancel()
    with later.jobs():
        job.perform_async(1)
    assert later.status.total == 1
    later.cancel()
    assert job.perform_async(1) is not None


@pytest.mark.parametrize("policy", [EXECUTING, EXECUTED, EXPIRED], ids=lambda one: one.strategy)
def test_ended_job_expired_frees_the_push(bench, policy):
    job = bench.worker(lambda self, number: None, policy, expires_in=timedelta(hours=1))
    first = job.perform_async(1)
    assert job.perform_async(1) is None
    bench.redis.hset(bench.locks()[first], "expiry", "1.0")
    assert job.perform_async(1) is not None


def test_ended_job_expiry_is_noted_by_every_push(bench):
    job = bench.worker(lambda self, number: None, SCHEDULED, expires_in=timedelta(hours=1))
    now = bench.redis.time()[0]
    jids = [job.perform_async(1), job.perform_in(3_600, 2), job.set(expires_in=7_200).perform_async(3)]
    batch = Batch()
    with batch.jobs():
        jids += [job.perform_async(4), job.perform_in(3_600, 5)]
    found = [float(bench.lock(jid)["expiry"]) - now for jid in jids]
    assert found == pytest.approx([3_600, 7_200, 7_200, 3_600, 7_200], abs=30)
    assert bench.lock(jids[3])["bid"] == batch.bid


def test_ended_job_expired_in_its_window_gets_no_items(bench):
    job = bench.worker(collect, ACCUMULATE, expires_in=60)
    first = job.perform_async([1])
    assert job.perform_async([2]) == first
    bench.redis.hset(bench.locks()[first], "expiry", "1.0")
    assert job.perform_async([3]) != first


def test_running_job_keeps_its_lock_past_its_expiry(bench, held):
    job = bench.worker(held.perform(), EXECUTED, expires_in=timedelta(hours=1))
    first = job.perform_async(1)
    slots = bench.start(1)
    assert held.began.acquire(timeout=30)
    bench.redis.hset(bench.locks()[first], "expiry", "1.0")
    assert job.perform_async(1) is None
    cancel(bench, first)
    second = job.perform_async(1)
    assert second is not None
    held.free.release(2)
    until(slots.done)
    assert held.ran == [first, second]
    assert bench.locks() == {}


def test_failed_job_expires_while_its_retry_waits(bench):
    def perform(self, number):
        raise ValueError("on purpose")

    job = bench.worker(perform, EXECUTED, expires_in=timedelta(hours=1))
    first = job.perform_async(1)
    slots = bench.start(1)
    until(slots.done)
    assert bench.redis.zcard(keys.RETRY) == 1
    assert job.perform_async(1) is None
    bench.redis.hset(bench.locks()[first], "expiry", "1.0")
    assert job.perform_async(1) is not None


def test_period_of_a_job_that_began_outlasts_its_cancellation(bench):
    job = bench.worker(lambda self, number: None, EXPIRED)
    first = job.perform_async(1)
    slots = bench.start(1)
    until(slots.done)
    cancel(bench, first)
    assert job.perform_async(1) is None


def test_cancelled_job_leaves_the_lock_of_the_next_one(bench):
    job = bench.worker(lambda self, number: None, EXECUTED)
    first = job.perform_async(1)
    cancel(bench, first)
    second = job.perform_async(1)
    (data,) = [one for one in bench.redis.lrange(keys.queue("default"), 0, -1) if first.encode() in one]
    assert drop_job(bench.redis, "default", data, from_left=True)
    assert bench.locks().keys() == {second}


def test_mark_and_lock_are_one_step(bench):
    """At each moment either the job is not cancelled and has its lock, or it is, and the lock holds up no push."""
    job = bench.worker(lambda self, number: None, EXECUTED)
    first = job.perform_async(1)
    assert job.perform_async(1) is None
    MARK_CANCELLED(bench.redis, [keys.CANCELLED, keys.status(first)], [keys.CANCELLED_TTL_S, first])
    assert job.perform_async(1) is not None
    # A mark of another type is none.
    bench.redis.delete(keys.CANCELLED)
    bench.redis.set(keys.CANCELLED, "garbage")
    assert job.perform_async(1) is None


def test_ended_job_frees_the_push_in_a_fake(bench):
    executed = bench.worker(lambda self, number: None, EXECUTED, wire_name="Executed")
    expiring = bench.worker(lambda self, number: None, EXECUTED, wire_name="Expiring", expires_in=60)
    with fake() as jobs:
        framework.cancel(executed.perform_async(1))
        assert executed.perform_async(1) is not None
        batch = Batch()
        with batch.jobs():
            executed.perform_async(2)
        batch.cancel()
        assert executed.perform_async(2) is not None
        assert expiring.perform_async(1) is not None
        assert expiring.perform_async(1) is None
        jobs.clock.advance(61)
        assert expiring.perform_async(1) is not None
