"""Test the order of a rolling restart, step by step, with children that start in milliseconds."""

import os
import signal
import sys
from pathlib import Path

import pytest

from framework.cluster.child import ChildSpec
from framework.cluster.rollout import Rollout
from framework.cluster.supervisor import Supervisor
from tests.cluster.conftest import has_ended
from tests.cluster.test_supervisor import LeaseRecorder
from tests.harness import until

CHILD_PROGRAM = str(Path(__file__).with_name("stub_child.py"))


class RolloutGroup:
    """Run two children and a rollout; ``turn`` is one step of the supervisor's loop."""

    def __init__(self, folder, drain_timeout_s=60.0):
        self.folder, self.events, self.lease_recorder = folder, [], LeaseRecorder()
        self.mode("serve")
        specs = [
            ChildSpec(name, [sys.executable, "-I", "-S", CHILD_PROGRAM, str(folder)], "main") for name in ("a", "b")
        ]
        self.supervisor = Supervisor(specs, leases=self.lease_recorder, on_event=self.events.append)
        self.rollout = Rollout(self.supervisor, self.events.append, drain_timeout_s=drain_timeout_s, timeout_s=0.1)
        self.most = 0
        self.least = 2
        self.supervisor.start()
        self.until(lambda: all(child.ready for child in self.supervisor.children), "both children are ready")
        self.least = 2

    def mode(self, mode):
        (self.folder / "mode").write_text(mode)

    def hold(self, *names):
        for name in names or ("hold",):
            (self.folder / name).touch()

    def clear_process(self):
        (self.folder / "hold").unlink()

    @property
    def pids(self):
        return [child.pid for child in self.supervisor.children]

    @property
    def leaving(self):
        return [child for child in self.supervisor.standby if child.draining]

    def events_of(self, *kinds):
        return [(event.kind, event.name) for event in self.events if not kinds or event.kind in kinds]

    def turn(self):
        self.supervisor.poll()
        self.rollout.step()
        self.most = max(self.most, sum(1 for child in self.supervisor.all if child.pid))

    def until(self, condition, what=""):
        def look():
            self.turn()
            self.least = min(self.least, sum(child.ready for child in self.supervisor.children))
            return condition()

        return until(look, what)

    def roll(self):
        self.least = 2
        self.rollout.begin()
        self.until(lambda: not self.rollout.rolling, "the rollout ends")


@pytest.fixture
def group(tmp_path):
    made = []

    def make(**options):
        made.append(RolloutGroup(tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        one.supervisor.stop(0)
        assert all(has_ended(event.pid) for event in one.events if event.pid)


def test_rollout_starts_successor_first_and_one_at_a_time(group):
    one = group()
    before = one.pids
    one.hold()
    one.rollout.begin()
    one.until(lambda: one.leaving, "one child is draining")
    for _ in range(20):
        one.turn()
    assert set(one.supervisor.live_pids("main").values()) == {
        *one.pids,
        before[0],
    }  # the supervisor renews the lease of each process
    assert (one.pids[0] in before, one.pids[1] in before, len(one.supervisor.standby)) == (False, True, 1)
    one.clear_process()
    one.until(lambda: not one.rollout.rolling, "the rollout ends")
    assert not set(one.pids) & set(before)
    assert one.events_of()[2:] == [(kind, name) for name in "ab" for kind in ("started", "replaced", "drained")]
    assert (one.most, one.least, one.rollout.aborted, one.lease_recorder.deaths) == (3, 2, False, [])
    assert [child.restarts for child in one.supervisor.children] == [1, 1]


def test_rollout_unready_successor_aborts_others_go_on(group, monkeypatch):
    one = group()
    before = one.pids
    one.mode("refuse")
    one.roll()
    assert (one.pids, one.rollout.aborted, one.least) == (before, True, 2)
    assert [(event.name, event.status) for event in one.events if event.kind == "not_ready"] == [("a", 3)]
    monkeypatch.setattr(one.rollout, "_ready_timeout_s", 0.2)
    one.mode("hang")
    one.roll()
    assert (one.pids, one.rollout.aborted, one.least) == (before, True, 2)
    one.until(lambda: not one.supervisor.standby, "the hanging successor has ended")
    monkeypatch.undo()
    one.mode("serve")
    one.roll()
    assert (one.rollout.aborted, one.least, set(one.pids) & set(before)) == (False, 2, set())


def test_rollout_overdue_drain_is_stopped_then_killed(group, monkeypatch):
    monkeypatch.setattr("framework.cluster.rollout.KILL_MARGIN_S", 0.1)
    one = group(drain_timeout_s=0.1)
    before = one.pids
    one.hold()
    one.roll()
    assert one.events_of("overdue", "drained") == [(kind, name) for name in "ab" for kind in ("overdue", "drained")]
    one.hold("deaf")
    one.roll()
    died = [(event.name, event.status) for event in one.events if event.kind == "died"]
    assert died == [("a", -signal.SIGKILL), ("b", -signal.SIGKILL)]
    (one.folder / "deaf").unlink()
    assert len(one.lease_recorder.deaths) == 2  # both are marked dead, so their jobs are recovered at once
    assert (one.least, set(one.pids) & set(before)) == (2, set())


def test_rollout_requested_again_replaces_all_children_again(group):
    one = group()
    one.hold()
    one.rollout.begin()
    one.until(lambda: one.leaving)
    one.rollout.begin()
    one.clear_process()
    one.until(lambda: not one.rollout.rolling, "the rollout ends")
    assert sorted(name for _, name in one.events_of("replaced")) == ["a", "a", "b"]
    assert one.least == 2


def test_rollout_child_dying_during_it_counts_as_replaced(group):
    one = group()
    one.hold()
    one.rollout.begin()
    one.until(lambda: one.leaving)
    os.kill(one.pids[1], signal.SIGKILL)
    one.until(lambda: one.events_of("died"), "the death is noticed")
    one.clear_process()
    one.until(lambda: not one.rollout.rolling, "the rollout ends")
    assert one.events_of("replaced") == [("replaced", "a")]
    assert all(child.ready for child in one.supervisor.children)


def test_rollout_failing_new_child_stops_replacement(group, monkeypatch):
    one = group()
    old = one.pids[1]
    one.hold()
    one.rollout.begin()
    one.until(lambda: one.leaving)
    one.mode("refuse")
    os.kill(one.pids[0], signal.SIGKILL)
    one.until(lambda: not one.pids[0])
    monkeypatch.setattr(one.rollout, "_ready_timeout_s", 0.3)
    one.clear_process()
    one.until(lambda: not one.rollout.rolling, "the rollout is abandoned")
    assert (one.pids[1], one.rollout.aborted) == (old, True)
    assert [event.name for event in one.events if event.kind == "not_ready"] == ["a"]


def test_rollout_replaces_children_that_do_not_serve_first(group):
    one = group()
    one.mode("refuse")
    os.kill(one.pids[1], signal.SIGKILL)
    one.until(lambda: len(one.events_of("died")) > 1, "the child has died twice")
    one.mode("serve")
    one.rollout.begin()
    one.until(lambda: not one.rollout.rolling, "the rollout ends")
    assert one.events_of("replaced") == [("replaced", "b"), ("replaced", "a")]


def test_rollout_replacement_waits_for_drain_unless_urgent(group):
    one = group()
    a, b = one.supervisor.children
    one.hold()
    assert one.rollout.replace(a)
    assert not one.rollout.replace(a)
    one.until(lambda: one.leaving == [a])
    assert one.rollout.replace(b)
    for _ in range(20):
        one.turn()
    assert b in one.supervisor.children
    assert one.rollout.replace(b, urgent=True)
    one.until(lambda: ("overdue", "b") in one.events_of(), "the child is overdue and gets the ordinary deadline")
    assert one.rollout.replace(a, urgent=True)  # an urgent replacement is possible while the child drains
    assert not one.rollout.replace(a, urgent=True)
    one.until(lambda: not one.supervisor.standby, "both replaced children have ended")
    assert one.least == 2


def test_rollout_quiet_cancels_it_and_dead_child_stays_dead(group):
    one = group()
    before = one.pids
    one.mode("hang")
    one.rollout.begin()
    one.until(lambda: one.supervisor.standby, "a successor starts")
    one.rollout.cancel()
    one.supervisor.quiet = True
    one.until(lambda: not one.supervisor.standby, "the successor has ended")
    one.until(lambda: not any(child.ready for child in one.supervisor.children), "every child is quiet")
    assert (one.pids, one.rollout.rolling) == (before, False)
    os.kill(one.pids[0], signal.SIGKILL)
    one.until(lambda: not one.pids[0])
    for _ in range(20):
        one.turn()
    assert one.pids == [0, before[1]]
    one.mode("serve")
    one.roll()  # a new rollout ends the quiet mode
    assert all(child.ready for child in one.supervisor.children)


def test_rollout_stop_during_it_leaves_no_process(group):
    one = group()
    one.hold()
    one.rollout.begin()
    one.until(lambda: one.leaving)
    one.mode("hang")
    one.rollout.replace(one.supervisor.children[1], urgent=True)
    one.until(lambda: len(one.supervisor.standby) == 2, "one child drains and one starts")
    one.supervisor.stop(5)
    assert len(one.events_of("stopped")) == 4
    assert not one.supervisor.unclean
    assert not one.supervisor.all[2:]
