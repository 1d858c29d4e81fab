"""Test a real group: messages to systemd, limits of memory, and the processes that remain when its supervisor is killed."""

import os
import signal
import socket

import pytest

from framework.wire import keys
from tests.cluster.conftest import children, has_ended, read_health
from tests.harness import encoded, until

GROWING = """
import os

from jobs import Base, LongWorker, prove

held = []


class GrowWorker(Base):
    def perform(self, megabytes: int) -> None:
        held.append(bytearray(megabytes << 20))
        prove("grown", megabytes)
        prove("environment", [name for name in os.environ if name in ("NOTIFY_SOCKET", "WATCHDOG_USEC")])
        LongWorker.perform(self, "grown")
"""

CHECKS_MEMORY_OFTEN = """
from dataclasses import replace
from framework import timings
from framework.cluster import child
timings.use(replace(timings.STANDARD, memory_check_period_s=0.1))
child.MIN_AGE_S = 0.0
from framework.cli.main import main
main()
"""


class Systemd:
    """Read the notification socket as systemd does."""

    def __init__(self, path):
        self.path = path
        self.messages = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    def notifications(self):
        try:
            while True:
                self.messages.append(self._socket.recv(4096).decode())
        except BlockingIOError:
            return [word for word in self.messages if not word.startswith(("STATUS=", "WATCHDOG="))]

    def close(self):
        self._socket.close()


@pytest.fixture
def systemd(short_path):
    made = Systemd(short_path / "notify")
    yield made
    made.close()


@pytest.mark.campaign
def test_growing_child_is_replaced_and_systemd_is_notified(cluster, site, redis, proofs, release, systemd):
    (site.folder / "growing.py").write_text(GROWING)
    process = cluster(
        "default", "-r", "growing", "--max-rss", "200", "--rss-grace", "0.3", "--hard-rss", "500", "--health-port", "0",
        program=("-c", CHECKS_MEMORY_OFTEN), NOTIFY_SOCKET=str(systemd.path), WATCHDOG_USEC="200000",
    )  # fmt: skip
    until(lambda: systemd.notifications() == ["READY=1"], "the group is ready")
    assert read_health(process, "/readiness")[0] == 200
    (first,) = children(process)
    redis.lpush(keys.queue("default"), encoded("GrowWorker", args=[250], jid="grown"))
    proofs("grown")
    assert proofs("environment") == ["[]"]  # a process that runs jobs must not notify systemd
    logged = process.line(event_name="child.memory")
    assert (logged["child_pid"], logged["memwd_limit"], logged["memwd_max_rss_bytes"]) == (first, "soft", 200 << 20)
    assert logged["memwd_rss_bytes"] > 200 << 20
    assert (logged["memwd_cur_strikes"], logged["memwd_max_strikes"]) == (4, 3)
    until(lambda: children(process, "replaced") == [first], "the successor is ready")
    assert not has_ended(first)  # the replaced child may finish its job
    release("grown")
    until(lambda: children(process, "drained") == [first], "the replaced child has drained")
    assert process.find(job_status="done", jid="grown")

    redis.delete("release:grown")
    redis.lpush(keys.queue("default"), encoded("GrowWorker", args=[600], jid="huge"))
    hard = until(lambda: process.find(event_name="child.memory", memwd_limit="hard"))[0]
    assert hard["memwd_max_rss_bytes"] == 500 << 20
    until(
        lambda: hard["child_pid"] in children(process, "overdue"), "the child is overdue and gets the ordinary deadline"
    )
    until(lambda: hard["child_pid"] in children(process, "drained"), "the job is back in its queue")

    assert systemd.notifications() == ["READY=1"]
    process.send(signal.SIGUSR2)
    until(lambda: len(systemd.notifications()) == 2, "systemd knows of the start of the restart")
    release("grown")
    until(lambda: systemd.notifications()[2:] == ["READY=1"], "systemd knows of the end of the restart")
    assert systemd.notifications()[1].startswith("RELOADING=1\nMONOTONIC_USEC=")
    pings = systemd.messages.count("WATCHDOG=1")
    until(
        lambda: (systemd.notifications(), systemd.messages.count("WATCHDOG=1") > pings + 3)[1],
        "the supervisor loop runs",
    )
    assert "STATUS=fetching jobs: 1 of 1 process" in systemd.messages
    assert process.end() == 0
    assert systemd.notifications()[3:] == ["STOPPING=1"]


HANGING = """
import os, time
open(f"hangs-{os.getpid()}", "w").close()
if os.path.exists("hang"):
    while True:
        time.sleep(60)
from jobs import *
"""


def test_children_of_killed_supervisor_finish_jobs_and_end(cluster, site, redis, proofs, release):
    (site.folder / "hanging.py").write_text(HANGING)
    process = cluster("default", "-r", "hanging", "--timeout", "30")
    redis.lpush(keys.queue("default"), encoded("LongWorker", args=["one"], jid="one"))
    (working,) = proofs("begun:one")
    (site.folder / "hang").touch()
    process.send(signal.SIGUSR2)
    until(lambda: len(list(site.folder.glob("hangs-*"))) == 2, "a successor hangs in an import")
    process.kill()
    until(
        lambda: all(has_ended(pid) for pid in children(process) if pid != int(working)),
        "the child without a job has ended",
    )
    until(lambda: process.find(event_name="process.stopping"), "the child with a job stops")
    assert not has_ended(int(working))
    release("one")
    assert proofs("ended:one") == [working]
    until(lambda: has_ended(int(working)), "the other child has ended")
    assert redis.llen(keys.queue("default")) == 0
    assert process.line(event_name="process.stopped")["finished"]


def test_group_with_a_killed_child_ends_with_status_1(cluster, site, proofs, redis):
    process = cluster("default", "--processes", "2", "--timeout", "0.1")
    until(lambda: len(process.find(event_name="process.ready")) == 2)
    frozen = children(process)[0]
    os.kill(frozen, signal.SIGSTOP)
    assert process.end() == 1
    assert children(process, "killed") == [frozen]
