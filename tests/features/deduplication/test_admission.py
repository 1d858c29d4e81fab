"""Check the lock of a job while it runs: its release, the positions of dropped duplicates, and the next run."""

import logging
import threading
import time
from datetime import timedelta

import pytest

from framework.declare import registry
from framework.declare.policy_options import Deduplicate
from framework.errors import Discard
from framework.fetch.requeue import requeue
from framework.finish.outcome import Deferred, Failed
from framework.push.argument_checks import SizeLimits
from framework.store.script import FINISH, FINISH_UNLESS_DUPLICATED
from framework.wire.json import dumps
from framework.wire.resources import DUPLICATE_WAL_POSITIONS
from tests.harness import IDENTITY, encoded, until

EXECUTING, EXECUTED = Deduplicate("until_executing"), Deduplicate("until_executed")
EXPIRED = Deduplicate("until_expired", ttl=timedelta(hours=1))
ONCE_MORE = Deduplicate("until_executed", if_deduplicated="reschedule_once")


class Held:
    """A perform that waits in each run until the test releases it."""

    def __init__(self):
        self.ran, self.began, self.free = [], threading.Semaphore(0), threading.Semaphore(0)

    def perform(self):
        held = self

        def perform(self, *args):
            held.ran.append(self.jid)
            held.began.release()
            assert held.free.acquire(timeout=30)

        return perform


@pytest.fixture
def held():
    made = Held()
    yield made
    made.free.release(100)


@pytest.mark.proves("R38")
def test_dedup_until_executing_releases_lock_before_run(bench, held):
    job = bench.worker(held.perform(), EXECUTING)
    first = job.perform_async(1)
    assert job.perform_async(1) is None
    slots = bench.start(1)
    assert held.began.acquire(timeout=30)
    assert bench.locks() == {}
    assert [unit.resources for unit in slots.fetcher.in_flight.running()] == [
        None
    ]  # its end needs no script of its own
    second = job.perform_async(1)
    assert job.perform_async(1) is None
    held.free.release(2)
    until(slots.done)
    assert held.ran == [first, second]
    assert bench.locks() == {}
    assert len(slots.lines(job_status="done")) == 2


def test_dedup_until_executed_keeps_lock_during_run(bench, held):
    job = bench.worker(held.perform(), EXECUTED)
    first = job.perform_async(1)
    bench.redis.pexpire(bench.locks()[first], 50_000)
    slots = bench.start(2)
    assert held.began.acquire(timeout=30)
    assert job.perform_async(1) is None
    assert 590_000 < bench.redis.pttl(bench.locks()[first]) <= 600_000  # renewed when it began
    held.free.release()
    until(slots.done)
    assert bench.locks() == {}
    assert job.perform_async(1)


def test_dedup_expired_lock_is_taken_again_if_free(bench, held):
    job = bench.worker(held.perform(), EXECUTED)
    first = job.perform_async(1)
    bench.redis.delete(bench.locks()[first])
    slots = bench.start(2)
    assert held.began.acquire(timeout=30)
    assert bench.lock(first).keys() == {"v", "jid", "class", "since", "begun"}
    assert job.perform_async(1) is None
    late = job.perform_async(2)
    assert held.began.acquire(timeout=30)
    third = job.perform_async(3)
    bench.redis.delete(bench.locks()[third])
    fourth = job.perform_async(3)
    held.free.release(4)
    until(slots.done)
    assert sorted(held.ran) == sorted([first, late, third, fourth])
    assert bench.locks() == {}


@pytest.mark.parametrize("has_replicas", [False, True])
def test_dedup_lock_that_follows_its_job_has_the_ttl_from_the_start(bench, held, has_replicas):
    policy = Deduplicate("until_executed", ttl=timedelta(minutes=1), while_waiting=True)
    first = bench.worker(held.perform(), policy).perform_async(1)
    assert bench.redis.pttl(bench.locks()[first]) > 29 * 86_400_000
    slots = bench.start(1, consistency=Consistency() if has_replicas else None)
    assert held.began.acquire(timeout=30)
    assert 50_000 < bench.redis.pttl(bench.locks()[first]) <= 60_000
    held.free.release()
    until(slots.done)
    assert bench.locks() == {}


@pytest.mark.parametrize("policy", [EXECUTING, EXECUTED])
def test_dedup_job_stopped_by_other_policy_keeps_lock(bench, policy):
    class Away:
        def applies_to(self, declaration):
            return True

        def admit(self, entry):
            return Deferred(40.0, "feature_flag")

    job = bench.worker(lambda self: None, policy)
    first = job.perform_async()
    slots = bench.start(before=[Away()])
    until(slots.done)
    assert bench.redis.zcard("schedule") == 1
    assert 630_000 < bench.redis.pttl(bench.locks()[first]) <= 640_000
    assert job.perform_async() is None


@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "fails"])
def test_dedup_until_expired_keeps_lock_after_the_end(bench, fails):
    def perform(self, *args):
        if fails:
            raise ValueError("on purpose")

    job = bench.worker(perform, EXPIRED, retry=0)
    first = job.perform_async(1)
    bench.redis.pexpire(bench.locks()[first], 60_000)
    slots = bench.start(1)
    until(slots.done)
    # Its start has renewed it, and no end has deleted it.
    assert 3_000_000 < bench.redis.pttl(bench.locks()[first]) <= 3_600_000
    assert job.perform_async(1) is None
    assert job.perform_async(2) is not None
    bench.redis.delete(bench.locks()[first])
    assert job.perform_async(1) is not None


def test_dedup_until_expired_returns_with_its_lock_at_a_stop(bench, held):
    job = bench.worker(held.perform(), EXPIRED)
    first = job.perform_async(1)
    slots = bench.start(1)
    assert held.began.acquire(timeout=30)
    (unit,) = slots.fetcher.in_flight.running()
    assert unit.resources is None
    held.free.release()
    until(slots.done)
    assert bench.locks().keys() == {first}


def test_dedup_retry_keeps_lock_of_until_executed_only(bench):
    def fail(self):
        raise ValueError("on purpose")

    kept = bench.worker(fail, EXECUTED, name="Kept", retry_in=classmethod(lambda cls, count, error, job: 100.0))
    given = bench.worker(fail, EXECUTING, name="Given")
    first, second = kept.perform_async(), given.perform_async()
    slots = bench.start()
    until(slots.done)
    assert bench.redis.zcard("retry") == 2
    assert bench.locks().keys() == {first}
    assert 690_000 < bench.redis.pttl(bench.locks()[first]) <= 715_000
    assert kept.perform_async() is None
    assert given.perform_async() not in (None, second)


def test_dedup_requeued_job_takes_its_lock_again(bench, held):
    """At a stop a job takes its lock again if the lock is gone, and leaves a lock that another job holds."""
    job = bench.worker(held.perform(), EXECUTING)
    first, second = job.perform_async(1), job.perform_async(2)
    slots = bench.start(2)
    assert all(held.began.acquire(timeout=30) for _ in range(2))
    later_job = job.perform_async(2)
    units = slots.fetcher.in_flight.running()
    assert requeue(slots.shard.client, IDENTITY, [(unit, unit.data) for unit in units]) == 2
    assert bench.locks().keys() == {first, later_job}
    assert 590_000 < bench.redis.pttl(bench.locks()[first]) <= 600_000
    assert job.perform_async(1) is None
    assert {one["jid"] for one in bench.waiting()} == {first, second, later_job}


# --- positions ------------------------------------------------------------------------------------------------------


class Consistency:
    """Replace the consistency policy: record the positions that the job requires, and return the given answers."""

    def __init__(self, *answers, meanwhile=lambda: None):
        self.answers, self.seen, self.meanwhile = list(answers), [], meanwhile

    def applies_to(self, declaration):
        return True

    def admit(self, entry):
        self.seen.append(dict(entry.payload.get(DUPLICATE_WAL_POSITIONS) or {}))
        self.meanwhile()
        return self.answers.pop(0) if self.answers else None


class Stamped:
    """A client middleware that adds WAL positions, as a push does."""

    positions = {"main": "0/10"}

    def call(self, cls, job, queue, pool):
        job["wal_locations"] = dict(Stamped.positions)
        yield


def push_at(job, position, **others):
    Stamped.positions = {"main": position, **others}
    return job.perform_async()


@pytest.mark.parametrize("policy", [EXECUTING, EXECUTED])
def test_dedup_run_sees_newest_position_of_duplicates(bench, policy):
    bench.at_admission.open(Stamped)
    job = bench.worker(lambda self: None, policy)
    first = push_at(job, "0/10")
    assert push_at(job, "1/0", ci="0/5") is None
    assert push_at(job, "0/FFFFFFFF") is None  # older
    assert push_at(job, "garbage", ci=7) is None
    assert bench.lock(first)["wal:main"] == "1/0"
    consistency = Consistency()
    until(bench.start(consistency=consistency).done)
    assert consistency.seen == [{"main": "1/0", "ci": "0/5"}]
    assert bench.locks() == {}


def test_dedup_duplicate_during_replica_choice_counts(bench):
    bench.at_admission.open(Stamped)
    job = bench.worker(lambda self: None, EXECUTING)
    push_at(job, "0/10")
    later = iter(["0/20", "0/30", "0/40", "0/50", "0/60"])
    pushed = []

    def push():
        if (position := next(later, None)) is not None:
            pushed.append(push_at(job, position))

    consistency = Consistency(meanwhile=push)
    until(bench.start(1, consistency=consistency).done)
    # The positions are checked twice more; then the lock is released, and the next equal job is no duplicate.
    assert [seen.get("main") for seen in consistency.seen[:4]] == [None, "0/20", "0/30", "0/40"]
    assert pushed[:3] == [None, None, None]
    assert pushed[3] is not None


def test_dedup_job_retried_for_replica_keeps_lock_and_positions(bench):
    bench.at_admission.open(Stamped)
    job = bench.worker(lambda self: None, EXECUTING)
    first = push_at(job, "0/10")
    assert push_at(job, "0/20") is None
    until(bench.start(1, consistency=Consistency(Failed(ValueError("no replica")))).done)
    (member,) = bench.redis.zrange("retry", 0, -1)
    assert b'"dedup_wal_locations":{"main":"0/20"}' in member
    assert bench.lock(first)["wal:main"] == "0/20"


def test_dedup_key_of_other_type_delays_no_run(bench):
    job = bench.worker(lambda self: None, EXECUTING)
    job.perform_async()
    (lock,) = bench.locks().values()
    bench.redis.delete(lock)
    bench.redis.set(lock, "no such thing")
    until(bench.start(1, consistency=Consistency()).done)


def test_dedup_lock_with_many_databases_ends_no_run(bench):
    bench.at_admission.open(Stamped)
    job = bench.worker(lambda self: None, EXECUTING)
    first = push_at(job, "0/10")
    odd = {f"wal:{number}" * 30: "0/1" for number in range(100)} | {b"wal:\xff": b"\xff", "wal:": "0/1"}
    bench.redis.hset(bench.locks()[first], mapping=odd)
    slots = bench.start(1, consistency=Consistency())
    until(slots.done)
    assert slots.lines(job_status="done")
    assert bench.locks() == {}


# --- one more run ---------------------------------------------------------------------------------------------------


def test_dedup_duplicate_during_run_causes_one_more_run(bench, held, caplog):
    job = bench.worker(held.perform(), ONCE_MORE, status_expiration=60)
    first = job.perform_async(1, "x")
    assert job.perform_async(1, "x") is None  # waits: its run will see it
    slots = bench.start(2)
    assert held.began.acquire(timeout=30)
    assert all(job.perform_async(1, "x") is None for _ in range(3))
    with caplog.at_level(logging.INFO, logger="framework"):
        held.free.release()
        assert held.began.acquire(timeout=30)
        (second,) = held.ran[1:]
        assert bench.locks().keys() == {second}
        assert 590_000 < bench.redis.pttl(bench.locks()[second]) <= 600_000
        assert bench.redis.get(f"aw:status:{first}") == b"completed"
        until(lambda: bench.redis.get(f"aw:status:{second}") == b"running")
        assert job.perform_async(1, "x") is None  # and it causes no third run
        held.free.release(5)
        until(slots.done)
        # The slot of the first run may write its line later than the second run begins, and ends.
        (line,) = until(lambda: [one.getMessage() for one in caplog.records if "rescheduled" in one.getMessage()])
    assert held.ran == [first, second]
    assert bench.locks() == {}
    assert "job_status='rescheduled'" in line
    assert f"jid='{first}'" in line
    assert f"rescheduled_as='{second}'" in line


@pytest.mark.parametrize("ends", ["done", "discards"])
def test_dedup_duplicate_before_run_causes_no_other_run(bench, ends):
    ran = []

    def perform(self):
        ran.append(self.jid)
        if ends == "discards":
            raise Discard("enough")

    job = bench.worker(perform, ONCE_MORE)
    first = job.perform_async()
    assert job.perform_async() is None
    bench.redis.script_flush()
    slots = bench.start()
    until(slots.done)
    assert ran == [first]
    assert bench.locks() == {}
    # Such jobs end together: no call of this one alone.
    assert bench.redis.script_exists(FINISH.digest, FINISH_UNLESS_DUPLICATED.digest) == [False, True]


def test_dedup_next_run_has_arguments_and_context_of_the_last(bench, held):
    bench.at_admission.open(Stamped, limits=SizeLimits(compression_threshold=100))
    job = bench.worker(held.perform(), ONCE_MORE)
    Stamped.positions = {"main": "0/10"}
    first = job.set(context={"user": "me"}, retry=3).perform_async("x" * 5_000)
    fields = {"retry_count": 1, "failed_at": 5.0, "error_class": "E", "deferred_count": 3, "foreign": [1]}
    data = bench.redis.rpop("queue:default")
    bench.redis.lpush("queue:default", data[:-1] + b"," + dumps(fields)[1:])
    slots = bench.start(1)
    assert held.began.acquire(timeout=30)
    Stamped.positions = {"main": "0/20"}
    assert job.perform_async("x" * 5_000) is None
    slots.processor.stop()  # no later job is fetched
    held.free.release()
    until(bench.waiting)
    (next_run,) = bench.waiting()
    assert next_run["jid"] != first
    assert next_run["rescheduled_once"] is True
    assert next_run["compressed"] is True
    assert next_run["meta.user"] == "me"
    assert (next_run["retry"], next_run["foreign"]) == (3, [1])
    assert not {"retry_count", "failed_at", "error_class", "deferred_count"} & next_run.keys()
    assert next_run["correlation_id"] == first
    assert abs(next_run["enqueued_at"] - time.time()) < 60
    assert bench.lock(next_run["jid"])["wal:main"] == "0/20"
    assert "duplicates" not in bench.lock(next_run["jid"])


@pytest.mark.parametrize(("retry", "dead"), [(0, 1), (False, 0)])
def test_dedup_dead_job_causes_no_next_run(bench, held, retry, dead):
    def perform(self):
        held.perform()(self)
        raise ValueError("on purpose")

    job = bench.worker(perform, ONCE_MORE, retry=retry)
    first = job.perform_async()
    slots = bench.start(1)
    assert held.began.acquire(timeout=30)
    assert job.perform_async() is None
    held.free.release(3)
    until(slots.done)
    assert held.ran == [first]
    assert bench.redis.zcard("dead") == dead
    assert bench.locks() == {}


# --- keys of other writers --------------------------------------------------------------------------------------------


def test_dedup_keys_of_gitlab_stay_untouched(bench):
    seen = []
    bench.worker(lambda self: seen.append(self._aw_job["idempotency_key"]), EXECUTED)
    key = "resque:gitlab:duplicate:default:abc"
    bench.redis.set(key, "cookie")
    bench.redis.lpush("queue:default", encoded(jid="r1", idempotency_key=key), encoded(jid="r2", idempotency_key=key))
    slots = bench.start()
    until(slots.done)
    assert seen == [key, key]
    assert bench.redis.get(key) == b"cookie"
    assert bench.locks() == {}


def test_dedup_short_ttl_is_kept(bench, held):
    job = bench.worker(held.perform(), Deduplicate("until_executed", ttl=timedelta(seconds=1)))
    # A stall of a second between the two pushes lets the second one through, too.
    until(lambda: (job.perform_async(), job.perform_async())[1] is None, "a duplicate")
    until(job.perform_async, "the lock has run out")


@pytest.mark.parametrize("policy", [EXECUTING, EXECUTED, ONCE_MORE])
def test_dedup_lock_of_another_version_lets_both_methods_run(bench, policy):
    """A past defect: a job of the new release was dropped as a duplicate of a job for the old handler."""
    ran = []
    with registry.isolated():
        old = bench.worker(lambda self, number: None, policy).perform_async(7)

    def perform(self, number):
        ran.append(("perform", self.jid))

    def perform_v0(self, number):
        ran.append(("perform_v0", self.jid))

    job = bench.worker(perform, policy, version=1, perform_v0=perform_v0)
    new = job.perform_async(7)
    assert job.perform_async(7) is None
    slots = bench.start(1)
    until(slots.done)
    assert ran == [("perform_v0", old), ("perform", new)]
    assert bench.locks() == {}
