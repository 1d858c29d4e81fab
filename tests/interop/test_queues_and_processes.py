"""Compare queues, processes and running work of ``framework.admin`` with Ruby's ``sidekiq/api``, and steer a Ruby process."""

import json
import time

import pytest
from redis import Redis

from framework import admin
from framework.admin.port import Access, opener
from framework.admin.search import search
from framework.all_settings import load
from framework.shard.shards import Shards
from framework.wire import keys
from tests.harness import encoded, enqueue, opened


@pytest.fixture
def on_main(environment, redis, redis_url):
    """Let ``framework.admin`` use the shard of both sides."""
    shards = Shards({"main": opened(redis_url)})
    with opener.override(lambda: Access(shards, load())):
        yield
    shards.close()


def test_python_reads_what_ruby_reads(ruby, redis, on_main):
    for number in range(120):
        enqueue(redis, "Job", jid=f"j{number}", args=[number], queue="mail", enqueued_at=time.time() - 30)
    redis.lpush(keys.queue("mail"), b"no JSON")
    redis.zadd(keys.RETRY, {encoded(): 1, encoded("Two"): 1})
    redis.set(keys.STAT_PROCESSED, 7)
    seen, queue, stats = ruby("queue", name="mail"), admin.Queue("mail"), admin.stats()
    assert (seen["size"], seen["names"]) == (queue.size, [one.name for one in admin.queues()])
    assert abs(seen["latency"] - queue.latency) < 5
    assert [job.get("jid") for job in seen["jobs"]] == [job.jid or None for job in queue]
    in_ruby = ruby("stats")
    assert {name: in_ruby[name] for name in ("processed", "enqueued", "retry")} == {
        "processed": stats.processed,
        "enqueued": stats.enqueued,
        "retry": stats.retry,
    }


@pytest.mark.parametrize("action", ["clear", "delete"])
def test_action_on_a_queue_leaves_what_ruby_leaves(ruby, redis, on_main, action):
    left = []
    for side in ("ruby", "python"):
        redis.delete(keys.queue("mail"), keys.QUEUES)
        for number in range(3):
            enqueue(redis, "Job", jid=f"j{number}", queue="mail", created_at=1.5, enqueued_at=1.5)
        match side, action:
            case "ruby", "clear":
                ruby("clear", name="mail")
            case "ruby", "delete":
                ruby("delete_job", name="mail", jid="j1")
            case "python", "clear":
                assert admin.Queue("mail").clear() == 3
            case _:
                assert admin.Queue("mail").find("j1").delete()
        left.append((redis.lrange(keys.queue("mail"), 0, -1), redis.smembers(keys.QUEUES)))
    assert left[0] == left[1]
    assert left[0][1] == (set() if action == "clear" else {b"mail"})


@pytest.mark.campaign
@pytest.mark.slow
def test_ruby_process_is_listed_quieted_and_stopped(ruby, ruby_server, redis, on_main, eventually):
    with ruby_server() as server:
        (process,) = eventually(admin.processes, "the record of Ruby")
        (seen,) = ruby("processes")
        assert (process.identity, process.pid, process.hostname) == (seen["identity"], seen["pid"], seen["hostname"])
        assert (list(process.queues), process.slots, process.started_at) == (["default"], 1, seen["started_at"])
        process.quiet()
        eventually(lambda: admin.processes()[0].is_quiet, "quiet")
        process.stop()
        assert server.ended() == 0
    assert admin.processes() == []


@pytest.mark.campaign
@pytest.mark.slow
def test_job_that_runs_in_ruby_is_found(ruby, ruby_server, redis, redis_url, eventually):
    """Sidekiq takes a job out of Redis at the fetch: its record alone has the job, and is written every few seconds."""
    client = Redis.from_url(redis_url)
    with ruby_server():
        jid = ruby("perform_async", **{"class": "HeldWorker", "args": ["interop:release"]})
        (found,) = eventually(lambda: search(client, jid, lambda _key, _jobs: None), "the job in the record of Ruby")
        (process,) = ruby("processes")
        assert (found.store.kind, found.store.name, found.payload["class"]) == (
            "running",
            process["identity"],
            "HeldWorker",
        )
        redis.set("interop:release", 1)


def test_work_of_a_ruby_record_is_read(ruby, redis, on_main):
    identity = "host:7:aabbccddeeff"
    redis.sadd(keys.PROCESSES, identity)
    redis.hset(identity, mapping={"info": json.dumps({"queues": ["mail"], "pid": 7, "hostname": "host"}), "busy": 1})
    entry = {"queue": "mail", "payload": json.loads(encoded("Mail", jid="j1")), "run_at": 1_700_000_000}
    for key in keys.work(identity):
        redis.hset(key, "t1", json.dumps(entry))
    (seen,) = ruby("work")
    (job,) = admin.work()
    assert (job.process, job.thread, job.queue, job.since) == (
        seen["process"],
        seen["thread"],
        seen["queue"],
        seen["run_at"],
    )
