"""Check the process title that ``ps`` shows."""

import signal
from pathlib import Path

import pytest

from framework.process import title
from framework.version import VERSION
from tests.harness import enqueue, until
from tests.tables import each_row


def shown(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()


def says(pid, words):
    until(lambda: shown(pid) == f"application-worker {VERSION} {words}", f"ps shows {words}")


@pytest.fixture
def titled(cold_site, monkeypatch):
    monkeypatch.delenv("SPT_NOENV")  # which cuts titles to the length of the command line
    return cold_site


def test_title_shows_queues_busy_slots_and_state(titled, redis, proofs, release):
    process = titled.hurried_worker("-q", "default", "-q", "side", "-c", "2").ready()
    says(process.pid, "main default,side [0 of 2 busy]")
    enqueue(redis, "LongWorker", args=["one"])
    proofs("begun:one")
    says(process.pid, "main default,side [1 of 2 busy]")
    process.send(signal.SIGTSTP)
    says(process.pid, "main default,side [1 of 2 busy] quiet")
    process.send(signal.SIGTERM)
    says(process.pid, "main default,side [1 of 2 busy] stopping")
    release("one")
    assert process.wait() == 0


def test_title_of_supervisor_shows_groups_and_running_children(titled, redis, proofs, release):
    enqueue(redis, "LongWorker", args=["one"])
    process = titled.start("-m", "framework", "cluster", "-r", "jobs", "default,side", "other", "--timeout", "30")
    says(process.pid, "cluster default,side other [2 of 2 running]")
    proofs("begun:one")
    until(lambda: len(process.find(event_name="process.ready")) == 2)
    process.send(signal.SIGTSTP)
    child = process.line(event_name="process.quiet")["pid"]
    assert shown(child).endswith(" quiet")  # at once, and not with the next beat
    process.send(signal.SIGTERM)
    says(process.pid, "cluster default,side other [2 of 2 running] stopping")
    release("one")
    assert process.wait() == 0


@each_row(
    ("names", "words"),
    [
        (["default"], "default"),
        (["a", "b"], "a,b"),
        (["q" * 30, "r" * 29, "s"], f"{'q' * 30},{'r' * 29} and 1 more"),
        (["q" * 30, "r" * 30, "s"], f"{'q' * 30} and 2 more"),
        (["q" * 80, "r"], f"{'q' * 60} and 1 more"),
        (
            [f"queue_{number}" for number in range(1000)],
            "queue_0,queue_1,queue_2,queue_3,queue_4,queue_5,queue_6 and 993 more",
        ),
        ([], ""),
    ],
)
def test_title_shortens_many_queue_names(names, words):
    assert title.shortened(names) == words


def test_title_without_the_library_does_nothing(monkeypatch):
    monkeypatch.setattr(title, "setproctitle", None)
    title.Title("main", ["default"], "busy").show(1, 2, "quiet")
