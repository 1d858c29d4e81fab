"""Test the handlers of lifecycle events: their order, their errors, and handlers that do not return."""

import shutil
import signal
import threading
from pathlib import Path

import pytest

from framework import lifecycle
from framework.process.events import ProcessEvents
from framework.process.lifecycle import LifecycleEvents
from framework.wire import keys
from tests.harness import RecordingTracker, enqueue, server_lines, until
from tests.tables import each_row

MODULE = Path(__file__).with_name("lifecycle_jobs.py")


@pytest.fixture
def handled(monkeypatch):
    """Return a function that registers handlers of an event for this test, and one process's events."""
    monkeypatch.setattr(lifecycle, "lifecycle_handlers", made := {event: [] for event in lifecycle.lifecycle_handlers})
    monkeypatch.setattr("framework.process.lifecycle.lifecycle_handlers", made)
    tracker = RecordingTracker()
    events = LifecycleEvents(ProcessEvents("main", tracker))
    events.tracker = tracker
    return events


async def coroutine():
    pass


@each_row(
    ("handler", "message"),
    [
        (5, "a function without arguments, not 5"),
        (coroutine, "plain def"),
        (lambda: (yield), "plain def"),
        (lambda job: job, "called without arguments: missing a required argument: 'job'"),
    ],
    ids=["no function", "async", "generator", "parameters"],
)
def test_handler_of_wrong_shape_is_refused_at_once(handled, handler, message):
    with pytest.raises(TypeError, match=message):
        lifecycle.on_quiet(handler)
    assert lifecycle.lifecycle_handlers["quiet"] == []


def test_handler_is_registered_once_and_returned(handled):
    assert lifecycle.on_exit(print) is lifecycle.on_exit(print) is print
    assert lifecycle.lifecycle_handlers["exit"] == [print]


def test_events_run_in_order_and_errors_are_reported(handled):
    seen = []

    def failing():
        seen.append("failing")
        raise SystemExit("no pool")

    for event in ("startup", "shutdown"):
        register = getattr(lifecycle, f"on_{event}")
        register(lambda event=event: seen.append(f"{event} first"))
        register(failing)
    with server_lines("info") as lines:
        for event in ("startup", "startup", "shutdown"):
            handled.fire(event)
            assert handled.join(event, 30)
        assert seen == ["startup first", "failing", "failing", "shutdown first"]  # once each; the last in reverse
        assert [line["hook"] for line in lines() if line["event_name"] == "hook.failed"] == [
            "startup handler",
            "shutdown handler",
        ]
    error, tags, transaction = handled.tracker.captured[0]
    assert (str(error), tags, transaction) == ("no pool", {"component": "startup handler"}, "startup handler")


def test_beat_that_hangs_is_left_out_and_reported(handled, monkeypatch):
    release, calls = threading.Event(), []

    @lifecycle.on_beat
    def slow():
        calls.append(1)
        release.wait(30)

    with server_lines("info") as lines:
        handled.fire("beat")
        handled.fire("beat")
        monkeypatch.setattr("framework.process.lifecycle.OVERDUE_S", -1.0)
        handled.fire("beat")
        release.set()
        assert handled.join("beat", 30)
        assert [line["event_name"] for line in lines()] == ["hook.timeout"]
    handled.fire("beat")
    assert handled.join("beat", 30)
    assert len(calls) == 2


def test_process_events_come_in_order_despite_errors(site, redis, proofs, release):
    shutil.copy(MODULE, site.folder / "lifecycle_jobs.py")
    enqueue(redis, "LongWorker", args=["one"])
    process = site.hurried_worker("-r", "lifecycle_jobs", "-q", "default", "-t", "30").ready()
    proofs("begun:one")
    until(lambda: b"beat 2" in redis.lrange("proof:events", 0, -1))
    redis.delete(process.identity)  # as if Redis had lost it: it appears a second time
    until(lambda: redis.lrange("proof:events", 0, -1).count(b"heartbeat 2") == 2)
    process.send(signal.SIGTERM)
    until(lambda: b"shutdown 1" in redis.lrange("proof:events", 0, -1))
    assert not redis.exists("proof:ended:one")  # the handlers of shutdown run beside the last job
    release("one")
    assert process.wait() == 0
    assert process.find(job_status="done")
    told = [name for name in proofs("events") if "beat" not in name]
    events = [name for name in told if name[:-2] not in ("leader", "follower")]
    assert [name for name in told if name not in events] == ["leader 1", "leader 2", "follower 2", "follower 1"]
    assert events == ["startup 1", "startup 2", "quiet 2", "quiet 1", "shutdown 2", "shutdown 1", "exit 2", "exit 1"]
    assert {line["hook"] for line in process.find(event_name="hook.failed")} == {
        f"{event} handler"
        for event in ("startup", "quiet", "shutdown", "exit", "heartbeat", "beat", "leader", "follower")
    }


@each_row("event", ["shutdown", "exit"])
def test_process_ends_in_time_despite_a_handler_that_hangs(site, redis, proofs, event):
    shutil.copy(MODULE, site.folder / "lifecycle_jobs.py")
    enqueue(redis, "LongWorker", args=["one"])
    process = site.worker("-r", "lifecycle_jobs", "-q", "default", "-t", "0", HANGS=event).ready()
    proofs("begun:one")
    assert process.end() == 0
    assert process.line(event_name="hook.timeout")["hook"] == f"{event} handler"
    assert redis.llen(keys.queue("default")) == 1  # the job that had not ended went back


def test_process_that_starts_up_for_long_still_stops(site, redis, proofs):
    shutil.copy(MODULE, site.folder / "lifecycle_jobs.py")
    enqueue(redis, "NoopWorker")
    process = site.worker("-r", "lifecycle_jobs", "-q", "default", HANGS="startup")
    until(lambda: redis.llen("proof:events") >= 2)
    assert process.end() == 0
    assert redis.llen(keys.queue("default")) == 1
    assert not process.find(event_name="process.ready")
