import logging
import os
import signal
import socket
import sys
import threading
import time

import pytest

from framework.cluster.child import Child, ChildSpec
from framework.cluster.supervisor import GroupLeases, Supervisor
from tests.harness import until

WAITS = (
    "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); "
    "print('up', flush=True); signal.sigwait([signal.SIGTERM])"
)
IGNORES_TERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
BROKEN = "raise SystemExit(3)"


class LeaseRecorder(GroupLeases):
    """Record the calls of a supervisor to its lease manager."""

    def __init__(self):
        super().__init__({})
        self.deaths, self.calls = [], []

    def start(self, group):
        self.calls.append(("start", [bool(child.pid) for child in group.children]))

    def mark_dead(self, shard, identity):
        self.deaths.append((shard, identity))

    def stop(self):
        self.calls.append("stop")


class RecordedSupervisor:
    """Keep the events and the marked deaths of a supervisor."""

    def __init__(self, folder, program, count=1):
        self.events, self.lease_recorder = [], LeaseRecorder()
        self.deaths = self.lease_recorder.deaths
        specs = [
            ChildSpec(
                f"child-{n}", [sys.executable, "-c", program], f"shard-{n}", {"MARK": str(n)}, folder / f"{n}.log"
            )
            for n in range(count)
        ]
        self.supervisor = Supervisor(specs, leases=self.lease_recorder, on_event=self.events.append)
        self.folder = folder

    @property
    def children(self):
        return self.supervisor.children

    def wait_up(self, number=0, times=1):
        log = self.folder / f"{number}.log"
        until(lambda: log.exists() and log.read_text().count("up") >= times, f"child {number} to be up")
        return self

    def kinds(self):
        return [event.kind for event in self.events]


@pytest.fixture
def start_supervisor(tmp_path):
    made = []

    def make(program, count=1):
        made.append(RecordedSupervisor(tmp_path, program, count))
        made[-1].supervisor.start()
        return made[-1]

    make.folder = tmp_path
    yield make
    for one in made:
        one.supervisor.stop(0)
        for event in one.events:
            with pytest.raises(ProcessLookupError):
                os.kill(event.pid, 0)


@pytest.mark.proves("F1")
def test_supervisor_killed_child_is_marked_dead_then_replaced(start_supervisor):
    one = start_supervisor(WAITS, 2)
    one.wait_up(0).wait_up(1)
    killed, sibling = one.children[0].pid, one.children[1].pid
    identity = one.children[0].identity
    assert identity.startswith(f"{socket.gethostname()}:{killed}:")
    os.kill(killed, signal.SIGKILL)
    until(lambda: (one.supervisor.poll(), one.children[0].restarts)[1] == 1, "a restart")
    one.wait_up(0, times=2)
    assert one.deaths == [("shard-0", identity)]
    assert one.children[0].pid not in (0, killed)
    assert one.children[0].identity != identity
    assert one.children[1].pid == sibling
    died = next(event for event in one.events if event.kind == "died")
    assert (died.name, died.pid, died.status) == ("child-0", killed, -signal.SIGKILL)


def test_supervisor_failing_child_restarts_with_backoff(start_supervisor):
    one = start_supervisor(BROKEN)
    child = one.children[0]
    until(lambda: (one.supervisor.poll(), child.restarts)[1] == 1, "the first restart, at once")
    until(lambda: (one.supervisor.poll(), one.kinds().count("died"))[1] == 2, "the second death")
    assert child.start_after > child.started_at + 0.5  # the restart waits half a second, so restarts are no busy loop
    assert one.kinds() == ["started", "died", "started", "died"]


def test_supervisor_refused_first_start_ends_the_group(start_supervisor):
    one = start_supervisor(
        "import os, signal; os.environ['MARK'] == '0' and exit(78); print('up', flush=True); signal.pause()", 2
    )
    one.wait_up(1)
    until(lambda: (one.supervisor.poll(), one.supervisor.failure)[1] is not None, "the supervisor has failed")
    one.supervisor.poll()
    assert (one.supervisor.failure, one.children[0].restarts, one.kinds().count("started")) == (78, 0, 2)


def test_supervisor_restart_with_status_78_is_retried(start_supervisor):
    one = start_supervisor(
        "import pathlib, signal; ran = pathlib.Path(FILE); ran.exists() and exit(78); "
        "ran.touch(); print('up', flush=True); signal.pause()".replace(
            "FILE", repr(str(start_supervisor.folder / "ran"))
        )
    ).wait_up()
    os.kill(one.children[0].pid, signal.SIGKILL)
    until(lambda: (one.supervisor.poll(), one.children[0].restarts)[1] >= 2, "a second restart")
    assert [event.status for event in one.events if event.kind == "died"][:2] == [-signal.SIGKILL, 78]
    assert one.supervisor.failure is None


def test_supervisor_stable_child_killed_restarts_at_once(start_supervisor, monkeypatch):
    monkeypatch.setattr("framework.cluster.child._STABLE_BEFORE_KILL_S", 0.0)
    one = start_supervisor(WAITS)
    for deaths in range(1, 5):
        one.wait_up(times=deaths)
        os.kill(one.children[0].pid, signal.SIGKILL)
        until(lambda: (one.supervisor.poll(), one.kinds().count("died"))[1] == deaths, "a death")  # noqa: B023
        assert one.children[0].restarts == deaths  # the supervisor restarts no child in the same poll


def test_supervisor_child_killed_early_restarts_with_backoff(start_supervisor):
    one = start_supervisor("import os; os.abort()")
    pauses = []
    for deaths in range(1, 8):
        until(lambda: (one.supervisor.poll(), one.kinds().count("died"))[1] >= deaths, "a death")  # noqa: B023
        pauses.append(one.children[0].start_after - one.children[0].started_at)
    assert max(pauses[:4]) < 1.0 < pauses[6]


def test_supervisor_stop_ends_all_and_restarts_none(start_supervisor):
    one = start_supervisor(WAITS, 2)
    one.wait_up(0).wait_up(1)
    one.supervisor.run_in_thread()
    one.supervisor.stop(10)
    assert sorted(one.kinds()) == ["started", "started", "stopped", "stopped"]
    assert one.deaths == []
    one.supervisor.stop(10)
    one.supervisor.poll()
    assert one.kinds().count("started") == 2
    assert [child.pid for child in one.children] == [0, 0]
    assert one.lease_recorder.calls == [("start", [True, True]), "stop", "stop"]


def test_supervisor_child_ignoring_stop_is_killed_and_dead(start_supervisor, monkeypatch):
    monkeypatch.setattr("framework.cluster.supervisor.KILL_MARGIN_S", 0.2)
    one = start_supervisor(IGNORES_TERM)
    one.wait_up()
    identity = one.children[0].identity
    one.supervisor.stop(0)
    assert one.kinds() == ["started", "killed"]
    assert one.deaths == [("shard-0", identity)]


@pytest.mark.proves("R63", "R64", "R65")
def test_supervisor_child_gets_nonce_and_environment(start_supervisor):
    one = start_supervisor(
        # "up" comes last: an unbuffered Python writes each value by itself.
        "import os; print(os.environ['FRAMEWORK_PROCESS_NONCE'], os.environ['MARK'], os.getpid(), 'up', flush=True)"
    )
    one.wait_up()
    nonce, mark, pid, _ = (one.folder / "0.log").read_text().split("\n")[0].split()
    assert one.children[0].identity == f"{socket.gethostname()}:{pid}:{nonce}"
    assert mark == "0"


@pytest.mark.proves("F51")
def test_supervisor_failed_start_is_retried(tmp_path):
    events = []
    specs = [
        ChildSpec("ghost", [str(tmp_path / "no-such-program")], "main"),
        ChildSpec("fine", [sys.executable, "-c", WAITS], "main", stdout=tmp_path / "0.log"),
    ]
    supervisor = Supervisor(specs, leases=LeaseRecorder(), on_event=events.append)
    supervisor.start()
    try:
        until(lambda: (supervisor.poll(), [e.kind for e in events if e.name == "ghost"])[1] == ["failed", "failed"])
        assert supervisor.children[1].pid
        assert supervisor.children[1].restarts == 0
        missing = supervisor.children[0]
        for _ in range(20):  # as during a long lack of memory or file descriptors
            missing.start_after = 0.0
            supervisor.poll()
        assert (
            4 < missing.start_after - time.monotonic() <= 5
        )  # the child starts within ten seconds after the end of the fault
    finally:
        supervisor.stop(0)


def test_supervisor_stuck_child_is_killed_and_replaced(start_supervisor):
    one = start_supervisor(WAITS, 2)
    one.wait_up(0).wait_up(1)
    stuck = one.children[0].pid
    assert one.supervisor.live_pids("shard-0") == {one.children[0].identity: stuck}
    one.supervisor.kill_stuck(one.children[0].identity, 130)
    one.supervisor.kill_stuck("host:1:absent", 130)
    until(lambda: (one.supervisor.poll(), one.children[0].restarts)[1] == 1, "a restart")
    calls = [(event.kind, event.pid, event.status) for event in one.events if event.pid == stuck]
    assert calls == [("started", stuck, None), ("stuck", stuck, 130), ("died", stuck, -signal.SIGKILL)]
    assert one.children[1].restarts == 0


def test_supervisor_signal_for_a_shard_reaches_only_it(start_supervisor):
    one = start_supervisor(WAITS, 2)
    one.wait_up(0).wait_up(1)
    one.supervisor.forward(signal.SIGKILL, "shard-1")
    until(lambda: (one.supervisor.poll(), one.children[1].restarts)[1] == 1, "a restart")
    assert one.children[0].restarts == 0


RESPAWNS = int(os.environ.get("PROVE_RESPAWNS", "20"))
"""1,000 by hand."""


@pytest.mark.proves("R63", "R64")
def test_supervisor_start_beside_logging_threads_returns(tmp_path):
    """Children start by exec, so no child inherits a lock that a thread of the supervisor holds."""
    over = threading.Event()
    log = logging.FileHandler(tmp_path / "log")

    def log_messages():
        while not over.is_set():
            log.handle(logging.makeLogRecord({"msg": "x" * 100}))

    threads = [threading.Thread(target=log_messages) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        argv = [sys.executable, "-I", "-S", "-c", "print('up')"]
        child = Child(ChildSpec("child", argv, "main", stdout=tmp_path / "0.log"))
        for _ in range(RESPAWNS):
            child.start()
            assert child.process.wait(20) == 0
    finally:
        over.set()
        for thread in threads:
            thread.join()
        log.close()


def test_supervisor_failing_start_waits_5_s_at_most(tmp_path):
    child = Child(ChildSpec("child", ["true"], "main", {}, tmp_path / "child.log"))
    began = time.monotonic()
    for _ in range(1_100):  # 2 to the power of this number exceeds a float
        child.plan_restart(failed=True, longest_s=5.0)
    assert began + 4.0 < child.start_after <= time.monotonic() + 5.0
