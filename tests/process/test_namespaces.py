"""A process with a namespace serves each queue of it that jobs of its workers use, and no other queue."""

import pytest

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.process.own_queues import expand_queues, known_queues
from framework.route.router import Router
from framework.settings.model import RoutingRule
from framework.wire import keys
from tests.harness import enqueue, until

CRON_JOBS = """
from framework import ApplicationWorker
from jobs import prove


class CronWorker(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue_namespace = "cronjob"

    def perform(self) -> None:
        prove("ran", self._aw_job["queue"])


class FirstWorker(CronWorker): ...


class SecondWorker(CronWorker): ...


class RoutedWorker(CronWorker):
    tags = ("slow",)
    queue_namespace = None


class OtherWorker(CronWorker):
    queue_namespace = "cronjobs"  # begins alike


class PlainWorker(CronWorker):
    queue_namespace = None
"""


def test_worker_namespace_option_serves_its_queues_only(site, redis, proofs):
    (site.folder / "cron_jobs.py").write_text(CRON_JOBS)
    site.write("routing.yml", {"routing_rules": [["tags=slow", "cronjob:slow"]]})
    others = {"OtherWorker": "cronjobs:other", "PlainWorker": "plain", "NoopWorker": "default"}
    for name, queue in others.items():
        enqueue(redis, name, queue=queue)
    process = site.worker("-r", "cron_jobs", "-q", "cronjob").ready()
    served = {"FirstWorker": "cronjob:first", "SecondWorker": "cronjob:second", "RoutedWorker": "cronjob:slow"}
    code = "import cron_jobs\n" + "\n".join(f"cron_jobs.{name}.perform_async()" for name in served)
    assert site.run("-c", code).returncode == 0
    enqueue(redis, "FirstWorker", queue="cronjob")
    assert sorted(proofs("ran", 4)) == ["cronjob", *sorted(served.values())]
    until(lambda: not redis.llen(keys.working(process.identity)), "all acknowledged")
    assert process.end() == 0
    assert {queue: redis.llen(keys.queue(queue)) for queue in others.values()} == dict.fromkeys(others.values(), 1)
    assert len(proofs("ran", 4)) == 4


@pytest.fixture(autouse=True)
def _alone():
    with registry.isolated():
        yield


def worker(name, **body):
    head = {"feature_category": "not_owned", "perform": lambda self: None, "__module__": "workers.sample"}
    return type(name, (ApplicationWorker,), {**head, **body})


def test_known_queues_are_those_where_jobs_may_wait():
    worker("AWorker", queue_namespace="ns", retry_queue="ns:later")
    worker("BWorker", queue="ns:mine")
    worker("CWorker", urgency="high")
    router = Router([RoutingRule("urgency=high", "ns:urgent"), RoutingRule("*", "default")], ["main"])
    assert known_queues(router) == {"default", "ns:a", "ns:later", "ns:mine", "b", "ns:urgent", "c"}


def test_expand_queues_named_queue_keeps_place_and_weight():
    known = ["ns:a", "ns:b", "nsx"]
    assert expand_queues((("ns", 1), ("ns:b", 3)), known).weights == (("ns", 1), ("ns:a", 1), ("ns:b", 3))
    assert expand_queues((("ns:b", 0), ("ns", 0)), known).weights == (("ns:b", 0), ("ns", 0), ("ns:a", 0))
    assert expand_queues((("x", 2), ("x", 3)), known).weights == (("x", 5),)  # Sidekiq: given twice counts twice
