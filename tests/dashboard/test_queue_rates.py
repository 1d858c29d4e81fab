"""The rates on the pages of queues: those between the readings of an open page."""

import json

import pytest
from starlette.testclient import TestClient

from framework.dashboard import Caller, app
from framework.dashboard.pages import queue_pages
from framework.process.record import RUNS_FIELD
from tests.harness import encoded, register_process

PAGES = ("/api/queues?shard=main", "/api/queues/default?shard=main")


@pytest.fixture
def read(shards, redis, monkeypatch):
    """Return a function that reads both pages at a moment, with so many jobs and ended runs."""
    # A dashboard of its own: pages remember the readings of other tests, by another clock.
    client = TestClient(app(lambda _: Caller("ann", "admin")), base_url="http://localhost")
    redis.sadd("queues", "default")

    def read(at, jobs, ended):
        monkeypatch.setattr(queue_pages, "monotonic", lambda: at)
        redis.delete("queue:default")
        redis.lpush("queue:default", *(encoded("Job", jid=f"J{one}") for one in range(jobs)))
        info = {"hostname": "h", "pid": 1, "queues": ["default"], "concurrency": 5}
        counted = {} if ended is None else {RUNS_FIELD: json.dumps({"default": ended})}
        register_process(redis, info, "h:1:aaaaaaaaaaaa", beat=at, **counted)
        # A further word of the query: reads of one address are shared for two seconds.
        answers = [client.get(f"{path}&n={at}").json() for path in PAGES]
        found = [(answer.get("queues") or answer["places"])[0] for answer in answers]
        return [(one["in_per_s"], one["out_per_s"], one["empty_in_s"]) for one in found]

    return read


def test_rates_are_those_between_two_readings(read):
    assert read(1000.0, 10, 100) == [(None, None, None)] * 2
    # Of 8 that have ended 4 had come meanwhile; the other 6 take 30 s at this rate.
    assert read(1020.0, 6, 108) == [(0.2, 0.4, 30.0)] * 2
    assert read(1030.0, 30, 108)[0][2] is None
    # Nobody has looked for long.
    assert read(2000.0, 6, 900) == [(None, None, None)] * 2


def test_runs_of_sidekiq_by_queue_are_not_known(read):
    read(1000.0, 10, None)
    assert read(1020.0, 6, None) == [(None, None, None)] * 2
