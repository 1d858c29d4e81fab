"""A thread of the framework that cannot start, or that dies, ends its process with status 1; another process goes on without it."""

import asyncio
import json
import threading
import time
import urllib.request
from contextlib import suppress
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from framework import supervised_threads
from framework.call_threads import CallThreads
from framework.features.consistency.databases import DatabaseServer
from framework.features.tasks.writer import EventWriter
from framework.process.boot import wait_for_redis
from framework.process.events import ProcessEvents
from framework.process.heartbeat import Watchdog
from framework.process.signals import SignalQueue
from framework.store.connect import Endpoint
from framework.supervised_threads import SupervisedThread, ThreadStartError, report_to
from framework.wire import keys
from tests.features.tasks.task_bench import TaskBench, change
from tests.harness import DIED, RecordingTracker, enqueue, until

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

throttling.register(lambda worker: None)
"""

REFUSED = """
import sys, threading
NAME = sys.argv.pop()
start = threading.Thread.start

def refused(self):
    if self.name == NAME:
        raise RuntimeError("can't start new thread")
    start(self)

threading.Thread.start = refused
"""
"""The system has no more threads."""

KILLED = """
import ctypes, sys, threading, time
NAME = sys.argv.pop()

class Sabotage(BaseException):
    pass

def kill(name):
    while True:
        for thread in threading.enumerate():
            if thread.name == name and thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Sabotage))
                # asyncio survives it in a callback.
                if name != "event-loop" or not thread.is_alive():
                    return
        time.sleep(0.01)

threading.Thread(target=kill, args=(NAME,), daemon=True).start()
"""
"""An error in the loop of a thread, whatever it does."""

MAIN = """
from framework.cli.worker import main
main()
"""

JOB_OF = {
    "task-events": "Tracked",
    "task-upkeep": "Tracked",
    "timeouts": "Timed",
    "isolation": "Isolated",
    "event-loop": "Async",
    "load-signals": "Limited",
}
"""The class whose jobs need the thread; the others start with the process."""

CASES = [("start", "task-events"), ("loop", "task-events"), ("loop", "log-writer"), ("start", "timeouts")]


def ask_health(process):
    """Send a request to the health server, which wakes its thread."""
    for listening in process.find(event_name="health.listening"):
        with suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{listening['port']}/liveness", timeout=5).close()


def ends_with_its_thread(site, redis, cases):
    (site.folder / "jobs.py").write_text(JOBS)
    site.write("application.yml", {"tasks": {"url": f"sqlite:///{site.folder}/tasks.db"}})
    started = []
    for number, (where, name) in enumerate(cases):
        queue = f"q{number}"
        for turn in range(5):
            enqueue(redis, JOB_OF.get(name, "Quick"), queue=queue, jid=f"{queue}-{turn}")
        code = (REFUSED if where == "start" else KILLED) + MAIN
        process = site.start("-c", code, "-r", "jobs", "-q", queue, "-c", "2", "--health-port", "0", name)
        process.may_die = True
        started.append((where, name, queue, process))
    for where, name, queue, process in started:
        # A thread that waits notices the error at its next work.
        while process.popen.poll() is None and where == "loop":
            enqueue(redis, JOB_OF.get(name, "Quick"), queue=queue)
            ask_health(process)
            time.sleep(0.05)
        assert process.wait() == 1, (where, name, process.output)
        died = process.line(event_name=DIED)
        assert died["component"] == name, (where, died)


@pytest.mark.proves("R4")
def test_process_ends_with_a_thread_that_dies(site, redis):
    ends_with_its_thread(site, redis, CASES)


LEFT_LOCKED = """
import framework.fetch.pipeline as m, framework.wiring.worker_process as wiring
class Sabotage(BaseException): pass
def broken(self, *_):
    self._lock.acquire()
    raise Sabotage
m.FetchPipeline.fetch_and_wait = broken
m.FetchPipeline.unfinished = True
wiring.DEATH_LIMIT_S = 1.0
"""


@pytest.mark.proves("R4")
def test_process_whose_dead_thread_left_a_lock_taken_ends(site, redis):
    enqueue(redis, "NoopWorker")
    process = site.start("-c", LEFT_LOCKED + MAIN, "-r", "jobs", "-q", "default")
    assert process.wait() == 1
    assert process.line(event_name=DIED)["component"] == "processor-0"
    assert "in flush" in process.errors.read_text()  # the stack of the main thread
    assert not process.find(event_name="process.stopped")
    assert redis.llen("queue:default") + redis.llen(keys.working(process.identity)) == 1


WITHOUT = """
import threading
from framework.lifecycle import on_startup
on_startup(lambda: None)
start = threading.Thread.start

def refused(self):
    if self.name in ("startup", "processor-1"):
        raise RuntimeError("can't start new thread")
    start(self)

threading.Thread.start = refused
"""


def test_process_goes_on_without_a_thread_it_need_not_have(site, redis):
    process = site.start("-c", WITHOUT + MAIN, "-r", "jobs", "-q", "default", "-c", "2").ready()
    assert process.line(event_name="hook.failed")["hook"] == "startup handler"
    for number in range(5):
        enqueue(redis, "NoopWorker", jid=str(number))
    until(lambda: redis.llen("proof:noop") == 5)
    assert process.end() == 0


@pytest.fixture
def deaths():
    found = []
    report_to(lambda name, error: found.append((name, error)))
    yield found
    report_to(None)


def refuse_threads(monkeypatch):
    def refused(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)


def test_thread_that_ends_without_a_report_is_found(deaths, monkeypatch):
    silent = SupervisedThread("silent", lambda: None)
    # Without memory for its report.
    monkeypatch.setattr(silent, "report", lambda error: 1 / 0)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    silent._target = lambda: 1 / 0
    silent.start()
    silent.join()
    monkeypatch.undo()
    (found,) = [one for one in supervised_threads.supervised_threads() if one.name == "silent"]
    found.report_if_dead()
    found.report_if_dead()
    ((name, error),) = deaths
    assert (name, type(error)) == ("silent", ZeroDivisionError)


def test_thread_that_ends_before_its_first_line_is_found(deaths, monkeypatch):
    unrun = SupervisedThread("unrun", lambda: None)
    monkeypatch.setattr(unrun, "run", lambda: None)
    unrun.start()
    unrun.join()
    for thread in supervised_threads.supervised_threads():
        thread.report_if_dead()
    assert [name for name, _ in deaths] == ["unrun"]


def test_death_before_there_is_a_receiver_is_passed_on(deaths):
    receive = supervised_threads._on_death
    supervised_threads.hold_reports()
    early = SupervisedThread("early", lambda: 1 / 0)
    early.start()
    early.join()
    assert deaths == []
    report_to(receive)
    report_to(receive)
    assert [name for name, _ in deaths] == ["early"]


def test_thread_that_hangs_is_found(deaths):
    hanging, done = SupervisedThread("hanging", lambda: done.wait(30), limit_s=0.0), threading.Event()
    watchdog = Watchdog([])
    hanging.start()
    assert watchdog.check() is None
    hanging.steps += 1
    watchdog.check()
    assert watchdog.check() is hanging
    done.set()
    hanging.join()
    assert deaths == []


def test_writer_without_a_thread_fails_pushes_until_it_has_one(tmp_path, deaths, monkeypatch):
    one = TaskBench(f"sqlite:///{tmp_path}/tasks.db")
    with monkeypatch.context() as patched, pytest.raises(ThreadStartError):
        refuse_threads(patched)
        one.writer.write([change("j1", "push", 1.0)])
    assert (one.event("j1"), [name for name, _ in deaths]) == (None, ["task-events"])
    waiting = one.writer.submit_durable([change("j2", "end", 1.0, "finish", "completed")], gives_up=False)
    assert waiting[0].wait(30)
    with monkeypatch.context() as patched:
        patched.setattr(EventWriter, "_try", lambda *_: json.loads("{"))
        (kept,) = one.writer.submit_durable([change("j3", "end", 1.0, "finish", "completed")], gives_up=False)
        until(lambda: len(deaths) == 2)
        with pytest.raises(Exception, match="does not take events"):
            one.writer.write([change("j4", "push", 1.0)])
        assert not kept.wait(0)
    one.writer.write([change("j5", "push", 1.0)])
    # The end waited for the next thread.
    assert (kept.wait(30), one.event("j3").status) == (True, "finish")
    one.close()


def test_awaited_call_without_a_thread_raises_and_does_not_wait(deaths, monkeypatch):
    calls = CallThreads(2)

    async def call():
        return await calls.run(lambda: "called")

    with monkeypatch.context() as patched, pytest.raises(ThreadStartError):
        refuse_threads(patched)
        asyncio.run(call())
    for _ in range(3):
        assert asyncio.run(call()) == "called"
    assert [name for name, _ in deaths] == ["awaited-pushes"]


def test_death_whose_report_was_cut_off_is_reported_again():
    class CutOff(BaseException):
        pass

    class Broken(RecordingTracker):
        def capture(self, error, tags, transaction):
            super().capture(error, tags, transaction)
            if len(self.captured) == 1:
                raise CutOff

    events = ProcessEvents("main", tracker := Broken())
    events.died.set = lambda: (_ for _ in ()).throw(CutOff)
    with pytest.raises(CutOff):
        events.component_died("lease", LookupError())
    del events.died.set
    assert not events.died.is_set()
    events.component_died("lease", LookupError())
    assert events.died.is_set()
    events.component_died("lease", LookupError())
    assert len(tracker.captured) == 2


def test_boot_without_redis_ends_with_a_thread_that_died():
    def away(*_):
        raise RedisConnectionError("away")

    events = ProcessEvents("main")
    lease = SimpleNamespace(is_held=away, client=SimpleNamespace(connection_pool=Mock()))
    signals = SignalQueue()
    events.died.set()
    components = SimpleNamespace(lease=lease, events=events)
    shard = SimpleNamespace(endpoint=Endpoint("redis://127.0.0.1:1"))
    assert wait_for_redis(shard, components, signals, list) == 1
    signals.close()


def test_position_without_a_thread_counts_as_unavailable(deaths, monkeypatch):
    server = DatabaseServer("main", "sqlite://", is_replica=False)
    refuse_threads(monkeypatch)
    assert server.position() is None
    assert deaths == []
