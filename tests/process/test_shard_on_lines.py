"""Every log line of a server process names its shard."""

import os
import signal

import pytest

from tests.harness import Site, enqueue, opened, until

JOBS = """
import asyncio
import logging
import warnings

from framework import ApplicationWorker
from jobs import NoopWorker

logging.getLogger("import.time").warning("while workers are loaded")


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue = "default"
    shard = "second"


class SayWorker(Base):
    def perform(self):
        self.logger.info("mine")
        logging.getLogger("another.library").warning("theirs")
        warnings.warn("a warning of Python")
        SayAsyncWorker.perform_async()


class SayAsyncWorker(Base):
    async def perform(self):
        await asyncio.sleep(0)
        self.logger.info("mine, async")


class BrokenWorker(Base):
    retry = 0

    def perform(self):
        raise ValueError("broken")

    @classmethod
    def retries_exhausted(cls, job, error):
        raise LookupError("the hook too")
"""


@pytest.fixture
def there(short_path, redis_url, make_server):
    """An installation whose shard ``second`` has a server that a test may kill."""
    server = make_server()
    site = Site(short_path, redis_url, server.url, warm=True)
    (short_path / "say.py").write_text(JOBS)
    site.server = server
    yield site
    site.close()


def check(lines, shard):
    assert lines
    # The line boot.unserved names the shard of the unserved queue.
    own = [line for line in lines if line.get("event_name") != "boot.unserved"]
    assert [line for line in own if line.get("shard") != shard] == []


def push(site, *names):
    ended = site.run("-c", "import say; " + "; ".join(f"say.{name}.perform_async()" for name in names))
    assert ended.returncode == 0, ended.stderr


def test_worker_lines_name_the_shard(there, redis):
    process = there.worker("-r", "say", "-q", "default", "--shard", "second", FRAMEWORK_LOGGING__LEVEL="debug").ready()
    push(there, "SayWorker", "BrokenWorker")
    process.line(message="mine, async")
    process.line(job_status="done", **{"class": "SayAsyncWorker"})
    process.line(job_status="fail", **{"class": "BrokenWorker"})
    process.line(event_name="hook.failed")
    process.line(logger="another.library")
    process.line(logger="py.warnings")
    process.send(signal.SIGTTIN)
    process.line(event_name="process.stack", thread="MainThread")
    there.server.kill()
    process.line(event_name="redis.failed")
    there.server.start()
    process.line(event_name="redis.recovered")
    process.send(signal.SIGTSTP)
    process.line(event_name="process.quiet")
    assert process.end() == 0
    process.line(event_name="process.stopped")
    check(process.lines, "second")


def test_boot_waiting_lines_name_the_shard(there):
    there.server.kill()
    process = there.worker("-q", "default", "--shard", "second")
    process.line(event_name="boot.waiting")
    assert process.end() == 0
    check(process.lines, "second")


def test_poller_and_reaper_lines_name_the_shard(there, redis):
    with opened(there.server.url).client as client:
        client.zadd("schedule", {b"no json": 1.0})
        enqueue(client, "NoopWorker", queue="elsewhere")
        enqueue(client, "Unknown")
        client.lpush("queue:default", b"no json either")
        process = there.worker("-q", "default", "--shard", "second").ready()
        process.line(job_status="quarantined", source="schedule")
        process.line(job_status="quarantined", queue="default")
        process.line(job_status="deferred", **{"class": "Unknown"})
        process.line(event_name="class.unknown")
        assert process.end() == 0
    check(process.lines, "second")


def test_supervisor_lines_name_the_shard_of_the_child(there):
    process = there.start("-m", "framework", "cluster", "-r", "jobs", "--timeout", "1", "--shard", "second", "default")
    process.line(event_name="process.ready")
    child = process.line(event_name="child.started")["child_pid"]
    os.kill(child, signal.SIGKILL)
    process.line(event_name="child.died")
    until(lambda: len(process.find(event_name="process.ready")) == 2)
    there.server.kill()
    process.line(event_name="redis.failed", worker_id="cluster")
    there.server.start()
    process.line(event_name="redis.recovered", worker_id="cluster")
    assert process.end() == 0
    process.line(event_name="child.stopped")
    check(process.lines, "second")
