"""Test jobs stats, queues, clear, pause-queue, list queue:NAME, processes, quiet, stop and ping, with real processes."""

import json
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from framework.cli import jobs_stats
from framework.cli.main import main
from framework.process.identity import operator_name
from framework.wire import keys
from tests.admin.test_process_list import RUBY, write_record
from tests.harness import ROOT, encoded, enqueue, until
from tests.tables import each_row

COMMAND = str(ROOT / "scripts" / "jobs")


@pytest.fixture
def jobs(site):
    """Return a function that runs a command of the group and returns its output, parsed if ``--json`` is given."""

    def run(*words, status=0):
        done = site.run(COMMAND, *words)
        assert done.returncode == status, done.stdout + done.stderr
        return json.loads(done.stdout) if "--json" in words else done.stdout + done.stderr

    return run


def rows(text):
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()[1:]]


def push(redis, count, queue="mailers"):
    for number in range(count):
        enqueue(redis, "Mail", jid=f"j{number}", args=[number], queue=queue)


def test_stats_are_shown_by_shard_and_by_day(jobs, redis):
    push(redis, 2)
    redis.set(keys.STAT_PROCESSED, 1_234)
    redis.set(f"{keys.STAT_PROCESSED}:{datetime.now(UTC).date()}", 1_234)
    assert rows(jobs("stats")) == [["main", "1,234", "0", "2", *["0"] * 7]]
    found = jobs("stats", "--json")
    assert (found["total"], found["unanswered"]) == (found["shards"]["main"], [])
    assert sum(day["processed"] for day in jobs("stats", "--days", "2", "--json")["days"]) == 1_234


def test_stats_watch_shows_the_runs_per_second_until_ctrl_c(site, redis, monkeypatch):
    redis.set(keys.STAT_PROCESSED, 10)

    class Clock:
        """A clock of two seconds per look, in which ten jobs run, and Ctrl-C after the second view."""

        now, views = 0.0, 0

        def monotonic(self):
            self.now += 2
            return self.now

        def sleep(self, _period_s):
            redis.incrby(keys.STAT_PROCESSED, 10)
            self.views += 1
            if self.views == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(jobs_stats, "time", Clock())
    for name, value in site.environment("operator").items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(site.folder)
    ended = CliRunner().invoke(main, ["jobs", "stats", "--watch"])
    assert ended.exit_code == 0, ended.output
    first, second = [line for line in ended.stdout.splitlines() if line.startswith("main")]
    assert first.split()[:2] == ["main", "10"]
    assert (second.split()[1], second.split()[-1]) == ("20", "5.0")


def test_queues_show_those_with_jobs_pauses_or_processes(jobs, redis):
    push(redis, 2)
    redis.sadd(keys.PAUSED, "idle")
    write_record(redis, queues=["mailers", "served"])
    assert [(row[1], row[2], row[-2], row[-1]) for row in rows(jobs("queues"))] == [
        ("idle", "0", "yes", "0"),
        ("mailers", "2", "-", "1"),
        ("served", "0", "-", "1"),
    ]
    (shown,) = jobs("queues", "mailers", "--json")["queues"]
    assert (shown["size"], shown["paused"], shown["processes"]) == (2, False, 1)
    assert "no queue is named 'mailer' (did you mean 'mailers'?)" in jobs("queues", "mailer", status=1)


def test_pause_queue_and_unpause_queue(jobs, redis):
    push(redis, 1)
    assert jobs("pause-queue", "mailers") == "main: mailers is paused\n"
    assert jobs("pause-queue", "mailers") == "main: mailers was paused before\n"
    assert redis.smembers(keys.PAUSED) == {b"mailers"}
    assert jobs("unpause-queue", "mailers") == "main: mailers is no longer paused\n"
    assert jobs("unpause-queue", "mailers") == "main: mailers was not paused\n"
    assert jobs("pause-queue", "mailers", "--for", "10m") == "main: mailers is paused, for 10 min from now on\n"
    (shown,) = jobs("paused", "--json")["paused"]
    assert (shown["name"], 590 < shown["until"] - redis.time()[0] <= 601) == ("mailers", True)


def test_pauses_name_the_operator_and_the_reason(jobs, redis):
    push(redis, 1)
    jobs("pause-queue", "mailers", "--reason", "the relay is down")
    (shown,) = jobs("paused", "--json")["paused"]
    assert (shown["by"], shown["reason"]) == (operator_name(), "the relay is down")
    assert f"the queue mailers is paused by {operator_name()}: the relay is down" in jobs("explain", "j0")
    jobs("unpause-queue", "mailers")
    # Another program paused it: the operator of the pause before has nothing to do with it.
    redis.sadd(keys.PAUSED, "mailers")
    redis.rpush(keys.PAUSE_LOG, "no record")
    (shown,) = jobs("paused", "--json")["paused"]
    assert (shown["by"], shown["reason"]) == ("", "")
    history = [one for one in jobs("paused", "--history", "--json")["history"] if one["shard"] == "main"]
    assert [(one["action"], one["name"], one["by"], one["reason"]) for one in history] == [
        ("unpause-queue", "mailers", operator_name(), ""),
        ("pause-queue", "mailers", operator_name(), "the relay is down"),
    ]


@each_row("verb", ["pause-queue", "unpause-queue", "clear"])
def test_verb_of_an_unknown_queue_names_the_nearest(jobs, redis, verb):
    push(redis, 1)
    assert "did you mean 'mailers'" in jobs(verb, "mailer", status=1)


def test_clear_asks_and_drops_the_jobs(jobs, redis):
    push(redis, 120)
    assert "Drop the jobs of mailers (120 on main)? They never run." in jobs("clear", "mailers", status=2)
    assert redis.llen(keys.queue("mailers")) == 120
    assert jobs("clear", "mailers", "--yes") == "main: 120 jobs of mailers are dropped\n"
    assert redis.exists(keys.queue("mailers"), keys.QUEUES) == 0
    push(redis, 1)
    assert jobs("clear", "mailers", "--yes", "--json") == {
        "queue": "mailers",
        "dry_run": False,
        "dropped": {"main": 1},
        "unanswered": [],
    }


def test_clear_drops_the_selected_jobs(jobs, redis):
    push(redis, 5)
    enqueue(redis, "Other", queue="mailers")
    assert "Drop the jobs of mailers with class=Other (1 on main)? They never run." in jobs(
        "clear", "mailers", "--class", "Other", status=2
    )
    assert jobs("clear", "mailers", "--not-class", "Other", "--count", "3", "--dry-run") == (
        "main: 3 jobs of mailers would be dropped\n"
    )
    assert redis.llen(keys.queue("mailers")) == 6
    assert (
        jobs("clear", "mailers", "--not-class", "Other", "--count", "3", "--yes")
        == "main: 3 jobs of mailers are dropped\n"
    )
    assert redis.llen(keys.queue("mailers")) == 3
    refused = jobs("clear", "mailers", "--class", "Othr", "--yes", status=1)
    assert "no job in mailers has the class 'Othr' (did you mean 'Other'?)" in refused


def test_list_of_a_queue_shows_the_next_jobs_first(jobs, redis):
    push(redis, 3)
    enqueue(redis, "Other", jid="other", queue="mailers")
    redis.lpush(keys.queue("mailers"), b"\xff\n")
    shown = jobs("list", "queue:mailers")
    assert [row[1] for row in rows(shown)] == ["j0", "j1", "j2", "other", "-"]
    assert "(malformed)" in shown
    assert "and 3 more: --most shows more" in jobs("list", "queue:mailers", "--most", "2")
    found = jobs("list", "queue:mailers", "--class", "Mail", "--most", "2", "--json")
    assert (found["total"], [job["jid"] for job in found["jobs"]]) == (3, ["j0", "j1"])
    assert "no job in mailers has the class 'Mial' (did you mean 'Mail'?)" in jobs(
        "list", "queue:mailers", "--class", "Mial", status=1
    )
    assert "did you mean 'mailers'" in jobs("list", "queue:mailer", status=1)


def test_quiet_and_stop_choose_processes_by_name(jobs, redis):
    other = "other:8:aabbccddeeff"
    assert "No process is running." in jobs("stop", "--all")
    write_record(redis)
    write_record(redis, other)
    assert jobs("quiet", "host:7") == f"main: {RUBY} is asked to become quiet\n"
    assert redis.lrange(keys.signals(RUBY), 0, -1) == [b"TSTP"]
    assert "Stop 2 processes?" in jobs("stop", "--all", status=2)
    assert redis.exists(keys.signals(other)) == 0
    jobs("stop", "--all", "--yes")
    jobs("dump", other)
    assert redis.lrange(keys.signals(other), 0, -1) == [b"TTIN", b"TERM"]
    assert f"no running process is named 'host:7:aabbccddeefg' (did you mean '{RUBY}'?)" in jobs(
        "stop", "host:7:aabbccddeefg", status=1
    )
    assert "Give each PROCESS, or --all" in jobs("quiet", status=2)


def test_embedded_process_takes_no_signal(jobs, redis):
    write_record(redis, embedded=True)
    assert "takes no signals" in jobs("quiet", RUBY, status=1)
    assert redis.exists(keys.signals(RUBY)) == 0


def test_ping_tells_by_its_status_whether_processes_run(jobs, redis):
    assert "No process is running." in jobs("ping", status=1)
    write_record(redis)
    assert rows(jobs("ping"))[0][:4] == ["main", "1", "0", "2"]
    assert jobs("ping", "host", "--json")["running"] == 1
    assert "no running process is named 'hots'" in jobs("ping", "hots", status=1)


def test_processes_show_themselves_and_their_jobs(jobs, redis):
    write_record(redis)
    entry = {"queue": "mail", "payload": encoded("Mail", jid="j1").decode(), "run_at": 1_700_000_000}
    redis.hset(keys.work(RUBY)[0], "t1", json.dumps(entry))
    assert rows(jobs("processes"))[0][:6] == ["main", RUBY, "shop", "running", "2/5", "19 MB"]
    assert rows(jobs("processes", "--work"))[0][:4] == ["main", "j1", "Mail", "mail"]
    assert jobs("processes", "--work", "--json")["work"][0]["args"] == json.loads(entry["payload"])["args"]


def test_real_process_is_quieted_and_stopped(jobs, site):
    process = site.hurried_worker("-q", "default").ready()
    jobs("quiet", process.identity)
    until(lambda: jobs("processes", "--json")["processes"][0]["is_quiet"], "the process is quiet")
    jobs("stop", "--all")
    assert process.wait() == 0
    jobs("ping", status=1)
