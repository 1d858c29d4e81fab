"""Test the handlers that are called when a process begins to lead, and when it no longer leads."""

import threading

import pytest

from framework import leader, lifecycle
from framework.features.cron import keys
from framework.features.cron.leadership import Leadership, LeadershipEvents
from framework.process.events import ProcessEvents
from framework.process.lifecycle import LifecycleEvents
from framework.process_clock import process_clock
from tests.harness import RecordingTracker


@pytest.fixture
def told(monkeypatch):
    """Return the calls of the handlers that this test registers."""
    made = {event: [] for event in lifecycle.lifecycle_handlers}
    for module in ("framework.lifecycle", "framework.process.lifecycle", "framework.features.cron.leadership"):
        monkeypatch.setattr(f"{module}.lifecycle_handlers", made)
    return []


@pytest.fixture
def now():
    seconds = [100.0]
    with process_clock.override(monotonic=lambda: seconds[0]):
        yield seconds


def test_leader_events_come_in_turns(told, now, redis):
    leadership = Leadership(redis, keys.leader("default"), "host:1:a")
    other = Leadership(redis, keys.leader("default"), "host:2:b")
    lifecycle_events = LifecycleEvents(ProcessEvents("main", RecordingTracker()))
    events = LeadershipEvents(leadership, lifecycle_events)
    events.step()
    assert not leadership.asked
    returns = threading.Event()

    @leader.on_leader
    def lead():
        told.append("leader")
        returns.wait(30)

    leader.on_follower(lambda: told.append("follower"))
    events.step()
    assert leadership.asked
    leadership.renew()
    events.note()
    events.note()
    # The lease ends by the clock of the process, without an answer of Redis: the handler still runs.
    now[0] += 60.0
    events.note()
    assert lifecycle_events.join("follower", 30)
    assert told == ["leader", "follower"]
    # It leads again: the handler is called again when it has returned.
    leadership.renew()
    events.note()
    assert told == ["leader", "follower"]
    returns.set()
    assert lifecycle_events.join("leader", 30)
    events.note()
    assert lifecycle_events.join("leader", 30)
    assert told == ["leader", "follower", "leader"]
    # A stop calls the handlers before the lease is given up, and nothing comes after it.
    events.end()
    assert lifecycle_events.join("follower", 30)
    assert told[3:] == ["follower"]
    assert not other.renew()
    events.note()
    leadership.release()
    events.note()
    events.end()
    assert other.renew()
    assert len(told) == 4
