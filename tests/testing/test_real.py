"""Check what only the mode on a real Redis has: policies of operators, and a worker that stops."""

import pytest
from redis import Redis

from framework import ApplicationWorker
from framework.all_settings import load
from framework.features.flags.flag import Flag
from framework.testing import real
from framework.wire import keys
from framework.wiring import client as wiring
from tests.testing.conftest import write_config

ran: list[int] = []


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue = "default"


@pytest.fixture
def jobs(application, redis_url):
    ran.clear()
    write_config(application, {"main": {"url": redis_url}}, routing={"routing_rules": []})
    wiring.bind(client := wiring.ProcessClient(load()))
    with real() as found:
        yield found
    client.shards.close()
    wiring.bind_default()


def test_deferring_flag_does_not_keep_a_drain_busy(jobs, redis: Redis):
    class Flagged(Base):
        wire_name = "Flagged"

        def perform(self):
            ran.append(1)

    Flagged.perform_async()
    redis.hset(keys.FLAGS, "run_jobs_Flagged", Flag("run_jobs_Flagged", 0).encode())
    assert jobs.drain() == 0
    assert [job["deferred_by"] for job in jobs.enqueued()] == ["feature_flag"]
    redis.delete(keys.FLAGS)
    assert (jobs.drain(), ran) == (1, [1])


def test_error_of_a_job_stops_the_worker_and_leaves_the_rest(jobs, redis: Redis):
    class Failing(Base):
        retry = 0

        def perform(self, number: int):
            ran.append(number)
            if number == 1:
                raise ValueError("first")

    Failing.perform_bulk([(1,), (2,), (3,)])
    with pytest.raises(ValueError, match="first"):
        jobs.drain()
    assert jobs.drain() + len(ran) >= 3
    assert (sorted(set(ran)), len(jobs.dead())) == ([1, 2, 3], 1)
    # No worker is registered any more.
    assert redis.zcard(keys.REGISTRY) == 0
