"""Test that a counted job counts until it ends: by each of its ends, moves and operators' actions."""

from contextlib import suppress

import pytest

import framework
from framework import admin
from framework.application_worker import ApplicationWorker
from framework.declare import port, registry
from framework.errors import BacklogFullError, Discard, RetryLater
from framework.features.backlog.payload import WAITER, Counted
from framework.testing import fake, perform_one
from framework.wire import keys


@pytest.fixture
def mail():
    with registry.isolated():

        class MailWorker(ApplicationWorker):
            feature_category = "not_owned"
            wire_name = "Mail"
            queue = "mail"
            max_waiting = 10

            def perform(self, how: str) -> None:
                if how == "fail":
                    raise ValueError("no")
                if how == "later":
                    raise RetryLater(60)
                if how == "discard":
                    raise Discard("no need")

        with fake():
            yield MailWorker


def accepted():
    redis = port.current().shards["main"].client
    jobs, size = redis.hget(keys.ACCEPTED_JOBS, "Mail"), redis.hget(keys.ACCEPTED_BYTES, "Mail")
    assert (jobs is None) == (size is None)
    return int(jobs or 0)


def run(cls):
    with suppress(ValueError):
        perform_one(cls)


@pytest.mark.parametrize(("how", "left"), [("work", 0), ("discard", 0), ("later", 1), ("fail", 1)])
def test_job_counts_until_it_will_not_run_again(mail, how, left):
    mail.perform_async(how)
    assert accepted() == 1
    run(mail)
    assert accepted() == left


def test_job_that_dies_counts_no_more_until_it_is_retried(mail):
    mail.set(retry=0).perform_async("fail")
    run(mail)
    mail.perform_in(60, "work")
    (dead,) = admin.dead()
    assert accepted() == 1
    assert dead.retry()
    assert accepted() == 2
    run(mail)
    (dead,) = admin.dead()
    assert dead.delete()
    assert accepted() == 1


@pytest.mark.parametrize("action", ["delete", "kill"])
def test_operator_ends_a_counted_job(mail, action):
    mail.perform_in(60, "work")
    mail.perform_async("fail")
    run(mail)
    assert accepted() == 2
    for jobs in (admin.scheduled(), admin.retries()):
        (one,) = jobs
        getattr(one, action)()
    assert accepted() == 0


def test_retry_by_an_operator_changes_no_count(mail):
    mail.perform_async("fail")
    run(mail)
    (one,) = admin.retries()
    one.retry()
    assert accepted() == 1


def test_cleared_queue_counts_no_more(mail):
    mail.perform_bulk([("work",)] * 10)
    with pytest.raises(BacklogFullError):
        mail.perform_async("work")
    admin.Queue("mail").clear()
    assert accepted() == 0
    assert mail.perform_async("work")


def test_cancelled_job_counts_until_it_is_skipped(mail):
    framework.cancel(mail.perform_async("work"))
    run(mail)
    assert accepted() == 0


def test_field_of_another_form_is_no_count():
    assert WAITER.read({"class": "Mail", "aw_accepted": 7}) == Counted("Mail", 7)
    for value in (True, -1, "7", None):
        assert WAITER.read({"class": "Mail", "aw_accepted": value}) is None
