"""Check the base class of workers that a schedule pushes."""

import pytest

from framework.application_worker import ApplicationWorker
from framework.errors import DeclarationError
from framework.features.cron.cron_worker import CronWorker
from framework.push.normalize import inherited_context
from framework.telemetry import context


def declared(base=CronWorker, **body):
    body = {"feature_category": "not_owned", "perform": lambda self: None, "__module__": "ticks", **body}
    return type("TickWorker", (base,), body)


def test_cron_worker_has_the_namespace_and_no_retries():
    declaration = declared(cron="@hourly", time_zone="Europe/Berlin").declaration()
    assert (declaration.generated_queue, declaration.retry) == ("cronjob:tick", False)
    assert (declaration.facts["cron"], declaration.facts["time_zone"], declaration.is_cron) == (
        "@hourly",
        "Europe/Berlin",
        True,
    )
    assert declared(retry=3, queue_namespace="nightly").declaration().generated_queue == "nightly:tick"


def test_cron_of_a_perform_with_arguments_is_refused():
    with pytest.raises(
        DeclarationError, match=r"perform needs folder, days\. Give these parameters defaults"
    ) as caught:
        declared(cron="@hourly", perform=lambda self, folder, days, mode="full": None)
    assert caught.value.attribute == "cron"
    declared(cron="@hourly", perform=lambda self, mode="full": None)
    # Its entries in the schedule have arguments.
    declared(perform=lambda self, folder: None)


def test_inherited_cron_is_checked_with_the_child():
    parent = declared(cron="@hourly")
    with pytest.raises(DeclarationError, match="perform needs folder"):
        declared(parent, perform=lambda self, folder: None)
    assert declared(parent, cron=None, perform=lambda self, folder: None).declaration().facts["cron"] is None


def test_cron_of_another_worker_is_refused():
    with pytest.raises(DeclarationError, match=r"cron belongs to a CronWorker: subclass that, or put an entry"):
        declared(ApplicationWorker, cron="@hourly")


def test_cron_job_has_no_user_in_its_context():
    worker = declared(cron="@hourly", feature_category="billing")
    with context.bound("chain", caller_id="POST /orders", user="ada", project="x"):
        fields = inherited_context(worker.declaration())
    assert fields == {
        "correlation_id": "chain",
        "meta.caller_id": "POST /orders",
        "meta.root_caller_id": "POST /orders",
        "meta.feature_category": "billing",
    }
