"""Check queues that keep a process from others while they have jobs."""

from types import SimpleNamespace

import pytest

from framework.fetch.queues import QueueOrder
from framework.process.components import BlockingQueues
from framework.wire import keys
from tests.harness import enqueue, until
from tests.tables import each_row


def blocking(client, weights, names=("b",)):
    return BlockingQueues(client, names, [QueueOrder.of(weights)], SimpleNamespace(running=list))


@each_row(
    ("weights", "names", "blocked"),
    [
        ([("a", 0), ("b", 0), ("c", 0)], ["b"], {"c"}),
        ([("b", 0), ("a", 0), ("c", 0)], ["b", "a"], {"a", "c"}),
        ([("a", 2), ("b", 1), ("c", 1)], ["b"], {"a", "c"}),
        ([("a", 2), ("b", 1), ("c", 1)], ["b", "a"], {"c"}),
        ([("a", 0), ("c", 0)], ["b"], set()),
        ([("a", 0), ("b", 0)], ["b"], set()),
    ],
)
def test_blocking_queue_with_jobs_blocks_those_behind_it(redis, weights, names, blocked):
    look = blocking(redis, weights, names)
    assert look.blocked() == set()
    enqueue(redis, "NoopWorker", queue="b")
    assert look.blocked() == blocked


@pytest.mark.parametrize("entry", ['{"queue":"b"}', "[]", "{", '{"queue":5}'])
def test_job_that_runs_in_another_process_blocks(redis, entry):
    redis.sadd(keys.PROCESSES, "other", "without a record")
    redis.hset("other:work", "t1", entry)
    assert blocking(redis, [("b", 0), ("c", 0)]).blocked() == ({"c"} if '"b"' in entry else set())


def test_process_fetches_what_was_blocked_after_the_end(site, redis, proofs, release):
    enqueue(redis, "LongWorker", args=["one"], queue="b")
    (site.folder / "worker.yml").write_text("queues: [b, c]\nblocking: [b]\nconcurrency: 5\n")
    process = site.hurried_worker("-C", "worker.yml").ready()
    proofs("begun:one")
    assert process.line(event_name="queues.blocked")["queues"] == ["c"]
    enqueue(redis, "NoopWorker", queue="c")
    until(lambda: redis.hlen(f"{process.identity}:work"), "the record with the running job")
    assert redis.llen("queue:c") == 1
    release("one")
    proofs("noop")
    assert process.end() == 0
