"""Run a whole installation on a cluster: two shards in it, with the rights of their roles, while a slot moves."""

import json

import pytest

from tests.harness import Site, until
from tests.servers.guarded import with_all_rights

JOBS = """
from datetime import timedelta
from framework import ApplicationWorker, CronWorker, Deduplicate
from framework.batches import Batch
from jobs import prove

class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue = "default"

class LimitedWorker(Base):
    concurrency_limit = 1
    def perform(self, number: int) -> None:
        prove("limited", number)

class UniqueWorker(Base):
    idempotent = True
    deduplicate = Deduplicate("until_executed", ttl=timedelta(minutes=5))
    def perform(self, number: int) -> None:
        prove("unique", number)

class CallbackWorker(Base):
    def perform(self) -> None:
        prove("callback")

class OtherShardWorker(Base):
    shard = "second"
    def perform(self, number: int) -> None:
        prove("other", number)

def push(first: int) -> None:
    numbers = range(first, first + 5)
    LimitedWorker.perform_bulk([(number,) for number in numbers])
    print([UniqueWorker.perform_async(first) is None for _ in range(3)])
    for number in numbers:
        OtherShardWorker.perform_async(number)
    LimitedWorker.perform_in(0.2, first + 5)
    batch = Batch()
    batch.on_success(CallbackWorker)
    with batch.jobs():
        LimitedWorker.perform_async(first + 6)
        UniqueWorker.perform_async(first + 6)
"""


@pytest.fixture
def site(short_path, each_cluster, redis_url):
    made = Site(short_path, each_cluster.url, each_cluster.url, warm=True)
    made.proofs_url = with_all_rights(redis_url)
    (short_path / "cluster_jobs.py").write_text(JOBS)
    yield made
    made.close()


def test_jobs_run_before_and_after_a_move_of_their_slots(site, each_cluster, redis):
    modules = ("-r", "cluster_jobs", "-q", "default", "-c", "2")
    workers = [site.hurried_worker(*modules, "--shard", shard).ready() for shard in ("main", "second")]
    push(site, redis, 100)
    for tag in ("main", "second"):
        target = each_cluster.others(each_cluster.holder(tag))[0]
        if each_cluster.moves_at_once:
            each_cluster.move_at_once(tag, target)
        else:
            each_cluster.move_key_by_key(tag, target)
    push(site, redis, 200)
    for words in (["stats"], ["queues"], ["processes"], ["memory"], ["list", "retry"]):
        found = site.run("-m", "framework", "jobs", *words, "--json")
        assert found.returncode == 0, found.stderr
        json.loads(found.stdout)
    assert [worker.end() for worker in workers] == [0, 0]
    assert not each_cluster.keys("main").keys() & {"aw:processes", "queue:default", "schedule", "retry"}


def push(site, redis, first):
    """Push jobs of each kind, and wait until each has run once."""
    pushed = site.run("-c", f"import cluster_jobs; cluster_jobs.push({first})")
    assert (pushed.returncode, pushed.stdout) == (0, "[False, True, True]\n"), pushed.stderr
    numbers = [str(number) for number in range(first, first + 7) if number != first + 6]
    expected = {"limited": {*numbers, str(first + 6)}, "unique": {str(first), str(first + 6)}, "other": {*numbers[:5]}}
    for name, values in expected.items():
        until(lambda name=name, values=values: ran(redis, name) == sorted(values), f"{name} has run once")
    until(lambda: redis.llen("proof:callback") == 1, "the batch has succeeded")
    redis.delete(*(f"proof:{name}" for name in (*expected, "callback")))


def ran(redis, name):
    return sorted(value.decode() for value in redis.lrange(f"proof:{name}", 0, -1))
