"""Check pushes inside of open transactions on a real Redis. The transactions of real databases are in tests/integrations."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from framework.errors import PushInTransactionError
from framework.features.concurrency.limited_capacity import LimitedCapacityWorker
from framework.process_clock import process_clock
from framework.push import transactions
from framework.push.transactions import TransactionCheck, add_source, skipping_transaction_check
from framework.telemetry.sentry import LazyTracker
from framework.wire.resources import WAL_POSITIONS
from tests.harness import RecordingTracker
from tests.push.conftest import worker as worker_class


def worker(**attributes):
    return worker_class(**{"queue": "default", **attributes})


@dataclass
class Transaction:
    """A transaction of a database library: it keeps functions for its commit."""

    waiting: list[Callable[[], None]] = field(default_factory=list)

    def commit(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()

    def rollback(self) -> None:
        self.waiting.clear()


@pytest.fixture
def opened(monkeypatch):
    """Return the list of open transactions: a test appends one."""
    found = []
    monkeypatch.setattr(transactions, "sources", [])
    monkeypatch.setattr("framework.push.client.sources", transactions.sources)
    add_source(lambda: [one.waiting.append for one in found])
    return found


@pytest.fixture
def transaction(opened):
    opened.append(Transaction())
    return opened[0]


class Positions:
    """Number the calls that look up the WAL position."""

    def __init__(self):
        self.calls = 0

    def __call__(self, declaration):
        def look_up():
            self.calls += 1
            return {WAL_POSITIONS: {"main": f"0/{self.calls}"}}

        return look_up


def test_push_is_written_at_the_commit_under_its_jid(transaction, push_mode, jobs):
    job = worker(perform=lambda self, number, more=None: None)
    facts = {"a": 1}
    jid = job.perform_async(1, facts)
    facts["a"] = 2
    assert jobs() == []
    transaction.commit()
    assert [(one["jid"], one["args"]) for one in jobs()] == [(jid, [1, {"a": 1}])]


def test_rolled_back_push_is_discarded(transaction, pusher, redis):
    assert len(worker().perform_async(1)) == 24
    transaction.rollback()
    assert redis.dbsize() == 0


def test_push_without_a_transaction_is_written_at_once(opened, pusher, jobs):
    worker().perform_async(1)
    assert len(jobs()) == 1


def test_bulk_and_delayed_pushes_wait_too(transaction, pusher, jobs, redis):
    job = worker()
    jids = job.perform_bulk([(number,) for number in range(1_001)])
    late = job.perform_in(60, 1)
    assert redis.dbsize() == 0
    transaction.commit()
    assert [one["jid"] for one in jobs()] == jids
    assert [json.loads(data)["jid"] for data in redis.zrange("schedule", 0, -1)] == [late]


def test_enqueued_at_is_the_time_of_the_commit(transaction, pusher, jobs, monkeypatch):
    times = [1_800_000_000.0]
    monkeypatch.setattr(process_clock, "now", lambda: times[0])
    worker().perform_async(1)
    times[0] += 5
    transaction.commit()
    assert [(one["created_at"] // 1, one["enqueued_at"] // 1) for one in jobs()] == [(1_800_000_000, 1_800_000_005)]


def test_push_waits_for_all_open_transactions(opened, pusher, jobs):
    outer, inner = Transaction(), Transaction()
    opened[:] = [outer, inner]
    worker().perform_async(1)
    outer.commit()
    assert jobs() == []
    inner.commit()
    assert len(jobs()) == 1


def test_push_is_discarded_if_one_of_two_rolls_back(opened, pusher, redis):
    outer, inner = Transaction(), Transaction()
    opened[:] = [outer, inner]
    worker().perform_async(1)
    inner.rollback()
    outer.commit()
    assert redis.dbsize() == 0


def test_lock_is_taken_at_the_commit(transaction, pusher, jobs, redis, caplog):
    job = worker(idempotent=True)
    first, second = job.perform_async(1), job.perform_async(1)
    assert first != second  # the call cannot know whether an equal job will wait at the commit
    assert redis.dbsize() == 0
    with caplog.at_level(logging.INFO, logger="framework"):
        transaction.commit()
    assert [one["jid"] for one in jobs()] == [first]
    assert f"jid='{second}'" in caplog.text


def test_wal_position_is_that_of_the_commit(transaction, pusher, jobs):
    pusher.open(positions=Positions())
    worker().perform_async(1)
    transaction.commit()
    assert [one[WAL_POSITIONS] for one in jobs()] == [{"main": "0/2"}]


def test_wal_position_of_a_duplicate_is_that_of_the_commit(transaction, pusher, redis):
    pusher.open(positions=Positions())
    job = worker(idempotent=True)
    jid = job.perform_async(1)
    job.perform_async(1)
    transaction.commit()
    lock = next(key for key in redis.keys("aw:lock:*") if redis.hget(key, "jid").decode() == jid)
    assert b"0/4" in b" ".join(redis.hgetall(lock).values())


def test_mode_now_pushes_at_once(transaction, pusher, jobs):
    pusher.open(transaction_check=TransactionCheck("now"))
    worker().perform_async(1)
    assert len(jobs()) == 1


def test_mode_warn_pushes_at_once_and_logs(transaction, pusher, jobs, caplog):
    pusher.open(transaction_check=TransactionCheck("warn"))
    with caplog.at_level(logging.WARNING, logger="framework"):
        worker().perform_async(1)
        worker().perform_async(1)
    assert len(jobs()) == 2
    assert [record.getMessage().count("push.in_transaction") for record in caplog.records] == [1]


def test_mode_raise_refuses_and_writes_nothing(transaction, pusher, redis):
    pusher.open(transaction_check=TransactionCheck("raise"))
    with pytest.raises(PushInTransactionError, match="with skipping_transaction_check"):
        worker().perform_async(1)
    transaction.commit()
    assert redis.dbsize() == 0


def test_skipping_the_check_pushes_at_once(transaction, pusher, jobs):
    with skipping_transaction_check():
        worker().perform_async(1)
    worker().perform_async(2)
    assert [one["args"] for one in jobs()] == [[1]]


def test_job_dropped_by_a_middleware_returns_none_at_the_call(transaction, pusher):
    class Drop:
        def call(self, cls, job, queue, pool):
            return
            yield

    pusher.open(Drop)
    assert worker().perform_async(1) is None
    assert transaction.waiting == []


def test_failure_after_the_commit_is_logged_and_reported(transaction, pusher, redis, jobs, caplog):
    tracker = RecordingTracker()
    pusher.open(transaction_check=TransactionCheck(tracker=LazyTracker(lambda: tracker)))
    lost, kept = worker(queue="broken").perform_async(1), worker(queue="whole").perform_async(2)
    redis.set("queue:broken", "no list")
    with caplog.at_level(logging.ERROR, logger="framework"):
        transaction.commit()
    assert [one["jid"] for one in jobs("whole")] == [kept]
    assert f"jid='{lost}'" in caplog.text
    assert "push.failed_after_commit" in caplog.text
    assert len(tracker.captured) == 1


def test_capacity_jobs_are_pushed_at_the_commit(transaction, pusher, jobs):
    class Sweep(LimitedCapacityWorker):
        feature_category = "not_owned"
        wire_name = "Sweep"
        queue = "default"
        max_running_jobs = 2

        def perform_work(self, names: list[str]) -> None: ...

        def remaining_work_count(self, names: list[str]) -> int:
            return 0

    names = ["a"]
    assert Sweep.perform_with_capacity(names) == []
    names.append("b")
    transaction.commit()
    assert [one["args"] for one in jobs()] == [[["a"]], [["a"]]]
