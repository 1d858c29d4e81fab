"""Test scripts/retired: the reason, the counts, the remaining jobs and the advice for each retired class."""

import json

import pytest
from click.testing import CliRunner

from framework.cli import retired as command
from framework.terminal import shards
from framework.wire import keys
from tests.harness import ROOT, encoded, enqueue, register_process

COMMAND = str(ROOT / "scripts" / "retired")


@pytest.fixture
def run_retired(site):
    """Return a function that runs the command with these retired workers."""

    def run(*names, retired=None, **env):
        return site.run(COMMAND, *names, FRAMEWORK_RETIRED_WORKERS=json.dumps(retired or {}), **env)

    return run


def unserved(shard, queue):
    remedy = f"start one with `scripts/worker --shard {shard} -q {queue}`"
    return f"  no running process of {shard} serves the queue {queue}: {remedy}\n"


def test_retired_empty_setting_is_reported(run_retired):
    done = run_retired()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "No class is retired: the setting retired_workers (config/application.yml) is empty.\n"


def test_retired_shows_counts_and_remaining_jobs_per_shard(site, run_retired, redis, second_redis, second_redis_url):
    site.write("redis.yml", {"shards": {"main": {"url": site.url}, "second": {"url": second_redis_url}}})
    redis.hset(keys.RETIRED, mapping={"Old::Worker": 12, "GoneWorker": 3, "AncientWorker": 4})
    second_redis.hset(keys.RETIRED, "Old::Worker", 1)
    enqueue(redis, "Old::Worker", queue="reports")
    redis.zadd(keys.RETRY, {encoded("Old::Worker", jid="r"): 1})
    enqueue(second_redis, "Old::Worker", queue="reports")
    enqueue(second_redis, "AncientWorker")
    done = run_retired(retired={"Old::Worker": "merged into ReportWorker in 4.2", "GoneWorker": "no service reads it"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "Old::Worker: merged into ReportWorker in 4.2\n"
        "  main    dropped 12, waiting 2: retry 1, queue reports 1\n"
        "  second  dropped 1, waiting 1: queue reports 1\n"
        f"{unserved('main', 'reports')}{unserved('second', 'reports')}"
        "  3 waiting\n"
        "GoneWorker: no service reads it\n"
        "  main    dropped 3, waiting 0\n"
        "  second  dropped 0, waiting 0\n"
        "  nothing left: remove the entry\n"
        "AncientWorker: no longer in retired_workers\n"
        "  main    dropped 4, waiting 0\n"
        "  second  dropped 0, waiting 1: queue default 1\n"
        f"{unserved('second', 'default')}"
        "  1 waiting: without the class or an entry they are quarantined\n"
    )
    assert redis.llen("queue:reports") == 1  # the command changes no queue


def test_retired_unserved_queue_names_the_command(run_retired, redis):
    """Without a process for the queue its jobs wait forever, so the command says so."""
    for queue in ("kept", "left"):
        enqueue(redis, "Old", queue=queue)
    register_process(redis, {"queues": ["kept"]})
    assert run_retired(retired={"Old": "x"}).stdout == (
        f"Old: x\n  main  dropped 0, waiting 2: queue kept 1, queue left 1\n{unserved('main', 'left')}  2 waiting\n"
    )


def test_retired_one_class_shows_only_that_class(site, run_retired):
    retired = {"Old::Worker": "merged", "GoneWorker": "x"}
    done = run_retired("GoneWorker", retired=retired)
    assert done.stdout.splitlines()[0] == "GoneWorker: x"
    assert "Old::Worker" not in done.stdout
    again = site.run("-m", "framework", "retired", "GoneWorker", FRAMEWORK_RETIRED_WORKERS=json.dumps(retired))
    assert (again.returncode, again.stdout) == (0, done.stdout)


@pytest.mark.parametrize("name", ["GoenWorker", "", "no name at all"])
def test_retired_unknown_name_suggests_the_nearest(run_retired, name):
    done = run_retired(name, "Absent", retired={"GoneWorker": "x"})
    assert (done.returncode, done.stdout) == (2, "")
    assert f"no class {name!r} is retired" in done.stderr
    assert ("did you mean 'GoneWorker'?" in done.stderr) == (name == "GoenWorker")
    assert "no class 'Absent' is retired; retired: GoneWorker" in done.stderr


def test_retired_unreachable_shard_is_reported(site, run_retired, redis):
    site.write("redis.yml", {"shards": {"away": {"url": "redis://127.0.0.1:1/0"}, "main": {"url": site.url}}})
    enqueue(redis, "Old")
    done = run_retired(retired={"Old": "x", "Gone": "y"})
    assert done.returncode == 1
    assert "shard 'away' is unavailable: redis://127.0.0.1:1/0: " in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == (
        f"Old: x\n  away  did not answer\n  main  dropped 0, waiting 1: queue default 1\n{unserved('main', 'default')}  1 waiting\n"
        "Gone: y\n  away  did not answer\n  main  dropped 0, waiting 0\n  nothing left on the shards that answered\n"
    )


def test_retired_wrong_type_of_counts_is_reported(run_retired, redis):
    redis.set(keys.RETIRED, "x")
    done = run_retired(retired={"Old": "x"})
    assert done.returncode == 1
    assert "WRONGTYPE" in done.stderr
    assert "Traceback" not in done.stderr


def test_retired_invalid_configuration_status_78(run_retired):
    done = run_retired(retired={"old worker": "x"})
    assert done.returncode == 78
    assert "FRAMEWORK_RETIRED_WORKERS.old worker" in done.stderr


def test_retired_reports_progress_on_stderr(site, redis, monkeypatch):
    for number in range(3):
        enqueue(redis, "Old", queue=f"q{number}")
    monkeypatch.setattr(shards, "_PROGRESS_INTERVAL_S", 0.0)
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(site.folder / "config"))
    monkeypatch.setenv("FRAMEWORK_RETIRED_WORKERS", '{"Old": "x"}')
    done = CliRunner().invoke(command.retired, [])
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [
        f"main: {number + 1} jobs scanned, now in queue q{number}" for number in range(3)
    ]
    assert done.stdout.splitlines()[1] == "  main  dropped 0, waiting 3: queue q0 1, queue q1 1, queue q2 1"
