"""Batches in the modes of a test."""

from contextlib import suppress
from datetime import timedelta

import pytest

import framework
import framework.status
from framework import ApplicationWorker, BusinessError, Deduplicate, Discard, RetryLater, testing
from framework.batches import Batch, BatchCancelledError, BatchError
from framework.features.iteration.iterable import IterableWorker
from framework.testing import FakeClock
from tests.features.iteration.iterable_jobs import iterable
from tests.push.conftest import worker


def failing(self, number: int) -> None:
    if number == 13:
        raise ValueError(number)


@pytest.fixture
def classes():
    return worker("Row", perform=failing, queue="default", retry=1), worker("Callback", queue="default")


def with_callbacks(callback):
    batch = Batch()
    for event in ("complete", "success", "death", "finished"):
        getattr(batch, f"on_{event}")(callback, event)
    return batch


def test_fake_batch_counts_and_calls_back(classes):
    row, callback = classes
    with testing.fake() as jobs:
        batch = with_callbacks(callback)
        with batch.jobs():
            row.perform_bulk([(1,), (13,)])
        assert batch.status.pending == 2
        jobs.drain(row, raise_errors=False)
        assert [job.args for job in jobs.enqueued(callback)] == [["complete"], ["death"], ["finished"]]
        assert (batch.status.dead, list(batch.dead_jids())) == (1, [jobs.dead()[0].jid])


def test_inline_batch_runs_its_callbacks_at_the_end(classes):
    ran = []
    callback = worker("Ran", perform=lambda self, event: ran.append((event, self.batch_event.name)), queue="default")
    with testing.inline():
        batch = with_callbacks(callback)
        with batch.jobs():
            classes[0].perform_async(1)
            assert ran == []
        assert ran == [(event, event) for event in ("complete", "success", "finished")]


def test_job_of_a_fake_reads_its_batch(classes):
    valid = []
    row = worker("Asking", perform=lambda self: valid.append(self.batch.valid), queue="default")
    with testing.fake() as jobs:
        batch = Batch()
        with batch.jobs():
            row.perform_async()
        batch.invalidate()
        jobs.drain()
        assert (valid, batch.status.succeeded) == ([False], True)
        with pytest.raises(BatchError, match="has succeeded"), batch.jobs():
            row.perform_async()


def test_iterable_job_of_a_fake_may_cancel_its_batch(classes):
    def cancel(self, item):
        if item == 1:
            Batch(self.batch.bid).cancel()

    made, done = iterable(5, cancel, flush_interval=0.000001)
    with testing.fake() as jobs:
        with Batch().jobs():
            made.perform_async()
        jobs.drain()
    assert done == ["start", 0, 1, "cancel", "stop"]


def test_cancelled_batch_of_a_fake_runs_no_job(classes):
    with testing.fake() as jobs:
        batch = with_callbacks(classes[1])
        with batch.jobs():
            classes[0].perform_async(13)
        batch.cancel()
        jobs.drain(classes[0])
        assert [job.args for job in jobs.enqueued()] == [["complete"], ["finished"]]
        assert batch.status.removed == 1


def test_job_that_adds_to_a_cancelled_batch_ends_as_cancelled(classes):
    class PlanWorker(ApplicationWorker):
        feature_category = "not_owned"
        status_expiration = 60

        def perform(self):
            Batch(self.batch.bid).cancel()
            with self.batch.jobs():
                classes[0].perform_async(1)

    with testing.fake() as jobs:
        batch = with_callbacks(classes[1])
        with batch.jobs():
            jid = PlanWorker.perform_async()
        jobs.drain(PlanWorker)
        assert framework.status.of(jid) == "cancelled"
        assert [jobs.retries(), jobs.dead(), jobs.enqueued(classes[0])] == [[], [], []]
        assert (batch.status.removed, batch.status.failures) == (1, 0)
        with pytest.raises(BatchCancelledError), batch.jobs():
            classes[0].perform_async(1)


def test_iterable_job_of_a_cancelled_batch_stops():
    seen = []

    class CountWorker(IterableWorker):
        feature_category = "not_owned"
        flush_interval = 0.000001

        def build_enumerator(self, *, cursor: int | None):
            return [(item, item) for item in range(cursor or 0, 5)]

        def each_iteration(self, item: int):
            seen.append(item)
            if item == 1:
                self.batch.cancel()

    with testing.fake() as jobs:
        batch = Batch()
        with batch.jobs():
            CountWorker.perform_async()
        jobs.drain()
        assert seen == [0, 1]
        assert batch.status.removed == 1


class Swallow:
    """A server middleware that does not call the job."""

    def call(self, worker, job, queue):
        if False:
            yield


def raising(error):
    def perform(self, *args):
        raise error

    return perform


def test_each_end_of_a_job_counts_as_the_guide_says():
    """The rows of docs/guides/batches.md that a worker process decides: (total, pending, failures, dead, removed)."""
    done, waits, failed, dead, removed = (
        (1, 0, 0, 0, 0),
        (1, 1, 0, 0, 0),
        (1, 1, 1, 0, 0),
        (1, 1, 1, 1, 0),
        (1, 1, 0, 0, 1),
    )
    noop = {"perform": lambda self, *args: None}
    for row, attributes, counts in (
        ("succeeded", noop, done),
        ("Discard", {"perform": raising(Discard("no"))}, done),
        ("middleware", {"perform": raising(ValueError)}, done),
        ("expired", {"perform": raising(ValueError), "expires_in": timedelta(seconds=5)}, done),
        ("failed", {"perform": raising(ValueError), "retry": 3}, failed),
        ("retries used up", {"perform": raising(ValueError), "retry": 0}, dead),
        ("no retries", {"perform": raising(ValueError), "retry": False}, dead),
        ("not buried", {"perform": raising(ValueError), "retry": 0, "dead": False}, dead),
        ("BusinessError", {"perform": raising(BusinessError("no"))}, dead),
        ("cancelled", noop, removed),
        ("snoozed", {"perform": raising(RetryLater(60))}, waits),
        ("duplicate", {**noop, "deduplicate": Deduplicate("until_executed")}, done),
    ):
        clock = FakeClock()
        job_class = worker("Ends", queue="default", idempotent=True, **attributes)
        with testing.fake(clock=clock, server_middlewares=(Swallow,) if row == "middleware" else ()) as jobs:
            batch = Batch()
            with batch.jobs():
                jid = job_class.perform_async(1)
                if row == "duplicate":
                    job_class.perform_async(1)
            if row == "cancelled":
                framework.cancel(jid)
            if row == "expired":
                clock.advance(60)
            if counts in (failed, waits):
                with suppress(ValueError):
                    jobs.perform_one(job_class)
            else:
                jobs.drain(job_class, raise_errors=False)
            status = batch.status
            assert (status.total, status.pending, status.failures, status.dead, status.removed) == counts, row
