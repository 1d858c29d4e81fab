"""Check whole processes that serve a queue with sub-queues: turns, a kill, and a Ruby process at the same queue."""

from collections import Counter
from types import SimpleNamespace

import pytest

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.features.fairness.worker import worker_part
from framework.route.router import Router
from framework.wire import keys
from tests.harness import RUBY, register_process, until

JOBS = """
import os, time, redis
from framework import ApplicationWorker

proofs = redis.Redis.from_url(os.environ["PROOF_URL"])


class FairWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "fairq"
    fair_by = lambda args: args[0]
    max_retries_after_interruption = -1

    def perform(self, tenant: str, number: int) -> None:
        proofs.rpush("ran", f"{tenant} {number}")
        while proofs.exists("hold"):
            time.sleep(0.01)
"""
PUSH = """
from jobs import FairWorker
FairWorker.perform_bulk([("big", number) for number in range(300)])
FairWorker.perform_bulk([(f"small{key}", number) for number in range(2) for key in range(5)])
"""
ARGS = ("-q", "fairq", "-c", "2")


@pytest.mark.campaign
def test_killed_process_of_a_fair_queue_loses_no_job(redis, site):
    (site.folder / "jobs.py").write_text(JOBS)
    assert site.run("-c", PUSH).returncode == 0
    register_process(redis, {"queues": ["fairq"], "labels": []})
    refused = site.worker(*ARGS)
    assert refused.wait() == 78
    assert "a Ruby process serves its queue fairq" in refused.output
    redis.delete(RUBY)
    redis.set("hold", 1)
    killed = site.worker(*ARGS)
    until(lambda: redis.llen("ran") == 2, "two jobs")
    killed.kill()
    redis.delete("hold")
    site.hurried_worker(*ARGS)
    until(lambda: len(set(redis.lrange("ran", 0, -1))) == 310, "all jobs")
    until(lambda: not redis.exists(keys.turns("fairq")), "no turns")
    ran = [one.decode().split()[0] for one in redis.lrange("ran", 0, -1)]
    # The small ones had their turns: they were not behind the three hundred.
    assert Counter(ran[:60])["big"] <= 50
    assert redis.smembers(keys.QUEUES) == {b"fairq"}


def test_process_serves_fair_queues_of_classes_that_may_move_to_its_shard():
    """A move brings their jobs while it runs."""
    order = SimpleNamespace(names=["tenants", "plain"])
    process = SimpleNamespace(
        router=Router([], ["main", "second"]),
        shard=SimpleNamespace(name="second"),
        plans=[SimpleNamespace(order=order)],
    )
    with registry.isolated():
        for name, queue in (("Served", "tenants"), ("Elsewhere", "others")):
            body = {"feature_category": "not_owned", "queue": queue, "fair_by": "user", "perform": lambda self: None}
            type(f"{name}Worker", (ApplicationWorker,), body)
        assert worker_part(process).sub_queues == {"tenants"}
        process.shard.name = "main"
        assert worker_part(process).sub_queues == {"tenants", "others"}
