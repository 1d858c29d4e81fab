"""Test scripts/jobs limits, locks, held, paused, deferred, counters: show each policy and release its jobs."""

import json
import os
import re
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner

from framework.admin.held_set import purge
from framework.admin.job_record import JobFilter, JobQuota
from framework.cli.main import jobs as command
from framework.features.deduplication.admin import delete_lock, find_lock
from framework.features.flags.flag import Flag, drop_flag, pause_flag, run_flag
from framework.features.flags.redis_flags import set_flag
from framework.settings.model import SizeLimitSettings
from framework.store.script import TAKE_SLOT
from framework.wire import keys
from tests.harness import ROOT, encoded, enqueue, hold, opened, until

COMMAND = str(ROOT / "scripts" / "jobs")
OWNER = "host:7:000000000abc"
REPORT = "Office::ReportWorker"


@pytest.fixture
def jobs(site):
    """Return a function that runs a command of the group and returns its output, parsed if ``--json`` is given."""

    def run(*words, status=0):
        done = site.run(COMMAND, *words)
        assert done.returncode == status, done.stdout + done.stderr
        return json.loads(done.stdout) if "--json" in words else done.stdout

    return run


def take_slot(redis, jid, limit, base=REPORT, scope="", share=0, **fields):
    """Request a slot as the policy of a limit does; return whether the job has one."""
    unit = hold(redis, encoded(fields.pop("name", base), jid=jid, **fields), OWNER)
    arguments = [unit.data, f"{OWNER} {jid}", jid, "default", limit, 180, "", scope, share, "wait", ""]
    return TAKE_SLOT(redis, [keys.working(OWNER), keys.limit(base)], arguments)[0] == 1


def rows(text):
    """Return the cells of a table without its headings."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()[1:]]


def defer_jobs(redis, count, worker=REPORT, by="feature_flag", after=600):
    now = time.time()
    fields = {"deferred": True, "deferred_by": by, "deferred_count": 3, "created_at": now - 3_600}
    for number in range(count):
        redis.zadd(keys.SCHEDULE, {encoded(worker, jid=f"put-off-{number}", **fields): now + after + number})


def test_limits_show_slots_holders_and_waiting_jobs(jobs, redis):
    assert jobs("limits") == "No limit is known: no job with a limit has run.\n"
    assert [take_slot(redis, jid, 2) for jid in ("a", "b", "c", "d")] == [True, True, False, False]
    assert take_slot(redis, "e", 0, base="Office::FreeWorker")
    shown = rows(jobs("limits"))
    assert [row[:4] + row[4:5] for row in shown] == [
        ["main", REPORT, "2/2", "application", "2"],
        ["main", "Office::FreeWorker", "1, no limit", "application", "0"],
    ]
    report = jobs("limits", REPORT, "--json")
    assert [(slot["identity"], slot["jid"], slot["left_s"] > 170) for slot in report["slots"]] == [
        (OWNER, "a", True),
        (OWNER, "b", True),
    ]
    handed = f"{OWNER} b"
    assert redis.zrem(keys.limit(REPORT) + ":running", handed)
    jobs("limits", "sweep", REPORT)
    (queued,) = jobs("explain", "c", "--json", "-r", "jobs")["found"]
    assert queued["holds"][0].startswith(f"a slot of {REPORT} for ")
    (limit,) = report["limits"]
    assert (limit["limit"], limit["running"], limit["waiting"], limit["set_by"]) == (2, 2, 2, "application")


def test_limits_set_assigns_free_slots_at_once(jobs, redis):
    for jid in ("a", "b", "c"):
        take_slot(redis, jid, 1)
    printed = jobs("limits", "set", REPORT, "2", "--reason", "month's end", "--for", "1h30m")
    assert (
        printed
        == f"main: {REPORT}: at most 2 at a time, for 1 h 30 min; 1 waiting job handed over, 0 slots freed that were not renewed\n"
    )
    assert redis.lrange("queue:default", 0, -1)[0].startswith(encoded(REPORT, jid="b")[:-1])
    shown = jobs("limits", REPORT)
    assert "2/2" in shown
    assert "month's end; the application sets 1" in shown
    assert "(handed over, not started)" in shown
    assert jobs("limits", "set", REPORT, "-1", "--reason", "stop", "--for", "1m").startswith(
        f"main: {REPORT}: no job runs, "
    )
    assert not take_slot(redis, "f", 100)
    assert jobs("limits", "clear", REPORT).startswith(f"main: {REPORT}: the application's limit holds")
    assert jobs("limits", "clear", REPORT).startswith(f"main: {REPORT}: nothing was set; 0 ")
    redis.hset(
        keys.limit(REPORT), mapping={"override": 7, "override_until": time.time() - 1}
    )  # the override has expired
    assert jobs("limits", REPORT, "--json")["limits"][0]["set_by"] == "application"


def test_limits_sweep_frees_expired_slots_within_the_limit(jobs, redis):
    for jid in ("a", "b", "c", "d"):
        take_slot(redis, jid, 2)
    redis.zadd(keys.limit(REPORT) + ":running", {f"{OWNER} a": time.time() - 1})
    # No process sends heartbeats, so this may be an outage.
    assert jobs("limits", "sweep", "--json")["limits"][0]["freed"] == 0
    redis.set(keys.STEADY_SINCE, time.time() - 60)
    assert jobs("limits", "sweep") == f"main: {REPORT}: 1 waiting job handed over, 1 slot freed that was not renewed\n"
    (done,) = jobs("limits", "sweep", REPORT, "--json")["limits"]
    assert done == {"shard": "main", "name": REPORT, "handed_over": 0, "freed": 0}
    assert redis.zcard(keys.limit(REPORT) + ":running") == 2


def test_locks_delete_only_the_lock_that_was_shown(site, jobs, redis):
    assert jobs("locks") == "No lock is held.\n"
    now = time.time()
    for number, (worker, jid) in enumerate([(REPORT, "first"), (REPORT, "second"), ("MailWorker", "third")]):
        fields = {"v": 1, "jid": jid, "class": worker, "since": f"{now - 60 + number:.6f}", "duplicates": number}
        redis.hset(keys.lock(str(number)), mapping=fields)
        redis.expire(keys.lock(str(number)), 300)
    redis.set(keys.lock("odd"), "no lock of ours")
    assert [[*row[:3], row[4]] for row in rows(jobs("locks"))] == [
        ["main", REPORT, "2", "1"],
        ["main", "MailWorker", "1", "2"],
    ]
    assert [row[1:3] for row in rows(jobs("locks", REPORT))] == [
        [keys.lock("0"), "first"],
        [keys.lock("1"), "second"],
    ]
    printed = jobs("locks", "delete", keys.lock("0"), "--yes")
    assert "is held for " in printed
    assert printed.endswith("main: deleted\n")
    assert redis.exists(keys.lock("0"), keys.lock("1")) == 1
    refused = site.run(COMMAND, "locks", "delete", keys.lock("1"))  # without a terminal nothing can be confirmed
    assert (refused.returncode, "Give --yes" in refused.stderr) == (2, True)
    assert redis.exists(keys.lock("1"))
    assert jobs("locks", "delete", keys.lock("absent"), "--yes", status=1) == ""
    shown = find_lock(redis, keys.lock("1"))
    redis.hset(keys.lock("1"), "jid", "newer")
    assert not delete_lock(redis, shown)
    assert redis.exists(keys.lock("1"))


LOCKED = """
from framework import ApplicationWorker, Deduplicate

class LockedWorker(ApplicationWorker):
    feature_category = "not_owned"
    deduplicate = Deduplicate("until_executed")
    idempotent = True
    version = 1

    @classmethod
    def idempotency_arguments(cls, args):
        return args[:2]

    def perform(self, number: int, name: str, mode: str = "full") -> None: ...

    def perform_v0(self, number: int, name: str) -> None: ...
"""
PUSH = "import locked; print(locked.LockedWorker.perform_async(7, 'a b', mode='x'))"


def test_locks_by_class_and_arguments_finds_the_lock_of_a_push(site, jobs, redis):
    (site.folder / "locked.py").write_text(LOCKED)
    jid, twin = (site.run("-c", PUSH).stdout.strip() for _ in range(2))
    assert twin == "None"
    (row,) = rows(jobs("locks", "LockedWorker", "7", "a b", "-r", "locked"))
    assert (row[2], row[-1]) == (jid, "1")
    found = jobs("explain", jid, "-r", "locked", "--json")["found"][0]
    (held,) = found["holds"]
    assert held.startswith(f"the lock {row[1]} for ")
    assert jobs("locks", "LockedWorker", "8", "a b", "-r", "locked").startswith("No job holds ")
    assert jobs("locks", "delete", "LockedWorker", "7", '"a b"', "--yes", "-r", "locked").endswith("main: deleted\n")
    assert site.run("-c", PUSH).stdout.strip() not in ("None", jid)


def test_limits_set_and_clear_reach_a_running_worker(site, jobs, redis):
    shutil.copy(ROOT / "tests" / "features" / "concurrency" / "limited_jobs.py", site.folder / "jobs.py")
    worker = site.worker("-q", "default", "-c", "3").ready()
    for jid in ("first", "second"):
        enqueue(redis, "OneWorker", jid=jid, args=[jid, "go"])
    until(lambda: redis.exists(keys.limit("OneWorker") + ":waiting:") and redis.llen("ran"), "one runs, one waits")
    report = jobs("limits", "OneWorker", "--json")
    ((slot,), (limit,)) = report["slots"], report["limits"]
    assert (limit["limit"], limit["running"], limit["waiting"]) == (1, 1, 1)
    assert slot["identity"] == worker.identity
    running = jobs("explain", slot["jid"], "-r", "jobs", "--json")["found"][0]
    assert running["holds"][0].startswith("a slot of OneWorker for ")
    waiting = ({"first", "second"} - {slot["jid"]}).pop()
    explained = jobs("explain", waiting, "-r", "jobs", "--json")["found"][0]
    assert (explained["place"], [one["code"] for one in explained["reasons"]]) == ("waiting", ["limit_reached"])
    assert f"{slot['jid']} in {worker.identity}" in explained["reasons"][0]["why"]
    jobs("limits", "set", "OneWorker", "2", "--reason", "a test", "--for", "1h")
    until(lambda: redis.llen("ran") == 2, "both jobs run")
    redis.set("go", 1)
    until(lambda: redis.llen("ended") == 2, "both jobs have ended")
    assert jobs("limits", "clear", "OneWorker").startswith("main: OneWorker: the application's limit holds")
    named = ("FreeWorker", "queue/default")  # these two have no limit
    for name in named:
        jobs("limits", "set", name, "-1", "--reason", "a test", "--for", "1h", "-r", "jobs")
    assert {(one["name"], one["limit"]) for one in jobs("limits", "--json")["limits"]} >= {(name, -1) for name in named}


def test_held_shows_the_oldest_first_and_alerts(site, jobs, redis):
    assert jobs("held") == "No job is held.\n"
    take_slot(redis, "a", 1)
    take_slot(redis, "b", 1)
    waited = time.time() - 3_600
    redis.zadd(keys.paused_jobs("MailWorker"), {b'["default"]\n' + encoded("MailWorker"): waited})
    assert jobs("held", "--alert-after", "2h").splitlines()[1].startswith("main   paused   MailWorker")
    done = site.run(COMMAND, "held")
    assert done.returncode == 1
    assert done.stderr.startswith("ALERT main: paused MailWorker: older than 15 min")
    assert "waiting" not in done.stderr  # the waiting job is young
    assert site.run(COMMAND, "held", "--alert-after", "2h", "--alert-above", "1").returncode == 0
    assert [row["kind"] for row in jobs("held", "--alert-after", "2h", "--json")["held"]] == ["paused", "waiting"]


def test_paused_shows_operator_and_strategy(jobs, redis):
    assert jobs("paused") == "Nothing is paused.\n"
    redis.sadd(keys.PAUSED, "reports")
    enqueue(redis, REPORT, queue="reports")
    set_flag(redis, Flag(pause_flag(REPORT), 100, "reindexing", "ann"), 7_000)
    set_flag(redis, Flag(pause_flag("GoneWorker"), 100, "long ago", "ann"), 0.0)
    redis.sadd(keys.PAUSED_CLASSES, "MailWorker")
    redis.zadd(keys.paused_jobs("MailWorker"), {b'["default"]\n' + encoded("MailWorker"): time.time() - 60})
    redis.set(keys.pause_strategy("MailWorker"), "zoekt", ex=60)
    shown = jobs("paused", "--json")["paused"]
    assert [(one["kind"], one["name"], one["by"], one["reason"], one["jobs"]) for one in shown] == [
        ("queue", "reports", "", "", 1),
        ("class", "MailWorker", "zoekt", "", 1),
        ("class", REPORT, "ann", "reindexing", 0),
    ]
    assert "1 h 56 min" in jobs("paused")


def test_deferred_run_now_keeps_rate_and_count(jobs, redis):
    defer_jobs(redis, 10)
    defer_jobs(redis, 3, worker="MailWorker", by="database_health_check")
    redis.zadd(keys.SCHEDULE, {encoded(REPORT, jid="plain", args=['"deferred":']): time.time() + 600})
    assert [row[:4] + row[5:6] for row in rows(jobs("deferred"))] == [
        ["main", REPORT, "feature_flag", "10", "3 times"],
        ["main", "MailWorker", "database_health_check", "3", "3 times"],
    ]
    before = time.time()
    unknown = jobs("deferred", "run-now", "Absent", "--json", "-r", "jobs", status=1)
    assert unknown["run_now"] == [{"shard": "main", "jobs": 0, "of": 0}]
    printed = jobs("deferred", "run-now", REPORT, "--percent", "50", "--rate", "10")
    assert printed == f"main: 5 of 10 deferred jobs of {REPORT} become due, the last in 0 s\n"
    due = [score for _, score in redis.zrange(keys.SCHEDULE, 0, 4, withscores=True)]
    assert [round(later - due[0], 1) for later in due] == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert due[0] == pytest.approx(before, abs=5)
    assert redis.zcount(keys.SCHEDULE, before + 60, "+inf") == 9
    redis.zadd(keys.SCHEDULE, {encoded(REPORT, jid="sooner", deferred=True): 1})
    jobs("deferred", "run-now", REPORT)
    assert redis.zrange(keys.SCHEDULE, 0, 0, withscores=True)[0][1] == 1
    assert redis.zcount(keys.SCHEDULE, before + 60, "+inf") == 4
    assert jobs("deferred", "Absent", "-r", "jobs", status=1) == "No job of Absent is deferred.\n"
    assert jobs("deferred", "NoopWorker", "-r", "jobs") == "No job of NoopWorker is deferred.\n"


def park(redis, worker, jid, **fields):
    fields = {"meta.user": "ann", "meta.project": 7, **fields}
    redis.zadd(keys.paused_jobs(worker), {b'["default"]\n' + encoded(worker, jid=jid, **fields): 1})
    redis.sadd(keys.PAUSED_CLASSES, worker)


def test_held_drop_matches_all_given_fields(site, jobs, redis):
    lock = {"idempotency_key": keys.lock("mine"), "status_expiration": 60}
    redis.hset(keys.lock("mine"), "jid", "mine")
    take_slot(redis, "runs", 1)
    take_slot(redis, "mine", 1, **{"meta.user": "ann", **lock})
    take_slot(redis, "next", 1, **{"meta.user": "bob"})
    park(redis, "MailWorker", "also-mine")
    park(redis, "MailWorker", "anns-too", **{"meta.user": "joann", "args": ["ann"]})
    park(redis, "MailWorker", "number", **{"meta.user": "zoe", "meta.project": 12})
    assert jobs("held", "drop", "--context", "user=ann", "--dry-run").splitlines()[1].split() == [
        "main",
        "2",
        "0",
        "yes",
    ]
    refused = site.run(COMMAND, "held", "drop", "--context", "user=ann")  # without a terminal nothing can be confirmed
    assert (refused.returncode, redis.zcard(keys.paused_jobs("MailWorker"))) == (2, 3)
    (done,) = jobs("held", "drop", "--context", "user=ann", "--yes", "--json")["purged"]
    assert (done["matched"], done["dropped"], done["completed"]) == (2, 2, True)
    assert (redis.exists(keys.lock("mine")), redis.get(keys.status("mine"))) == (0, b"discarded")
    assert redis.zcard(keys.paused_jobs("MailWorker")) == 2
    assert redis.zcard(f"{keys.limit(REPORT)}:waiting:") == 1
    assert jobs("held", "drop", "--context", "project=12", "--class", REPORT, "--yes").splitlines()[1].split()[1] == "0"
    assert (
        jobs("held", "drop", "--context", "project=12", "--class", "MailWorker", "--yes").splitlines()[1].split()[2]
        == "1"
    )
    assert redis.hgetall(keys.COUNTERS) == {
        f'sidekiq_jobs_skipped_total{{action="dropped",reason="operator",worker="{worker}"}}'.encode(): count
        for worker, count in [("MailWorker", b"2"), (REPORT, b"1")]
    }


def test_purge_without_time_is_not_completed(redis, redis_url):
    for number in range(3):
        park(redis, "MailWorker", f"m{number}")
    shard, sizes = opened(redis_url), SizeLimitSettings()
    wanted = JobFilter(cls="MailWorker")
    done = purge(shard, wanted, sizes, time.monotonic() - 1, lambda *_: None, quota=JobQuota(wanted), dry_run=False)
    shard.close()
    assert (done.dropped, done.completed) == (0, False)


def test_counters_prints_the_figures_of_all_shards(site, jobs, redis, second_redis, second_redis_url):
    """The whole text is that of the exporter: tests/features/observability."""
    site.write("redis.yml", {"shards": {"main": {"url": site.url}, "second": {"url": second_redis_url}}})
    redis.hset(
        keys.COUNTERS, mapping={'sidekiq_jobs_skipped_total{action="dropped",worker="A"}': 3, "other_total{}": 1}
    )
    take_slot(redis, "a", 1)
    lines = jobs("counters", "-r", "jobs").splitlines()
    assert {
        "# TYPE application_worker_shard_jobs_skipped_total counter",
        'application_worker_shard_jobs_skipped_total{action="dropped",shard="main",worker="A"} 3',
        'application_worker_shard_other_total{shard="main"} 1',
        f'sidekiq_concurrency_limit_current_limit{{feature_category="",shard="main",worker="{REPORT}"}} 1',
        'application_worker_up{shard="second"} 1',
    } <= set(lines)
    site.write("redis.yml", {"shards": {"main": {"url": site.url}, "second": {"url": "redis://127.0.0.1:1"}}})
    assert 'application_worker_up{shard="second"} 0\n' in jobs("counters", "-r", "jobs", status=1)


def test_explain_names_every_policy_and_its_remedy(jobs, redis):
    for jid in ("a", "b", "c"):
        take_slot(redis, jid, 1, base="NoopWorker")
    take_slot(redis, "q", 1, base="queue/default", name="OtherWorker")
    enqueue(redis, "NoopWorker", jid="waits")
    for name in (drop_flag, run_flag, pause_flag):
        set_flag(redis, Flag(name("NoopWorker"), 0 if name is run_flag else 100, "incident 7", "ann"), 600)
    report = jobs("explain", "waits", "-r", "jobs", "--json")
    reasons = {one["code"]: one for one in report["found"][0]["reasons"]}
    assert list(reasons) == ["no_process", "dropping", "paused", "deferring", "limit_reached"]
    assert "a in host:7:000000000abc" in reasons["limit_reached"]["why"]
    assert reasons["paused"]["why"] == "NoopWorker is paused by ann: incident 7"
    assert reasons["paused"]["remedy"].startswith("scripts/jobs resume NoopWorker -r jobs; by itself in ")
    shared = {"base": "TenantWorker", "scope": "ann", "share": 1}
    assert take_slot(redis, "bens", 5, **{**shared, "scope": "ben"})
    assert [take_slot(redis, jid, 5, **shared) for jid in ("s", "t")] == [True, False]
    (shared_out,) = jobs("explain", "t", "--json")["found"]
    assert [one["code"] for one in shared_out["reasons"]] == ["share_reached", "no_process", "unknown_class"]
    assert shared_out["reasons"][0]["why"].startswith(
        "its scope ann has its share of the limit TenantWorker (1/1; all: 2/5): held by s in host:7:000000000abc"
    )
    assert "bens" not in shared_out["reasons"][0]["why"]
    parked = jobs("explain", "c", "-r", "jobs", "--json")["found"][0]
    assert (parked["place"], parked["position"], parked["of"]) == ("waiting", 2, 2)
    assert [one["code"] for one in parked["reasons"]] == ["limit_reached", "no_process"]


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["limits", "Office::ReprotWorker"], "did you mean 'Office::ReportWorker'?"),
        (["limits", "queue/defualt"], "no limit, worker class or queue (queue/NAME) is named 'queue/defualt'"),
        (["limits", "clear", "Office::ReprotWorker"], "did you mean 'Office::ReportWorker'?"),
        (["limits", "sweep", "Office::ReprotWorker"], "did you mean 'Office::ReportWorker'?"),
        (["limits", "set", "Office::ReprotWorker", "5", "--reason", "x", "--for", "1h"], "did you mean"),
        (["locks", "delete", "NoopWroker", "1", "-r", "jobs"], "did you mean 'NoopWorker'?"),
        (["locks", "NoopWroker", "1", "-r", "jobs"], "did you mean 'NoopWorker'?"),
    ],
)
def test_jobs_unknown_name_status_1(site, redis, words, printed):
    take_slot(redis, "a", 2)
    done = site.run(COMMAND, *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert printed in done.stderr


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["limits", "set", REPORT, "5", "--for", "1h"], "--reason"),
        (["limits", "set", REPORT, "5", "--reason", " ", "--for", "1h"], "--reason is empty"),
        (["limits", "set", REPORT, "5", "--reason", "x", "--for", "soon"], "'soon' is not a duration"),
        (["limits", "set", REPORT, "5", "--reason", "x", "--for", "0s"], "'0s' is not a duration"),
        (["limits", "set", REPORT, "-7", "--reason", "x", "--for", "1h"], "-7"),
        (["locks", keys.lock("x"), "1"], "give arguments only with a class"),
        (["deferred", "run-now", REPORT, "--percent", "5", "--count", "5"], "give one of them"),
        (["held", "drop", "--yes"], "the command drops those that match all of them"),
        (["held", "drop", "--yes", "--context", "user"], "write K=V"),
        (["hled"], "did you mean 'held'?"),
    ],
)
def test_jobs_wrong_usage_names_the_remedy(site, redis, words, printed):
    take_slot(redis, "a", 2)
    done = site.run(COMMAND, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert printed in done.stderr


@pytest.mark.parametrize(
    "words", [["limits"], ["locks"], ["held"], ["paused"], ["deferred"], ["counters"], ["limits", "sweep"]]
)
def test_jobs_unreachable_shard_hides_no_other(site, redis, words):
    site.write("redis.yml", {"shards": {"away": {"url": "redis://127.0.0.1:1/0"}, "main": {"url": site.url}}})
    done = site.run(COMMAND, *words)
    assert done.returncode == 1
    assert "shard 'away' is unavailable" in done.stderr
    assert "Traceback" not in done.stderr


READS = [
    *(
        "queues",
        "stats",
        "top dead",
        "top queues --exact",
        "list dead",
        "list queue:default",
        "list held",
        "show j",
        "explain j",
        "explain C",
        "processes",
    ),
    *("processes --work", "ping", "held", "counters", "limits", "locks", "paused", "deferred", "flags", "leases"),
    *("memory", "list scheduled", "list retry"),
    *(
        "stats --shard second",
        "retry --class C --dry-run",
        "cancel --class C --dry-run",
        "held drop --class C --dry-run",
    ),
]


OTHER_READS = [
    *("cron leader", "cron list", "shards status", "limiters list"),
    *("batches list", "workflows list", "breakers"),
]


def test_jobs_frozen_shard_costs_a_second(two_shards, redis, second_server):
    enqueue(redis, REPORT)

    def run(words):
        head = ("-m", "framework") if words in OTHER_READS else (COMMAND,)
        return two_shards.run(*head, *words.split())

    os.kill(second_server.pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(len(READS)) as threads:
            ended = list(threads.map(run, (*READS, *OTHER_READS)))
    finally:
        os.kill(second_server.pid, signal.SIGCONT)
    for words, done in zip((*READS, *OTHER_READS), ended, strict=True):
        assert done.returncode == 1, words
        assert "shard 'second' is unavailable" in done.stderr, words
        assert re.search(r"no answer within (1|0\.9) s", done.stderr), words
        assert "Traceback" not in done.stderr, words
    assert ended[0].stdout.splitlines()[1].split()[:2] == ["main", "default"]


COMMANDS = [
    *(
        ["explain", "j"],
        ["limits"],
        ["limits", "C"],
        ["limits", "sweep"],
        ["locks"],
        ["locks", "C"],
        ["held"],
        ["paused"],
    ),
    *(["deferred"], ["deferred", "run-now", "C"], ["counters"], ["flags"], ["held", "drop", "--class", "C", "--yes"]),
]
ODD_SCORES = [float("-inf"), -1.0, 0.0, 1e300, float("inf")]


def fill(redis, odd):
    """Store an invalid value in every key that these commands read."""
    limit = keys.limit("C")
    redis.sadd(keys.LIMITS, limit, b"\xff", "x")
    redis.sadd(keys.LIMITS_WAITING, limit, b"\xff")
    redis.sadd(keys.PAUSED_CLASSES, "C", b"\xff")
    redis.hset(
        limit, mapping=dict.fromkeys(("limit", "share", "override", "override_until", "current", "current_until"), odd)
    )
    redis.hset(keys.lock("x"), mapping=dict.fromkeys(("jid", "class", "since", "duplicates", "v"), odd))
    redis.hset(keys.COUNTERS, odd, odd)
    redis.hset(keys.FLAGS, mapping=dict.fromkeys((pause_flag("C"), run_flag("C"), drop_flag("C")), odd))
    for number, score in enumerate(ODD_SCORES):
        job = encoded("C", jid="j", deferred=True, deferred_count=odd.decode(errors="ignore"), created_at=number)
        for key in (keys.SCHEDULE, keys.RETRY, keys.DEAD):
            redis.zadd(key, {job: score, odd + b"%d" % number: score, b'{"deferred":1,"class":"C"}': score})
        redis.zadd(f"{limit}:running", {f"{OWNER} {number}": score, odd: score})
        redis.zadd(f"{limit}:waiting:", {b"[1]\n" + job: score, odd: score})
        redis.zadd(keys.paused_jobs("C"), {b"[1]\n" + job: score, odd: score})
    redis.zadd(f"{limit}:turns", {"": 1, odd: 2})


@pytest.mark.parametrize("odd", [b"inf", b"\xff\xfe", b"9" * 400])
def test_jobs_invalid_value_in_any_key_fails_no_command(site, redis, odd):
    runner, problems = CliRunner(), []
    for words in COMMANDS:
        redis.flushall()
        fill(redis, odd)
        for options in [], ["--json"]:
            done = runner.invoke(command, [*words, *options], env={"FRAMEWORK_CONFIG_DIR": str(site.folder / "config")})
            if (
                done.exception is not None and not isinstance(done.exception, SystemExit)
            ) or "Traceback" in done.output:
                problems.append((words, options, repr(done.exception), done.output))
            if options and done.exit_code != 2:  # the command counters has no JSON form
                problems += [(words, word) for word in ("NaN", "Infinity") if word in done.stdout]
                json.loads(done.stdout)
    assert problems == []
