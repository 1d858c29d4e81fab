"""Test `pushes` on files of real producers: ended during an outage, killed, killed in the replay, two on one folder."""

import json
import signal
from collections import Counter

import pytest

from framework.features.reliable_push.push_file import push_files, set_aside_files
from framework.wire import keys
from tests.harness import ROOT, until

COMMAND = str(ROOT / "scripts" / "pushes")
DOWN = "redis://127.0.0.1:1"

PRODUCER = """
import sys
from framework import ApplicationWorker

class KeptWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "default"

    def perform(self, number: int) -> None: ...

first, count = map(int, sys.argv[1:])
for number in range(first, first + count):
    KeptWorker.perform_async(number)
    print(number, flush=True)
"""
"""Pushes ``count`` numbers from ``first`` on, and prints each whose push returned."""


@pytest.fixture
def site(site):
    site.write("application.yml", {"reliable_push": {"enabled": True, "folder": "kept", "max_jobs": 1_000_000}})
    return site


@pytest.fixture
def folder(site):
    return site.folder / "kept"


@pytest.fixture
def numbers(redis):
    return lambda: [json.loads(data)["args"][0] for data in reversed(redis.lrange(keys.queue("default"), 0, -1))]


def run(site, *words, status=0, **env):
    done = site.run(COMMAND, *words, role="producer", **env)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def returned(process):
    """Return the numbers whose pushes returned."""
    text = process.log.read_text()
    return [int(line) for line in text[: text.rfind("\n") + 1].split()]


def test_pushes_of_an_ended_process_are_listed_and_replayed(site, folder, numbers):
    assert run(site, "list") == f"No push is kept in {folder}.\n"
    assert site.run("-c", PRODUCER, "0", "3", REDIS_URL=DOWN).returncode == 0
    (one,) = json.loads(run(site, "list", "--json"))["files"]
    assert (one["shards"], one["jobs"], one["running"], one["problem"]) == (["main"], 3, False, "")
    heading, row = run(site, "list").splitlines()
    assert heading.split()[:4] == ["FILE", "PROCESS", "SHARDS", "JOBS"]
    assert row.endswith("its process has ended")
    left = json.loads(run(site, "replay", "--json", status=1, REDIS_URL=DOWN))
    assert left == {"pushed": 0, "found": 0, "left": 3, "unanswered": ["main"]}
    assert run(site, "replay") == "3 jobs pushed, 0 were in Redis already, 0 are left.\n"
    assert numbers() == [0, 1, 2]
    (folder / "x.pushes").write_bytes(b"no header\n")
    assert "no readable header" in run(site, "list", status=1)
    run(site, "replay")
    assert [path.name for path in set_aside_files(folder)] == ["x.pushes.damaged"]


def test_killed_producer_loses_no_push_that_returned(site, folder, numbers):
    dead = site.start("-c", PRODUCER, "0", "100000", REDIS_URL=DOWN)
    until(lambda: len(returned(dead)) > 20)
    assert dead.end(signal.SIGKILL) == -signal.SIGKILL
    # The next start of a producer with this folder replays them, and pushes a job of its own.
    alive = site.start("-c", PRODUCER + "import time; time.sleep(60)", "-1", "1")
    until(lambda: not push_files(folder))
    alive.kill()
    found = [number for number in numbers() if number >= 0]
    assert found[: len(returned(dead))] == returned(dead)
    assert len(found) <= len(returned(dead)) + 1


def test_killed_replay_goes_on_without_a_second_copy(site, folder, numbers):
    assert site.run("-c", PRODUCER, "0", "300", REDIS_URL=DOWN).returncode == 0
    dying = site.start(COMMAND, "replay")
    until(lambda: len(numbers()) > 20)
    dying.kill()
    run(site, "replay")
    assert push_files(folder) == []
    assert numbers() == list(range(300))


def test_two_producers_on_one_folder_replay_each_file_once(site, folder, numbers):
    for first in (0, 100):
        assert site.run("-c", PRODUCER, str(first), "100", REDIS_URL=DOWN).returncode == 0
    both = [site.start(COMMAND, "replay"), site.start(COMMAND, "replay")]
    for one in both:
        one.wait()
    assert push_files(folder) == []
    assert Counter(numbers()) == Counter(range(200))


def test_worker_replays_pushes_of_an_ended_producer(site, folder, numbers):
    assert site.run("-c", PRODUCER, "0", "3", REDIS_URL=DOWN).returncode == 0
    worker = site.worker("-q", "other").ready()
    assert worker.line(event_name="push.replayed")["jobs"] == 3
    assert worker.find(event_name="push.file_taken_over")
    assert push_files(folder) == []
    assert numbers() == [0, 1, 2]


def test_folder_that_others_may_write_is_refused(site, folder):
    folder.mkdir()
    folder.chmod(0o777)
    for command in ("list", "replay"):
        done = site.run(COMMAND, command, role="producer")
        assert (done.returncode, "chmod go-w" in done.stderr) == (1, True), done.stderr
