"""Test a worker inside of another process: what it leaves alone, its stop, and what is refused."""

import json

import pytest

from framework.embedding import EmbeddedWorker
from framework.wire import keys
from tests.harness import enqueue
from tests.tables import each_row

HEAD = """
import logging, os, signal, sys, threading, time
logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s", stream=sys.stderr)
import jobs
from framework.embedding import EmbeddedWorker

def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, condition
        time.sleep(0.01)
"""

RUNS = """
handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTSTP)]
threads = set(threading.enumerate())
worker = EmbeddedWorker(["default"], timeout=20)
for _ in range(2):
    with worker:
        assert worker.wait_until_ready(30) and worker.running
        before = jobs.proofs.llen("proof:noop")
        jobs.NoopWorker.perform_async()
        jobs.AsyncWorker.perform_async(1)
        until(lambda: jobs.proofs.llen("proof:noop") >= before + 2)
    assert (worker.status, worker.running, worker.stop()) == (0, False, True)
assert handlers == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTSTP)]
until(lambda: set(threading.enumerate()) <= threads)
print("the application's own output")
"""

STOPS = """
worker = EmbeddedWorker(["default"], timeout=0)
worker.start()
until(lambda: jobs.proofs.llen("proof:begun:one"))
try:
    EmbeddedWorker(["other"]).start()
except Exception as error:
    print(error)
print(worker.stop(), jobs.proofs.llen("queue:default"))
jobs.proofs.set("release:one", 1)
until(lambda: worker.stop())
print(jobs.proofs.llen("queue:default"))
"""

CAPSULES = """
from framework import middleware

class Mark:
    def call(self, worker, job, queue):
        jobs.prove("marked", queue + " " + threading.current_thread().name)
        yield

middleware.capsule("slow").add(Mark)
with EmbeddedWorker(["default"], capsules={"slow": (1, ["mails"])}, timeout=20) as worker:
    for queue in ("default", "mails"):
        jobs.NoopWorker.set(queue=queue).perform_async()
    until(lambda: jobs.proofs.llen("proof:noop") == 2)
print(jobs.proofs.lrange("proof:marked", 0, -1))
"""

IGNORES = """
from dataclasses import replace
from framework import timings
timings.use(replace(timings.STANDARD, record_period_s=0.1))
worker = EmbeddedWorker()
worker.start()
worker.wait_until_ready(30)
(identity,) = jobs.proofs.smembers("processes")
jobs.proofs.lpush(identity.decode() + "-signals", "TERM")
until(lambda: not jobs.proofs.exists(identity.decode() + "-signals"))
jobs.NoopWorker.perform_async()
until(lambda: jobs.proofs.llen("proof:noop"))
worker.quiet()
until(lambda: jobs.proofs.hget(identity, "quiet") == b"true")
print(jobs.proofs.hget(identity, "info").decode())
worker.stop()
"""


def run(site, code):
    done = site.run("-W", "error", "-c", HEAD + code, role="worker")
    assert done.returncode == 0, done.stderr
    return done


def test_embedded_worker_runs_jobs_and_leaves_the_process_alone(site, redis):
    done = run(site, RUNS)
    assert done.stdout == "the application's own output\n"
    lines = done.stderr.splitlines()
    assert any(line.startswith("framework NoopWorker JID-") and ": done: " in line for line in lines)
    assert sum("event_name='process.stopped'" in line for line in lines) == 2
    left = {key for key in redis.keys("*") if key.startswith((b"aw:lease", b"aw:working", b"processes"))}
    assert left == set()


def test_embedded_worker_stop_returns_what_has_not_ended(site, redis):
    enqueue(redis, "LongWorker", args=["one"])
    refused, stopped, left = run(site, STOPS).stdout.splitlines()
    assert refused.startswith("an embedded worker runs in this process already")
    assert stopped == "False 1"  # the job is back in its queue, and its thread still runs
    assert left == "1"  # the end of that thread changes nothing
    assert json.loads(redis.lindex(keys.queue("default"), 0))["interrupted_count"] == 1


def test_embedded_worker_has_capsules_with_own_middleware(site):
    (marked,) = eval(run(site, CAPSULES).stdout)
    assert marked.startswith(b"mails slow/processor-")


def test_embedded_worker_ignores_signals_of_dashboards(site, redis):
    info = json.loads(run(site, IGNORES).stdout)
    assert info["embedded"] is True
    assert "default" in info["queues"]


def test_embedded_worker_without_redis_ends_and_says_so(site):
    code = """
from dataclasses import replace
from framework import timings
timings.use(replace(timings.STANDARD, redis_patience_s=0.1))
worker = EmbeddedWorker(["default"])
worker.start()
until(lambda: worker.status is not None)
print(worker.status, worker.wait_until_ready(0))
"""
    done = site.run("-c", HEAD + code, role="worker", REDIS_URL="redis://127.0.0.1:1/0")
    assert done.stdout == "75 False\n", done.stderr
    assert "event_name='embedded.ended'" in done.stderr


def test_embedded_worker_refuses_an_unknown_shard(site):
    done = site.run("-c", f"{HEAD}EmbeddedWorker(shard='nowhere').start()", role="worker")
    assert "the shard 'nowhere' of the embedded worker is unknown; shards: main" in done.stderr


@each_row(
    ("arguments", "named", "message"),
    [
        (("default",), {}, r"queues must be a list of names, for example \['default'\]"),
        ((["a b"],), {}, "'a b' is not a queue name"),
        (([("a", -1)],), {}, "must be a whole number from 1 on, not -1"),
        ((), {"concurrency": 0}, "concurrency must be a whole number from 1 to 10,000, not 0"),
        ((), {"capsules": {"default": (1, ["a"])}}, "'default' is the capsule of the process's own queues"),
        ((), {"capsules": {"slow": (0, ["a"])}}, "the concurrency of the capsule 'slow' must be a whole number from 1"),
        ((), {"capsules": {"slow": (1, [])}}, "the capsule 'slow' has no queues"),
        ((), {"timeout": -1}, "timeout must be a number of seconds from 0 to"),
    ],
)
def test_embedded_worker_refuses_invalid_arguments(arguments, named, message):
    with pytest.raises((TypeError, ValueError), match=message):
        EmbeddedWorker(*arguments, **named)
