"""Test scripts/migrate_jobs: output, warnings and statuses, on real servers and, where needed, in real processes."""

import json
import os
import pty
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from framework.cli import migrate_jobs as command
from framework.declare import registry
from framework.wire import keys
from tests.harness import ROOT, encoded, enqueue, register_process, until

COMMAND = str(ROOT / "scripts" / "migrate_jobs")

JOBS = """
from framework import ApplicationWorker

class ReportWorker(ApplicationWorker):
    feature_category = "not_owned"
    tags = ("heavy",)
    aliases = ("OldReportWorker",)

    def perform(self, *numbers: int) -> None: ...

class MailWorker(ApplicationWorker):
    feature_category = "not_owned"

    def perform(self) -> None: ...

class AwayWorker(ApplicationWorker):
    feature_category = "not_owned"
    shard = "second"

    def perform(self) -> None: ...
"""


@pytest.fixture
def office(site, second_redis_url):
    """Create a site with changed rules; jobs that were pushed under the former rules wait."""
    site.write("redis.yml", {"shards": {"main": {"url": site.url}, "second": {"url": second_redis_url}}})
    site.write("routing.yml", {"routing_rules": [["tags=heavy", "reports"], ["*", "default"]]})
    site.write("application.yml", {"retired_workers": {"FaxWorker": "no office has one"}})
    (site.folder / "office.py").write_text(JOBS)
    return site


@pytest.fixture
def migrate(office):
    return lambda *options, **env: office.run(COMMAND, *options, "-r", "office", **env)


@pytest.fixture
def invoke_migrate(office, monkeypatch):
    """Return a function that runs the command in this process, without the cost of a start."""
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(office.folder / "config"))
    monkeypatch.syspath_prepend(str(office.folder))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with registry.isolated():
        yield lambda *options: CliRunner().invoke(command.migrate_jobs, [*options, "-r", "office"])
    for number, handler in handlers.items():
        signal.signal(number, handler)


def unserved(queue, shard="main"):
    remedy = f"start one with `scripts/worker -r office --shard {shard} -q {queue}`"
    return f"no running process of {shard} serves the queue {queue}: {remedy}\n"


def fill(redis):
    enqueue(redis, "ReportWorker", jid="a")
    enqueue(redis, "MailWorker", jid="b")
    enqueue(redis, "OldReportWorker", jid="c", queue="old_reports", args=["secret"])
    for number in range(5):
        enqueue(redis, "Ruby::Job", jid=f"r{number}", args=["secret"])
    enqueue(redis, "FaxWorker", jid="f")
    enqueue(redis, "ReportWorker", jid="u", queue="urgent", aw_queue="urgent")
    enqueue(redis, "AwayWorker", jid="w")
    redis.lpush("queue:default", b"\xff secret")


EXPECTED = """\
SHARD   FROM         TO       JOBS
main    default      reports  1
main    old_reports  reports  1
second  default      reports  1

Left in place:
SHARD  QUEUE    CLASS         JOBS  WHY            IDS
main   default  -             1     unreadable
main   default  AwayWorker    1     other shard    w
main   default  FaxWorker     1     retired class  f
main   default  Ruby::Job     5     unknown class  {ids}
main   urgent   ReportWorker  1     chosen queue   u

unreadable: the payload is not a job's JSON
other shard: the rules name another shard, and this command moves jobs within one shard
retired class: the class is in retired_workers: the process that fetches the job drops it
unknown class: no worker of this name is registered here; --class NAME with --to still moves its jobs
chosen queue: the push chose this queue (set(queue=...), retry_queue)

not scanned: queue:none of main has no jobs
queued: 3 jobs {verb}, 9 left in place
"""


def test_migrate_follow_rules_lists_skipped_without_arguments(migrate, redis, second_redis):
    fill(redis)
    redis.sadd(keys.QUEUES, "none")
    redis.set("queue:none", "no list")
    enqueue(second_redis, "ReportWorker", jid="s", aw_shard="second")
    before = {key: redis.dump(key) for key in redis.keys("*")}
    shown = migrate("queued", "--follow-rules", "--dry-run")
    assert shown.stdout == EXPECTED.format(
        verb="would move", ids="r4, r3, r2"
    )  # the command reads the youngest job first
    assert {key: redis.dump(key) for key in redis.keys("*")} == before
    done = migrate("queued", "--follow-rules")
    assert (done.returncode, done.stdout) == (0, EXPECTED.format(verb="moved", ids="r4, r3, r2"))
    assert done.stderr == shown.stderr == unserved("reports") + unserved("reports", "second")
    assert sorted(json.loads(data)["jid"] for data in redis.lrange("queue:reports", 0, -1)) == ["a", "c"]
    assert redis.llen("queue:default") == 9
    assert second_redis.lrange("queue:reports", 0, -1) == [
        encoded("ReportWorker", jid="s", aw_shard="second", queue="reports")
    ]
    again = migrate("queued", "--follow-rules", "--json")
    assert (again.returncode, again.stderr) == (0, "")
    report = json.loads(again.stdout)
    assert (report["jobs"], report["dry_run"]) == ("queued", False)
    assert [report["shards"][name]["moved"] for name in ("main", "second")] == [[], []]
    assert report["shards"]["main"]["not_scanned"] == ["queue:none"]
    found = {(one["class"], one["reason"]): one["jobs"] for one in report["shards"]["main"]["left"]}
    assert found["Ruby::Job", "unknown class"] == 5
    assert found["", "unreadable"] == 1


@pytest.mark.parametrize(("set_name", "key"), [("scheduled", "schedule"), ("retry", "retry"), ("dead", "dead")])
def test_migrate_set_changes_the_queue_of_its_jobs(invoke_migrate, redis, set_name, key):
    score = 1_900_000_000.123456
    redis.zadd(key, {encoded("ReportWorker", queue="old"): score, encoded("Ruby::Job", queue="old"): score, b"\xff": 1})
    done = invoke_migrate(set_name, "--follow-rules", "--shard", "main")
    assert done.exit_code == 0
    assert done.stdout.endswith(f"{set_name}: 1 job moved, 2 left in place\n")
    assert redis.zscore(key, encoded("ReportWorker", queue="reports")) == score
    assert redis.zcard(key) == 3
    redis.delete(key)
    redis.set(key, "no set")
    done = invoke_migrate(set_name, "--follow-rules")
    assert (done.exit_code, done.stdout) == (
        0,
        f"not scanned: {key} of main has no jobs\n{set_name}: 0 jobs moved, 0 left in place\n",
    )


def test_migrate_mapping_by_queue_and_class_moves_jobs(invoke_migrate, redis):
    fill(redis)
    done = invoke_migrate("queued", "--from", "urgent", "--to", "reports")
    assert "main   urgent  reports  1" in done.stdout
    assert json.loads(redis.lindex("queue:reports", 0))["aw_queue"] == "reports"
    done = invoke_migrate("queued", "--from", "old_report", "--to", "reports")
    assert done.exit_code == 0  # as in a second run, when Redis has removed the empty queue
    assert done.stderr == "no queue is named 'old_report' there (did you mean 'old_reports'?)\n"
    done = invoke_migrate("queued", "--class", "Ruby::Job", "--to", "ruby", "--limit", "2")
    assert "main   default  ruby  2" in done.stdout
    assert done.stderr.splitlines()[0] == "there is no worker 'Ruby::Job'; the command searched for jobs of this name"
    assert [json.loads(data)["jid"] for data in redis.lrange("queue:ruby", 0, -1)] == ["r1", "r0"]
    assert redis.llen("queue:default") == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "Give the target of the jobs"),
        (["--follow-rules", "--to", "x"], "Give the target of the jobs"),
        (["--to", "x"], "Give the jobs to move"),
        (["--to", "a b", "--from", "c"], "a queue name is made of"),
        (["--to", "x", "--from", "x"], "the same queue 'x'"),
        (["--follow-rules", "--shard", "mian"], "no shard is named 'mian' (did you mean 'main'?)"),
        (
            ["--follow-rules", "--class", "ReportWroker"],
            "there is no worker 'ReportWroker' (did you mean 'ReportWorker'?)",
        ),
        (["--follow-rules", "--limit", "0"], "--limit"),
    ],
)
def test_migrate_wrong_usage_moves_no_job(invoke_migrate, redis, options, message):
    enqueue(redis, "ReportWorker")
    done = invoke_migrate("queued", *options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert redis.llen("queue:default") == 1
    done = invoke_migrate("queud", "--follow-rules")
    assert (done.exit_code, "did you mean 'queued'?" in done.stderr) == (2, True)


def test_migrate_invalid_configuration_status_78(office, invoke_migrate):
    office.write("routing.yml", {"routing_rules": [["tags~heavy", "reports"]]})
    assert invoke_migrate("queued", "--follow-rules").exit_code == 78


def test_migrate_unreachable_shard_status_75_others_done(office, invoke_migrate, redis):
    office.write("redis.yml", {"shards": {"main": {"url": office.url}, "second": {"url": "redis://127.0.0.1:1/0"}}})
    enqueue(redis, "ReportWorker")
    done = invoke_migrate("queued", "--follow-rules")
    assert done.exit_code == 75
    assert "shard 'second' is unavailable: redis://127.0.0.1:1/0: " in done.stderr
    assert "Run the command again when Redis answers" in done.stderr
    assert redis.llen("queue:reports") == 1


def test_migrate_jobs_left_behind_status_1(invoke_migrate, redis):
    enqueue(redis, "ReportWorker")
    redis.set("queue:reports", "no list")
    done = invoke_migrate("queued", "--follow-rules")
    assert done.exit_code == 1
    assert "wrong type: the key of the target queue is not a list" in done.stdout
    assert redis.llen("queue:default") == 1


def test_migrate_to_unserved_or_paused_queue_is_reported(invoke_migrate, redis):
    enqueue(redis, "ReportWorker")
    redis.sadd(keys.PAUSED, "default")
    register_process(redis, {"queues": ["reports"]})
    done = invoke_migrate("queued", "--from", "default", "--to", "reprots", "--dry-run", "--shard", "main")
    assert "serves the queue reprots (did you mean 'reports'?): start one with" in done.stderr
    done = invoke_migrate("queued", "--follow-rules")
    assert done.stderr == "the queue default of main is paused, and reports is not: its jobs run there\n"


def test_migrate_after_kill_finds_the_jobs_set_aside(invoke_migrate, redis):
    """The set-aside list is found even if no list of queues has its name."""
    holder = keys.migration_identity("forgotten")
    redis.lpush(keys.working(holder), encoded("ReportWorker", queue="forgotten"))
    redis.zadd(keys.REGISTRY, {holder: redis.time()[0]})
    assert "main   forgotten  reports  1" in invoke_migrate("queued", "--follow-rules", "--dry-run").stdout
    assert invoke_migrate("queued", "--follow-rules").exit_code == 0
    assert redis.lrange("queue:reports", 0, -1) == [encoded("ReportWorker", queue="reports")]
    assert not redis.exists(keys.REGISTRY, keys.working(holder), keys.lease(holder))


WAITING = """
import time
from framework.cli.migrate_jobs import migrate_jobs
from framework.migrate.queues import QueueMigrator

step = QueueMigrator._move_page

def until_stopped(queues, queue, page, verdicts):
    while page and queues._report.moved and not queues._quota.stopped:
        time.sleep(0.01)
    return step(queues, queue, page, verdicts)

QueueMigrator._move_page = until_stopped
migrate_jobs()
"""
"""The command, which after its first page waits for the signal that stops it."""


def test_migrate_in_a_terminal_shows_a_bar_ctrl_c_restores(office, redis):
    jobs = [encoded("ReportWorker" if number % 2 else "MailWorker", args=[number]) for number in range(1_000)]
    redis.sadd(keys.QUEUES, "default")
    redis.lpush("queue:default", *jobs)
    control, terminal = pty.openpty()
    options = ["-c", WAITING, "queued", "--follow-rules", "--shard", "main", "-r", "office"]
    with subprocess.Popen(
        [sys.executable, *options],
        cwd=office.folder,
        env=office.env,
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
    ) as running:
        os.close(terminal)
        aside = keys.working(keys.migration_identity("default"))
        until(lambda: redis.llen("queue:reports"), "jobs on their way")
        assert redis.exists(aside)
        running.send_signal(signal.SIGINT)
        message, _ = running.communicate(timeout=30)
    shown = b""
    while part := read(control):
        shown += part
    os.close(control)
    assert running.returncode == 1
    assert b"/1000" in shown
    assert b"a second" in shown
    assert b"Stopped: the remaining jobs stay in their queues." in shown
    moved = {data.replace(b'"queue":"reports"', b'"queue":"default"') for data in redis.lrange("queue:reports", 0, -1)}
    assert f"queued: {len(moved):,} jobs moved" in message
    assert 0 < len(moved) < 500
    assert redis.lrange("queue:default", 0, -1)[::-1] == [data for data in jobs if data not in moved]
    assert not redis.exists(aside, keys.REGISTRY)


def read(terminal):
    try:
        return os.read(terminal, 65_536)
    except OSError:  # the process has closed its side of the terminal
        return b""


def test_migrate_limited_jobs_on_another_shard_are_reported(office, redis, second_redis):
    """Rules now route a limited class to the second shard. Its jobs stay: their slots and locks are on the first shard."""
    limited = JOBS.replace('tags = ("heavy",)', 'tags = ("heavy",)\n    concurrency_limit = 3\n    idempotent = True')
    (office.folder / "limited_office.py").write_text(limited)
    rules = [["tags=heavy", "reports", "second"], ["*", "default"]]
    office.write("routing.yml", {"routing_rules": rules})
    for jid in ("a", "b"):
        enqueue(redis, "ReportWorker", queue="reports", jid=jid)
    enqueue(redis, "OldReportWorker", queue="reports", jid="c")
    enqueue(redis, "AwayWorker", queue="reports", jid="free")
    done = office.run(COMMAND, "queued", "--follow-rules", "--json", "-r", "limited_office")
    assert done.returncode == 0
    report = json.loads(done.stdout)["shards"]
    holds = ["concurrency_limit = 3", "idempotent"]
    assert report["main"]["per_shard"] == [{"class": "ReportWorker", "holds": holds, "shards": ["second", "main"]}]
    assert report["second"]["per_shard"] == []
    (warning,) = [line for line in done.stderr.splitlines() if "by itself" in line]
    assert warning.startswith(
        "ReportWorker (concurrency_limit = 3 and idempotent) has jobs on shards second and main "
        "(second: its route; main: 3 left in place)"
    )
    redis.delete("queue:reports")
    redis.zadd(keys.SCHEDULE, {encoded("ReportWorker", jid="later"): 2_000_000_000})
    done = office.run(COMMAND, "scheduled", "--follow-rules", "--dry-run", "-r", "limited_office")
    assert "main: 1 left in place" in done.stderr
