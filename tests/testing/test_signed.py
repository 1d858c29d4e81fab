"""Signed jobs on real servers with real workers: forged and unsigned ones are quarantined, moves keep the signature."""

import base64
import json
from datetime import timedelta

import pytest

from framework import ApplicationWorker, Deduplicate, middleware
from framework.all_settings import load
from framework.testing import real
from framework.wire import keys
from framework.wiring import client as wiring
from tests.testing.conftest import write_config

KEY = base64.b64encode(b"k" * 32).decode()


@pytest.fixture
def jobs(application, monkeypatch, redis, redis_url):
    write_config(application, {"main": {"url": redis_url}}, routing={})
    monkeypatch.setenv("FRAMEWORK_SIGNATURES__KEYS__1", KEY)
    monkeypatch.setenv("FRAMEWORK_ENCRYPTION__KEYS__1", KEY)
    monkeypatch.setenv("FRAMEWORK_SIGNATURES__REQUIRED", "true")
    monkeypatch.setenv("FRAMEWORK_SIGNATURES__UNSIGNED_QUEUES", "ruby")
    client = wiring.ProcessClient(load())
    wiring.bind(client)
    with real() as found:
        yield found
    client.shards.close()
    wiring.bind_default()


def worker_of(ran, **attributes):
    def perform(self, number: int) -> None:
        ran.append(number)
        if len(ran) == 1 and number == 13:
            raise ValueError("once")

    body = {"feature_category": "not_owned", "retry": 1, "perform": perform, "queue": "default", **attributes}
    return type("SignedWorker", (ApplicationWorker,), {"__module__": "workers.signed_worker", **body})


@pytest.mark.parametrize("encrypt", [False, True])
def test_signed_jobs_run_after_every_move(jobs, encrypt):
    ran = []
    worker = worker_of(ran, encrypt=encrypt)
    worker.perform_async(13)
    worker.perform_in(60, 2)
    worker.perform_bulk([(3,)])
    jobs.drain(raise_errors=False)
    assert sorted(ran) == [2, 3, 13, 13]


def test_one_more_run_is_signed(jobs):
    ran = []

    def perform(self, number: int) -> None:
        ran.append(number)
        if len(ran) == 1:
            assert type(self).perform_async(number) is None

    policy = Deduplicate("until_executed", ttl=timedelta(hours=1), if_deduplicated="reschedule_once")
    worker_of(ran, idempotent=True, deduplicate=policy, perform=perform).perform_async(5)
    jobs.drain()
    assert ran == [5, 5]


def test_forged_and_unsigned_jobs_are_quarantined(jobs, redis):
    ran = []
    worker = worker_of(ran, concurrency_limit=5)
    worker.perform_async(1)
    (data,) = redis.lrange(keys.queue("default"), 0, -1)
    forged = json.dumps({**json.loads(data), "args": [2]}).encode()
    unsigned = b'{"class":"SignedWorker","args":[3],"jid":"u3","queue":"default"}'
    redis.lpush(keys.queue("default"), forged, unsigned)
    redis.sadd(keys.QUEUES, "ruby")
    redis.lpush(keys.queue("ruby"), unsigned.replace(b"3", b"4"))
    jobs.drain(raise_errors=False)
    assert sorted(ran) == [1, 4]
    assert sorted(redis.zrange(keys.DEAD, 0, -1)) == sorted([forged, unsigned])


class AddOne:
    def call(self, worker, job, queue, pool):
        job["args"] = [job["args"][0] + 1]
        yield


@pytest.mark.parametrize("encrypt", [False, True])
def test_due_job_with_changed_arguments_is_signed_again(application, jobs, redis, encrypt):
    ran = []
    worker = worker_of(ran, encrypt=encrypt)
    worker.perform_in(60, 1)
    middleware.client.allow_changes()
    # The client of the test has its chain: only the poller of the worker gets this one.
    middleware.client.add(AddOne)
    forged = b'{"class":"SignedWorker","args":[7],"jid":"forged","queue":"default","aw_signature":"1.00000000.00"}'
    redis.zadd(keys.SCHEDULE, {forged: 1})
    jobs.drain(raise_errors=False)
    assert ran == [2]


class AddFact:
    def call(self, worker, job, queue, pool):
        job["meta.team"] = "poller"
        yield


def test_due_job_with_changed_context_is_signed_again(application, jobs, redis):
    ran = []
    worker_of(ran).perform_in(60, 1)
    middleware.client.allow_changes()
    middleware.client.add(AddFact)
    forged = b'{"class":"SignedWorker","args":[7],"jid":"forged","queue":"default","aw_signature":"1.00000000.00"}'
    redis.zadd(keys.SCHEDULE, {forged: 1})
    jobs.drain(raise_errors=False)
    assert ran == [1]
