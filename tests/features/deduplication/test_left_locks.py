"""Find the locks of waiting jobs that have gone without an end, and only those."""

import json
from datetime import timedelta
from types import SimpleNamespace

import pytest

from framework.declare.policy_options import WAITING_TTL, Deduplicate
from framework.features.deduplication import left_locks
from framework.features.deduplication.left_locks import PERIOD_S, LeftLocks, LeftLockUpkeep
from framework.wire import keys
from tests.harness import encoded

FOLLOWS = Deduplicate("until_executing", ttl=timedelta(minutes=1), while_waiting=True)
WEEKS_MS = WAITING_TTL.total_seconds() * 1_000


@pytest.fixture
def worker(bench):
    return bench.worker(lambda self, number: None, FOLLOWS)


def gone(redis, queue="default"):
    """Delete the waiting jobs as another program does."""
    redis.delete(keys.queue(queue))


def passes(redis, count=2):
    one = LeftLocks(redis)
    return [one.check() for _ in range(count)]


@pytest.mark.proves("I8")
def test_lock_of_a_waiting_job_lasts_for_weeks(bench, worker):
    first = worker.perform_async(1)
    assert WEEKS_MS - 10_000 < bench.redis.pttl(bench.locks()[first]) <= WEEKS_MS
    assert worker.perform_async(1) is None


def test_lock_without_its_job_is_deleted_by_the_second_pass(bench, worker, granted):
    worker.perform_async(1)
    gone(bench.redis)
    kept = worker.perform_async(2)
    assert passes(granted, 3) == [0, 1, 0]
    assert list(bench.locks()) == [kept]
    assert worker.perform_async(1) is not None


def test_lock_is_kept_wherever_its_job_waits(bench, worker, granted):
    jids = [worker.perform_async(number) for number in range(8)]
    queue, *data = keys.queue("default"), *bench.redis.lrange(keys.queue("default"), 0, -1)
    bench.redis.ltrim(queue, 0, 0)
    bench.redis.zadd(keys.SCHEDULE, {data[1]: 5e9})
    bench.redis.zadd(keys.RETRY, {data[2]: 5e9})
    bench.redis.lpush(keys.working("host:1:0123456789ab"), data[3])
    bench.redis.zadd(keys.paused_jobs("Worker"), {b'["default"]\n' + data[4]: 5e9})
    bench.redis.zadd(keys.limit("Worker") + ":waiting:", {b'["default"]\n' + data[5]: 5e9})
    bench.redis.sadd("aw:moving", "id queue:default", "id schedule")
    bench.redis.lpush("aw:moving:id:queue:default", data[6])
    bench.redis.lpush("aw:moving:id:schedule", b"5e9\n" + data[7])
    assert passes(granted) == [0, 0]
    assert set(bench.locks()) == set(jids)


def test_lock_of_a_run_or_of_a_moved_job_is_kept(bench, worker, granted):
    moved, runs, other, young = (worker.perform_async(number) for number in range(4))
    gone(bench.redis)
    locks = bench.locks()
    bench.redis.hset(locks[runs], "begun", "run")
    bench.redis.hset(locks[young], "since", "5000000000")
    one = LeftLocks(granted)
    assert one.check() == 0
    bench.redis.pexpire(locks[moved], round(WEEKS_MS) + 60_000)
    bench.redis.hset(locks[other], mapping={"jid": "another"})
    assert one.check() == 0
    assert bench.locks().keys() == {moved, runs, "another", young}


def test_lock_that_changes_before_its_deletion_is_kept(bench, worker, granted, monkeypatch):
    worker.perform_async(1)
    gone(bench.redis)
    one = LeftLocks(granted)
    one.check()
    change = one._change
    (key,) = bench.locks().values()

    def late(lock, *, renew):
        bench.redis.pexpire(key, round(WEEKS_MS) + 60_000)
        return change(lock, renew=renew)

    monkeypatch.setattr(one, "_change", late)
    assert one.check() == 0
    assert bench.redis.exists(key)


def test_new_leader_looks_twice(bench, worker, granted):
    worker.perform_async(1)
    gone(bench.redis)
    one = LeftLocks(granted)
    one.check()
    one.forget()
    assert [one.check(), one.check()] == [0, 1]


def test_lock_of_a_job_that_waits_for_weeks_is_renewed(bench, worker, granted):
    jid = worker.perform_async(1)
    bench.redis.pexpire(bench.locks()[jid], round(WEEKS_MS / 3))
    assert passes(granted) == [0, 0]
    assert bench.redis.pttl(bench.locks()[jid]) > WEEKS_MS - 10_000


def test_upkeep_looks_only_while_the_process_leads(bench, worker, granted, monkeypatch, caplog):
    worker.perform_async(1)
    gone(bench.redis)
    now, leads = [0.0], [False]
    monkeypatch.setattr(left_locks.process_clock, "monotonic", lambda: now[0])
    shard = bench.at_admission.shards["main"]
    upkeep = LeftLockUpkeep(SimpleNamespace(upkeep=granted, shard=shard, leads=lambda: leads[0]))

    def after(seconds):
        now[0] += seconds
        upkeep.step()
        if upkeep._thread:
            upkeep._thread.join(30)

    for leader in (True, False, True):
        leads[0] = leader
        after(PERIOD_S)
    assert bench.locks(), "another process has led between both passes"
    after(PERIOD_S / 2)
    assert bench.locks(), "not due yet"
    after(PERIOD_S)
    assert not bench.locks()
    assert "1 lock of deduplicated jobs" in caplog.text


def test_pass_reads_locks_of_other_types_as_none(redis, granted, monkeypatch):
    monkeypatch.setattr(left_locks, "_PAGE", 1)
    redis.set(f"{keys.LOCKS}text", "x")
    redis.hset(f"{keys.LOCKS}hash", mapping={"jid": b"\xff", "since": "no time"})
    redis.lpush(keys.queue("default"), b"\xff", encoded("C", idempotency_key=5), json.dumps({"idempotency_key": "x"}))
    assert passes(granted) == [0, 0]
