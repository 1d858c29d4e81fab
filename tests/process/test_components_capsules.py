"""Check capsules in a real process: their threads, the quiet state, the stop, and the recovery of their jobs."""

import json
import signal

import pytest

from framework.process.own_queues import CapsuleOptions, plan_capsules
from framework.recover.reaper import mark_dead
from framework.wire import keys
from tests.harness import enqueue, until

CAPSULE = ("-q", "default", "-c", "2", "--capsule", "slow", "1", "mails,reports")


def jobs_of(redis, queue):
    return [json.loads(data) for data in redis.lrange(keys.queue(queue), 0, -1)]


def test_capsule_has_threads_and_queues_of_its_own(site, redis, proofs, release):
    for name, queue in (("one", "mails"), ("two", "mails"), ("three", "default")):
        enqueue(redis, "LongWorker", args=[name], jid=name, queue=queue)
    process = site.hurried_worker(*CAPSULE, "-t", "0").ready()
    proofs("begun:one"), proofs("begun:three")
    enqueue(redis, "NoopWorker", jid="noop")
    proofs("noop")  # a slot of the default capsule is free, and the one of `slow` is not
    assert not redis.exists("proof:begun:two")
    until(lambda: redis.hlen(f"{process.identity}:work") == 2, "the jobs of both capsules in the record")
    info = json.loads(redis.hget(process.identity, "info"))
    assert info["capsules"] == {
        "default": {"concurrency": 2, "mode": "strict", "weights": {"default": 0}},
        "slow": {"concurrency": 1, "mode": "strict", "weights": {"mails": 0, "reports": 0}},
    }
    assert info["weights"] == [{"default": 0}, {"mails": 0, "reports": 0}]
    assert (info["queues"], info["concurrency"]) == (["default", "mails", "reports"], 3)
    release("one")
    proofs("begun:two")
    assert process.end() == 0
    assert process.line(event_name="process.stopped")["returned"] == 2
    assert [job["jid"] for job in jobs_of(redis, "mails")] == ["two"]
    assert [(job["jid"], job["interrupted_count"]) for job in jobs_of(redis, "default")] == [("three", 1)]
    assert not redis.keys("aw:working:*") + redis.keys("aw:process:*") + redis.keys("aw:lease:*")


def test_quiet_process_fetches_for_no_capsule(site, redis, proofs, release):
    enqueue(redis, "LongWorker", args=["one"], queue="reports")
    process = site.hurried_worker(*CAPSULE).ready()
    proofs("begun:one")
    process.send(signal.SIGTSTP)
    process.line(event_name="process.quiet")
    until(lambda: not [one for one in redis.client_list() if "b" in one["flags"]], "the blocking calls end")
    for queue in ("default", "mails"):
        enqueue(redis, "NoopWorker", queue=queue)
    release("one")
    until(lambda: not redis.keys("aw:working:*"))
    assert process.end() == 0
    assert [redis.llen(keys.queue(queue)) for queue in ("default", "mails")] == [1, 1]


def test_jobs_of_a_killed_process_return_from_all_capsules(site, redis, proofs):
    enqueue(redis, "LongWorker", args=["one"], jid="one")
    enqueue(redis, "LongWorker", args=["two"], jid="two", queue="reports")
    killed = site.worker(*CAPSULE).ready()
    proofs("begun:one"), proofs("begun:two")
    killed.kill()
    assert redis.llen(keys.working(f"{killed.identity}/slow")) == 1
    mark_dead(redis, killed.identity)
    other = site.worker("-q", "another").ready()
    until(lambda: redis.llen("queue:default") and redis.llen("queue:reports"))
    # Each list is judged by the slots of its capsule: both jobs ran.
    assert [jobs_of(redis, queue)[0]["aw_death_count"] for queue in ("default", "reports")] == [1, 1]
    lines = until(lambda: len(found := other.find(job_status="recovered")) == 2 and found, "both lines are written")
    assert {line["owner"] for line in lines} == {killed.identity}
    assert not redis.keys(f"aw:working:{killed.identity}*")


@pytest.mark.parametrize("options", [("-C", "worker.yml"), ("--only-capsules", "--capsule", "slow", "1", "default")])
def test_process_with_only_capsules_has_no_default(site, redis, proofs, options):
    (site.folder / "worker.yml").write_text(":capsules:\n  :slow:\n    :concurrency: 1\n    :queues: [default]\n")
    enqueue(redis, "NoopWorker", jid="noop")
    process = site.hurried_worker(*options, "-t", "0").ready()
    proofs("noop")
    assert process.line(event_name="process.ready")["queues"] == ["default"]
    info = json.loads(until(lambda: redis.hget(process.identity, "info")))
    assert list(info["capsules"]) == ["slow"]
    assert process.end() == 0


def test_process_limit_of_a_queue_in_two_capsules_is_refused(site):
    refused = site.run(
        "-m", "framework", "worker", "-q", "a", "--capsule", "slow", "1", "a", FRAMEWORK_PROCESS_LIMITS='{"a": 1}'
    )
    assert refused.returncode == 78
    assert "a: more than one capsule serves this queue, so a limit per process cannot hold" in refused.stderr


def test_plan_leaves_queues_of_a_capsule_out_of_namespaces():
    slow = CapsuleOptions("slow", (("mail:bulk", 0),), 1)
    plans = plan_capsules((("mail", 2),), 10, [slow], {"mail:bulk", "mail:single"})
    assert [(one.name, one.order.names, one.slots) for one in plans] == [
        ("default", ["mail", "mail:single"], 10),
        ("slow", ["mail:bulk"], 1),
    ]
