"""Callbacks of one push: ``set(on_death=..., on_success=...)``."""

import asyncio
import contextlib

import pytest

from framework import ApplicationWorker
from framework.batches import Batch
from framework.declare import registry
from framework.errors import ArgumentsError
from framework.testing import fake


@pytest.fixture(autouse=True)
def workers():
    with registry.isolated():

        class Base(ApplicationWorker, abstract=True):
            feature_category = "not_owned"
            retry = 0

        class PayWorker(Base):
            def perform(self, amount: int) -> None:
                if amount < 0:
                    raise ValueError("no")

        class AlarmWorker(Base):
            def perform(self, what: str) -> None:
                pass

        yield PayWorker, AlarmWorker


def run(jobs, worker):
    with contextlib.suppress(ValueError):
        jobs.drain(worker)


@pytest.mark.parametrize(("amount", "called"), [(5, "good"), (-5, "died")])
def test_event_of_the_job_enqueues_its_callback(workers, amount, called):
    pay, alarm = workers
    with fake() as jobs:
        jid = pay.set(on_death=alarm.set(queue="died"), on_success=alarm.set(queue="good")).perform_async(amount)
        assert jobs.enqueued(alarm) == []
        run(jobs, pay)
        (callback,) = jobs.enqueued(alarm)
        assert (callback["queue"], callback["args"]) == (called, [jid])


def test_class_hears_of_each_success(workers):
    heard = []

    class HearingWorker(ApplicationWorker):
        feature_category = "not_owned"

        def perform(self, amount: int) -> None:
            if amount < 0:
                raise ValueError("no")

        @classmethod
        def on_success(cls, job) -> None:
            heard.append((job.jid, job["args"]))

    with fake() as jobs:
        jid = HearingWorker.perform_async(5)
        run(jobs, HearingWorker)
        HearingWorker.perform_async(-5)
        run(jobs, HearingWorker)
    assert heard == [(jid, [5])]


def test_callback_may_have_arguments_of_its_own(workers):
    pay, alarm = workers
    with fake() as jobs:
        pay.set(on_success=alarm.arguments("paid")).perform_in(60, 5)
        assert run(jobs, pay) is None
        assert [job["args"] for job in jobs.enqueued(alarm)] == [["paid"]]


def test_awaited_push_has_callbacks_too(workers):
    pay, alarm = workers
    with fake() as jobs:
        jid = asyncio.run(pay.set(on_success=alarm).aperform_async(5))
        run(jobs, pay)
        assert [job["args"] for job in jobs.enqueued(alarm)] == [[jid]]


def test_batch_around_waits_for_the_callback(workers):
    pay, alarm = workers
    with fake() as jobs:
        batch = Batch()
        with batch.jobs():
            pay.set(on_success=alarm).perform_async(5)
        run(jobs, pay)
        assert not batch.status.succeeded
        run(jobs, alarm)
        assert batch.status.succeeded


def test_callbacks_of_any_other_push_are_refused(workers):
    pay, alarm = workers
    with fake():
        for push in (
            lambda: pay.set(on_death=alarm).perform_bulk([(1,)]),
            lambda: pay.set(on_death=alarm).call(1),
        ):
            with pytest.raises(ArgumentsError, match="on_death belongs to one push by perform_async"):
                push()
        with pytest.raises(ArgumentsError, match="a worker class, "):
            pay.set(on_death="AlarmWorker")
