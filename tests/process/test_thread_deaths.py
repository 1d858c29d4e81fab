"""Inject an error at the start and in the work of each thread of the framework, in real processes (campaign).

The list of threads is that of ``docs/internals/threads.md``.
"""

import sys
import time
import urllib.request
from contextlib import suppress
from datetime import datetime

import pytest

from framework.process.events import DEATH_LIMIT_S
from tests.cluster.conftest import children, cluster, has_ended
from tests.harness import DIED, enqueue, until

__all__ = ["cluster"]

pytestmark = [pytest.mark.campaign, pytest.mark.proves("R4"), pytest.mark.timeout(900)]

AT_ONCE = 4
"""Processes at a time."""
SLACK_S = 1.0
"""The time that the end of a process and the test need on a busy machine."""

JOBS = """
import time
from framework import ApplicationWorker, throttling

class Quick(ApplicationWorker):
    feature_category = "not_owned"
    queue = "default"

    def perform(self) -> None:
        pass

class Tracked(Quick):
    track = True

class Timed(Quick):
    timeout = 1

class Isolated(Quick):
    isolation = "process"

class Limited(Quick):
    concurrency_limit = 2

class Async(Quick):
    async def perform(self) -> None:
        pass

class AsyncFails(Quick):
    async def perform(self) -> None:
        raise LookupError

class AsyncTracked(Async):
    track = True

class Slow(Quick):
    def perform(self) -> None:
        time.sleep(0.5)

throttling.register(lambda worker: None)
"""

INJECTED = """
import ctypes, sys, threading, time
WHERE, NAME = sys.argv.pop(), sys.argv.pop()
start, run = threading.Thread.start, threading.Thread.run

class Sabotage(BaseException):
    pass

def refused(self):
    if self.name == NAME:
        raise RuntimeError("can't start new thread")
    start(self)

def fail_in_framework(frame, event, _):
    if event == "line" and "/framework/" in frame.f_code.co_filename:
        raise Sabotage
    return fail_in_framework

def run_and_fail(self):
    if self.name == NAME:
        sys.settrace(fail_in_framework)
    run(self)

def fail_later():
    # Again and again: an error within a job is the job's, and asyncio survives one in a callback.
    while True:
        for thread in threading.enumerate():
            if thread.name == NAME and thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Sabotage))
        time.sleep(0.1)

if WHERE == "start":
    threading.Thread.start = refused
elif WHERE == "body":
    threading.Thread.run = run_and_fail
else:
    threading.Thread(target=fail_later, daemon=True).start()
"""
"""``start``: the system has no more threads. ``body``: an error in the first line. ``loop``: an error wherever the thread is."""

MAIN = """
from framework.cli.worker import main
main()
"""

# An error that hits the thread inside of a push is the answer of that push, so the caller goes on until the thread itself is hit.
REPEATED = """
from contextlib import suppress
from framework.lifecycle import on_startup

def repeat():
    while True:
        with suppress(BaseException):
            act()
        time.sleep(0.05)

on_startup(threading.Thread(target=repeat, daemon=True).start)
"""

CLASS_OF = {
    "task-events": "Tracked",
    "task-upkeep": "Tracked",
    "timeouts": "Timed",
    "isolation": "Isolated",
    "event-loop": "Async",
    "async-settler": "AsyncFails",
    "async-recorder": "AsyncTracked",
    "async-starter": "Async",
    "load-signals": "Limited",
    # Quick jobs run in one thread, while the others sleep.
    "processor-0": "Slow",
}
"""The class whose jobs need the thread; the others start with the process."""

PRELUDES = {
    "payload-sweep": """
import framework.features.encryption.worker as upkeep
upkeep.sweep_period_s = lambda keep_s: 0.2
""",
    "flags": """
from framework.features.flags.redis_flags import RefreshedFlags
class Source:
    def read(self): pass
    def names(self): return frozenset()
flags = RefreshedFlags(Source(), "main", period_s=0.05)
def act(): flags.names()
""",
    "background slow": """
from framework.features.flags.flag import BackgroundValue
value = BackgroundValue("slow", lambda: time.sleep(0.2), None)
def act(): value.refresh()
""",
    "health-always": """
from framework.features.health.checks import HealthChecker
from framework.features.health.indicator import Normal
class Always:
    def evaluate(self, question): return Normal("it is well")
checker = HealthChecker({"always": Always()}, {}, None, cache_s=0.0, timeout_s=0.5)
def act(): checker.signals(["always"], "db", ())
""",
    "results-main": """
def act():
    import jobs
    jobs.Quick.set(queue="elsewhere").call().result(timeout=1)
""",
    "sentinels": """
import framework.store.sentinels as sentinels
sentinels.CHECK_PERIOD_S = 0.05
class Sentinels:
    def latest_addresses(self, name): return []
class Connection: pass
connection, watch = Connection(), sentinels.MasterWatch(Sentinels(), "main")
def act(): watch.add(connection)
""",
    "awaited-pushes": """
import asyncio
def act():
    import jobs
    asyncio.run(jobs.Quick.set(queue="elsewhere").aperform_async())
""",
}
"""What makes a process use a thread that it would use rarely, or only with more servers."""

TASKS = ("lease", "record", "reaper", "policies", "poller", "cron", "unserved")
WITH_THE_PROCESS = (*TASKS, "log-writer", "health", "processor-0")
BY_JOBS = ("timeouts", "event-loop", "async-settler", "async-recorder", "async-starter", "isolation", "task-events")
BY_USE = ("flags", "background slow", "health-always", "results-main", "sentinels", "awaited-pushes")
ALONE = ("task-upkeep", "load-signals", "payload-sweep")
"""Threads that one process of a shard has at a time."""
ALL = (*WITH_THE_PROCESS, *BY_JOBS, *BY_USE)


def ask_health(process):
    """Send a request to the health server, which wakes its thread."""
    for listening in process.find(event_name="health.listening"):
        with suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{listening['port']}/liveness", timeout=1).close()


class Case:
    """A worker process with an injected error."""

    def __init__(self, site, redis, where, name, queue):
        self.where, self.name, self.queue = where, name, queue
        self.redis = redis
        self.enqueue(5)
        prelude = PRELUDES.get(name, "")
        code = INJECTED + prelude + (REPEATED if "def act" in prelude else "") + MAIN
        if name in ("startup", "shutdown"):
            code = f"{INJECTED}\nfrom framework import lifecycle\nlifecycle.on_{name}(lambda: None)\n{MAIN}"
        self.process = site.start(
            "-c", code, "-r", "jobs", "-q", queue, "-c", "2", "--health-port", "0", name, where, PYTHONUNBUFFERED="1"
        )
        self.process.may_die = True
        self.ended_at = 0.0

    def enqueue(self, count=1):
        suspect = {"aw_suspect": True, "aw_interrupted_count": 1} if self.name == "async-starter" else {}
        for turn in range(count):
            jid = f"{self.queue}-{turn}-{time.monotonic_ns()}"
            enqueue(self.redis, CLASS_OF.get(self.name, "Quick"), queue=self.queue, jid=jid, **suspect)

    def has_ended(self):
        """Look at the process; give its threads something to do, as one that waits notices the error at its next work."""
        if self.process.popen.poll() is None:
            if self.redis.llen(f"queue:{self.queue}") < 20:
                self.enqueue()
            ask_health(self.process)
            if self.name == "shutdown" and self.process.find(event_name="process.ready"):
                self.process.send(15)
            return False
        self.ended_at = self.ended_at or time.time()
        return True

    def check(self):
        assert self.process.wait() == 1, (self.where, self.name, self.process.output)
        died = self.process.find(event_name=DIED)
        assert self.name in [line["component"] for line in died], (self.where, self.name, self.process.output)
        lasted_s = self.ended_at - datetime.fromisoformat(died[0]["time"]).timestamp()
        assert lasted_s <= DEATH_LIMIT_S + SLACK_S, (self.where, self.name, lasted_s)
        sys.stderr.write(f"{self.where:5} {self.name:16} ended in {lasted_s:.2f} s\n")


def run(site, redis, where, names, at_once=AT_ONCE):
    (site.folder / "jobs.py").write_text(JOBS)
    settings = {
        "tasks": {"url": f"sqlite:///{site.folder}/tasks.db"},
        "payload_offload": {"url": f"file://{site.folder}/payloads"},
    }
    site.write("application.yml", settings)
    waiting, running = list(enumerate(names)), []
    while waiting or running:
        while waiting and len(running) < at_once:
            number, name = waiting.pop(0)
            running.append(Case(site, redis, where, name, f"q{number}"))
        for case in running.copy():
            if case.has_ended():
                running.remove(case)
                case.check()
        time.sleep(0.02)


def test_worker_ends_if_a_thread_cannot_start(site, redis):
    run(site, redis, "start", [name for name in ALL if name != "log-writer"])


def test_worker_ends_if_a_thread_fails_at_once(site, redis):
    run(site, redis, "body", [*ALL, "startup", "shutdown"])


def test_worker_ends_if_a_thread_fails_later(site, redis):
    # The first waits for the end of another process until its own ends; the second runs nothing but code of the application.
    run(site, redis, "loop", [name for name in ALL if name not in ("isolation", "background slow")])


def test_worker_ends_with_a_thread_that_leads(site, redis):
    for where in ("start", "body"):
        run(site, redis, where, ALONE, at_once=1)


def test_worker_without_a_log_writer_ends_before_its_first_job(site, redis):
    site.write("application.yml", {})
    enqueue(redis, "NoopWorker")
    process = site.start("-c", INJECTED + MAIN, "-r", "jobs", "-q", "default", "log-writer", "start")
    assert process.wait() == 1
    assert "the thread log-writer cannot be started" in process.errors.read_text()
    assert redis.llen("queue:default") == 1


CLUSTER = """
import runpy
runpy.run_module("framework", run_name="__main__")
"""

OF_THE_SUPERVISOR = [
    *[("start", name) for name in ("leases of main", "health")],
    *[("body", name) for name in ("leases of main", "health", "log-writer")],
    # A supervisor that has nothing to log does not wake its writer.
    *[("loop", name) for name in ("leases of main", "health")],
]


def test_supervisor_ends_with_each_of_its_threads(cluster):
    for where, name in OF_THE_SUPERVISOR:
        code = ("-c", INJECTED + CLUSTER)
        process = cluster("default", "--health-port", "0", name, where, program=code)
        process.may_die = True
        until(lambda process=process: process.popen.poll() is not None or ask_health(process))
        ended_at = time.time()
        assert process.wait() == 1, (where, name, process.output)
        (died, *_) = process.find(event_name=DIED)
        assert died["component"] == name
        lasted_s = ended_at - datetime.fromisoformat(died["time"]).timestamp()
        assert lasted_s <= DEATH_LIMIT_S + SLACK_S, (where, name, lasted_s)
        until(lambda process=process: all(has_ended(pid) for pid in children(process)), "the end of the children")
        sys.stderr.write(f"supervisor: {where:5} {name:16} ended in {lasted_s:.2f} s\n")


EMBEDDED = """
import logging
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
import jobs
from framework.embedding import EmbeddedWorker
worker = EmbeddedWorker(["default"])
worker.start()
began = time.monotonic()
while worker.running and time.monotonic() < began + 60:
    jobs.proofs.lpush("queue:default", "{}")
    time.sleep(0.05)
print(worker.status, flush=True)
"""


def test_application_goes_on_without_its_embedded_worker(site, redis):
    for where in ("start", "body", "loop"):
        # The last of the tasks may wait for minutes.
        for name in (*TASKS[: -1 if where == "loop" else None], "processor-0"):
            found = site.run("-c", INJECTED + EMBEDDED, name, where, role="worker")
            assert (found.returncode, found.stdout) == (0, "1\n"), (where, name, found.stderr[-3000:])
            assert f"component='{name}'" in found.stderr
