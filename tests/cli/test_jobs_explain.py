"""Test scripts/jobs explain: the place of a job, the reason why it waits, and the remedy. Real processes write the keys."""

import itertools
import json
import re
import time

import pytest

from framework.admin import search
from framework.features.flags.flag import Flag, pause_flag
from framework.features.flags.redis_flags import set_flag
from framework.wire import keys
from framework.wire.answers import end_answer, value_answer
from tests.harness import ROOT, encoded, enqueue, hold, register_process, until

COMMAND = str(ROOT / "scripts" / "jobs")
JID = "e" * 24


@pytest.fixture
def explain(site):
    """Return a function that runs the command and returns its report."""

    def run(jid=JID, *options, status=0):
        done = site.run(COMMAND, "explain", jid, "--json", "-r", "jobs", *options)
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout)

    return run


def codes(report):
    return {(one["shard"], one["place"]): [reason["code"] for reason in one["reasons"]] for one in report["found"]}


def test_explain_says_that_a_job_ends_early(explain, redis):
    old = {"expires_in": 60, "enqueued_at": time.time() - 90}
    enqueue(redis, "NoopWorker", jid=JID, **old)
    redis.zadd(keys.SCHEDULE, {encoded("NoopWorker", jid=JID, expires_in=60, created_at=1.5): time.time() + 600})
    hold(redis, encoded("NoopWorker", jid=JID, **old), "gone:1:00ab00ab00ab")
    redis.zadd(keys.DEAD, {encoded("NoopWorker", jid=JID, **old): time.time()})
    found = codes(explain())
    assert found["main", "queue"][0] == "expired"
    assert "expired" not in found["main", "scheduled"] + found["main", "in flight"] + found["main", "dead"]
    redis.zadd(keys.CANCELLED, {JID: time.time()})
    found = codes(explain())
    assert [found["main", place][0] for place in ("queue", "scheduled", "in flight")] == ["cancelled"] * 3
    assert "cancelled" not in found["main", "dead"]


def test_explain_shows_the_progress_of_an_iterable_job(site, explain, redis):
    enqueue(redis, "NoopWorker", jid=JID)
    assert explain()["found"][0]["iteration"] is None
    # Of any job that was cancelled before it began.
    redis.hset(keys.iteration(JID), mapping={"c": "null", "cancelled": 5})
    report = explain()
    assert report["found"][0]["iteration"] is None
    # Only Ruby's mark: it stops an iterable job at its first item, and any other job runs.
    assert codes(report)["main", "queue"][0] == "cancelled_by_ruby"
    redis.hset(keys.iteration(JID), mapping={"ex": 3, "c": "[7]", "rt": "5", "aw_done": 1200, "aw_total": 10_000})
    redis.hdel(keys.iteration(JID), "cancelled")
    (found,) = explain()["found"]
    assert found["iteration"] == {
        "runs": 3,
        "cursor": [7],
        "runtime_s": 5.0,
        "done": 1200,
        "total": 10_000,
        "rate": 240.0,
        "eta_s": pytest.approx(36.7, abs=0.1),
    }
    text = site.run(COMMAND, "explain", JID, "-r", "jobs").stdout
    assert "  progress  1,200 of 10,000 items (12 %), 240 a second, 37 s left; 3 runs, 5 s; cursor [7]\n" in text
    redis.delete(keys.iteration(JID))
    redis.hset(keys.iteration(JID), mapping={"ex": 1, "c": "null", "cancelled": 5})
    text = site.run(COMMAND, "explain", JID, "-r", "jobs").stdout
    assert "  progress  0 items; 1 run, 0 s; cursor null\n" in text


def test_explain_names_the_limiter_that_did_not_admit_a_job(explain, redis):
    over = {"overrated": 2, "aw_limiter": "api", "aw_result": [3_600, "3f2a"], "aw_profile": True}
    redis.zadd(keys.SCHEDULE, {encoded("NoopWorker", jid=JID, **over): time.time() + 600})
    redis.set(keys.result(JID), value_answer(b'"secret"'), ex=900)
    redis.hset(keys.profile(JID), mapping={"class": "NoopWorker", "at": 5, "duration_s": 1.5})
    report = explain()
    (found,) = report["found"]
    reason = found["reasons"][0]
    assert (found["call"], found["profile"]) == ({"ttl_s": 3_600, "caller": "3f2a"}, True)
    answer = report["answers"]["main"]
    assert (answer["end"], answer["reason"], 0 < answer["kept_s"] <= 900) == ("done", None, True)
    assert report["profiles"] == {"main": {"at": 5.0, "duration_s": 1.5}}
    assert (reason["code"], reason["why"]) == (
        "over_limit",
        "a rate limiter did not admit it 2 times, the last time api",
    )


def test_explain_job_in_any_place_names_place_and_blockers(explain, redis):
    """One job is in every key at once: each place is explained separately."""
    now = time.time()
    enqueue(redis, "NoopWorker", jid="first")
    enqueue(redis, "NoopWorker", jid=JID)
    enqueue(redis, "NoopWorker", jid="last", args=[JID])
    redis.sadd(keys.PAUSED, "default")
    put_off = {"deferred": True, "deferred_by": "database_health_check", "deferred_count": 3}
    redis.zadd(keys.SCHEDULE, {encoded("NoopWorker", jid=JID, **put_off): now + 600, encoded(jid="sooner"): now + 1})
    redis.zadd(keys.RETRY, {encoded("GoneWorker", jid=JID, error_class="IOError", error_message="no"): now - 60})
    redis.zadd(keys.DEAD, {encoded(jid=JID, error_class="IOError"): now, b"\xff\x00 no job " + JID.encode(): now})
    redis.zadd(keys.INTERRUPTED, {encoded(jid=JID, interrupted_count=3, aw_death_count=1): now})
    hold(redis, encoded("NoopWorker", jid=JID), "gone:1:00ab00ab00ab")
    hold(redis, encoded("NoopWorker", jid=JID), keys.migration_identity("old"))
    redis.set(keys.lease(keys.migration_identity("old")), 1, px=15_000)
    redis.set(keys.status(JID), "queued")
    report = explain()
    assert codes(report) == {
        ("main", "scheduled"): ["deferred", "not_due", "no_process", "queue_paused"],
        ("main", "retry"): ["failed", "overdue", "no_process", "queue_paused", "unknown_class"],
        ("main", "queue"): ["no_process", "queue_paused"],
        ("main", "migrating"): ["migrating"],
        ("main", "in flight"): ["process_dead"],
        ("main", "dead"): ["dead"],
        ("main", "interrupted"): ["interrupted"],
    }
    counts = ("interrupted_count", "aw_death_count", "max_retries_after_interruption")
    assert [report["found"][-1][count] for count in counts] == [3, 1, 3]
    assert [report["found"][0][count] for count in counts] == [0, 0, 3]
    spots = [(one["place"], one["position"], one["of"]) for one in report["found"]]
    assert spots == [
        ("scheduled", 2, 2),
        ("retry", 1, 1),
        ("queue", 2, 3),
        ("migrating", 1, 1),
        ("in flight", 1, 1),
        ("dead", 1, 2),
        ("dead", 2, 2),
        ("interrupted", 1, 1),
    ]
    deferral = (
        "deferred 3 times, the last time by database_health_check: an indicator said that its database is overloaded"
    )
    assert report["found"][0]["reasons"][0]["why"] == deferral
    assert (report["states"], report["unanswered"]) == ({"main": "queued"}, [])


def test_explain_encrypted_job_names_its_missing_key(explain, redis):
    fields = {"deferred": True, "deferred_by": "missing_key", "deferred_count": 2, "aw_encryption_key": "3.0a0b0c0d"}
    redis.zadd(keys.SCHEDULE, {encoded("NoopWorker", jid=JID, **fields): time.time() + 600})
    reason = explain()["found"][0]["reasons"][0]
    assert (reason["code"], "the key 3.0a0b0c0d" in reason["why"]) == ("no_key", True)
    assert "encryption.keys" in reason["remedy"]


def test_explain_text_names_the_remedy(site, redis):
    enqueue(redis, "NoopWorker", jid="first", queue="reports")
    enqueue(redis, "NoopWorker", jid=JID, queue="reports", idempotency_key=f"{keys.LOCKS}abc")
    redis.hset(keys.lock("abc"), "jid", JID)
    redis.expire(keys.lock("abc"), 300)
    register_process(redis, {"queues": ["other"]})
    done = site.run(COMMAND, "explain", JID, "-r", "jobs")
    assert (done.returncode, done.stderr) == (0, "")
    head, *lines = done.stdout.splitlines()
    assert head == f"{JID}: NoopWorker on main"
    assert lines[0] == "  where     queue reports, number 2 of 2 (queue:reports)"
    assert lines[1].startswith("  since     2025-06-15 15:06:40Z, ")
    assert lines[2].startswith(f"  holds     the lock {keys.LOCKS}abc for ")
    assert lines[3:] == [
        "  why       no running process of main serves the queue reports",
        "  released  by one that does: scripts/worker -r jobs --shard main -q reports",
    ]


def test_explain_dead_job_that_never_failed(explain, redis):
    redis.zadd(keys.DEAD, {encoded("NoopWorker", jid=JID): time.time()})
    why = explain()["found"][0]["reasons"][0]["why"]
    assert why.startswith("it is dead: no run of it has failed. An operator")
    # A quarantined job keeps its bytes, so it has no error: one without its signature, for example.
    assert why.endswith("its log line with job_status quarantined has the reason")


def test_explain_names_the_entry_that_pushed_the_job(site, explain, redis):
    enqueue(redis, "NoopWorker", jid=JID, cron={"name": "nightly", "tick": 1_750_000_000})
    enqueue(redis, "NoopWorker", jid="manual", cron={"name": "nightly", "tick": None})
    for strange in (3, {"name": 4}, {"name": "nightly", "tick": 10**30}):
        enqueue(redis, "NoopWorker", jid="strange", cron=strange)
    assert explain()["found"][0]["schedule"] == {"entry": "nightly", "tick": 1_750_000_000}
    nightly = {"entry": "nightly", "tick": None}
    assert [one["schedule"] for one in explain("strange")["found"]] == [nightly, None, None]
    done = site.run(COMMAND, "explain", JID, "-r", "jobs")
    line = "  schedule  entry nightly, tick of 2025-06-15 15:06:40Z: `scripts/cron history nightly` shows the others"
    assert line in done.stdout.splitlines()
    assert "nightly, between ticks" in site.run(COMMAND, "explain", "manual", "-r", "jobs").stdout


def test_explain_names_the_batch_and_its_cancellation(site, explain, redis):
    enqueue(redis, "NoopWorker", jid=JID, bid="aw-4711")
    enqueue(redis, "NoopWorker", jid="other", bid=7)
    enqueue(redis, "NoopWorker", jid="stepped", bid="aw-wf-1.import")
    redis.zadd(keys.CANCELLED, {"aw-4711": time.time()})
    (found,) = explain()["found"]
    assert found["batch"] == "aw-4711"
    assert found["reasons"][0]["code"] == "cancelled"
    assert found["reasons"][0]["why"].startswith("its batch was cancelled")
    (other,) = explain("other")["found"]
    assert (other["batch"], "cancelled" in [one["code"] for one in other["reasons"]]) == (None, False)
    done = site.run(COMMAND, "explain", JID, "-r", "jobs")
    assert "  batch     aw-4711: `scripts/batches show aw-4711` shows its counts" in done.stdout.splitlines()
    done = site.run(COMMAND, "explain", "stepped", "-r", "jobs")
    assert "  workflow  step import: `scripts/jobs workflow wf-1` shows all steps" in done.stdout.splitlines()
    assert (explain("stepped")["found"][0]["workflow"], found["workflow"]) == ("wf-1", None)


def test_explain_job_in_flight_names_the_process(site, explain, redis):
    """A real process starts the job, falls silent and dies; the explanation is right at each step."""
    set_flag(redis, Flag(pause_flag("AsyncWorker"), 100, "reindexing", "ann"), 600)
    worker = site.hurried_worker("-q", "default", "-c", "1").ready()
    enqueue(redis, "AsyncWorker", jid="parked", args=[1])
    until(lambda: redis.exists(keys.paused_jobs("AsyncWorker")), "the paused job is held")
    assert codes(explain("parked")) == {("main", "paused"): ["paused"]}
    assert explain("parked")["found"][0]["reasons"][0]["why"] == "AsyncWorker is paused by ann: reindexing"
    enqueue(redis, "LongWorker", jid=JID, args=["a"])
    until(lambda: redis.hlen(keys.work(worker.identity)[0]), "the process record has the running job")
    enqueue(redis, "NoopWorker", jid="waits")
    assert codes(explain()) == {("main", "in flight"): ["running"]}
    assert codes(explain("waits")) == {("main", "queue"): ["busy"]}
    assert explain()["found"][0]["name"] == worker.identity
    worker.kill()
    redis.zadd(keys.REGISTRY, {worker.identity: time.time() - 10})
    assert codes(explain()) == {("main", "in flight"): ["process_silent"]}
    redis.delete(keys.lease(worker.identity))
    assert redis.exists(worker.identity), "its record is still there"
    assert codes(explain()) == {("main", "in flight"): ["process_dead"]}
    assert explain()["found"][0]["reasons"][0]["remedy"].startswith("the next process of main that starts reclaims it")
    assert codes(explain("waits")) == {("main", "queue"): ["no_process"]}


def test_explain_unknown_job_lists_possible_reasons(site, redis):
    enqueue(redis, "NoopWorker", jid="another", args=[JID])
    done = site.run(COMMAND, "explain", JID, "-r", "jobs")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"No key of main holds the job {JID}. ")
    assert [line[:5] for line in done.stderr.splitlines()[1:]] == ["  - i", "    d", "  - i", "  - i", "  - a"]
    done = site.run(COMMAND, "explain", JID, "-r", "jobs", "--json")
    assert (done.returncode, json.loads(done.stdout)["found"]) == (1, [])
    assert done.stderr.startswith(f"No key of main holds the job {JID}. ")
    redis.set(keys.status(JID), "completed")
    redis.set(keys.result(JID), end_answer("dead", "no row", "LookupError"), ex=7_200)
    redis.hset(keys.profile(JID), mapping={"class": "NoopWorker", "at": 5, "duration_s": 1.5, "error": "KeyError"})
    done = site.run(COMMAND, "explain", JID, "-r", "jobs")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"No key of main holds the job {JID}. ")
    status, answer, profile = done.stdout.splitlines()[-3:]
    assert status == "  - its status on main: completed"
    assert re.fullmatch(r"  - its answer on main: dead \(LookupError: no row\), kept for .* more", answer)
    assert profile.startswith("  - its profile on main: a run of 1.5 s, ended with KeyError; `")
    assert profile.endswith(f"jobs profile {JID}` writes the page")


def test_explain_unreachable_shard_is_reported(site, explain, redis):
    site.write("redis.yml", {"shards": {"away": {"url": "redis://127.0.0.1:1/0"}, "main": {"url": site.url}}})
    enqueue(redis, "NoopWorker", jid=JID)
    report = explain(status=1)
    assert (list(codes(report)), report["unanswered"]) == ([("main", "queue")], ["away"])
    assert codes(explain(JID, "--shard", "main")) == {("main", "queue"): ["no_process"]}


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["explain", " "], 2, "JID is empty"),
        (["explain", JID, "--shard", "mian"], 2, "did you mean 'main'?"),
        (["explian", JID], 2, "did you mean 'explain'?"),
    ],
)
def test_explain_wrong_usage_names_the_remedy(site, options, status, message):
    done = site.run(COMMAND, *options)
    assert (done.returncode, done.stdout) == (status, "")
    assert message in done.stderr


def test_explain_without_loadable_classes_explains_the_rest(site, redis):
    enqueue(redis, "NoopWorker", jid=JID)
    done = site.run(COMMAND, "explain", JID, "-r", "absent")
    assert done.returncode == 0
    assert "The worker classes cannot be loaded" in done.stderr
    assert "no process of main is running" in done.stdout


def test_search_long_lists_reads_pages(redis, monkeypatch):
    """A job at any page boundary is found with its position, and no page exceeds its limit."""
    monkeypatch.setattr(search, "LIST_STEP", (7, 7))
    monkeypatch.setattr(search, "SET_STEP", (7, 7))
    redis.rpush("queue:q", *[encoded(jid=f"j{number:03}") for number in range(40)])
    redis.zadd(keys.RETRY, {encoded(jid=f"z{number:03}"): number for number in range(300)})
    scanned = []
    for number in range(0, 40, 3):
        (found,) = search.search(redis, f"j{number:03}", lambda key, looked: scanned.append((key, looked)))
        assert (found.position, found.total) == (40 - number, 40)
    for number in range(0, 300, 37):
        (found,) = search.search(redis, f"z{number:03}", lambda *_: None)
        assert (found.position, found.total, found.score) == (number + 1, 300, number)
    assert search.search(redis, "z[0-9]*", lambda *_: None) == []  # the search takes an id literally, not as a pattern
    for odd in ("a[b]*c?d^-\\\\", 'quo"ted'):
        redis.zadd(keys.DEAD, {encoded(jid=odd): 1})
        assert [found.store.kind for found in search.search(redis, odd, lambda *_: None)] == ["dead"]
    steps = [looked for key, looked in scanned if key == "queue:q"]
    assert max(later - before for before, later in itertools.pairwise(steps)) <= 15  # a first page of 8, and then 7


def test_search_many_small_places_takes_few_commands(each_redis):
    """Limits with scopes create thousands of queues, held sets and working lists; one round trip reads some hundred."""
    pipeline = each_redis.pipeline(transaction=False)
    for number in range(3_000):
        pipeline.sadd(keys.QUEUES, f"q{number}")
        pipeline.lpush(f"queue:q{number}", *(encoded(jid=f"q{number}-{copy}", args=[JID]) for copy in range(2)))
        pipeline.zadd(f"{keys.limit('AWorker')}:waiting:{number}", {b"t\n" + encoded(jid=f"w{number}"): 1})
        pipeline.rpush(keys.working(f"host:{number}:00000000000e"), encoded(jid=f"h{number}"))
    pipeline.sadd(keys.QUEUES, *(f"empty{number}" for number in range(3_000)))
    pipeline.set("queue:odd", "no list")
    pipeline.set(keys.paused_jobs("OddWorker"), "no set")
    pipeline.execute()

    def commands():
        return each_redis.info("commandstats")

    before = commands()
    assert search.search(each_redis, "f" * 24, lambda *_: None) == []
    after = commands()
    sent = sum(
        after[name]["calls"] - before.get(name, {"calls": 0})["calls"]
        for name in ("cmdstat_evalsha", "cmdstat_scan", "cmdstat_sscan")
    )
    assert sent < 200, "of 12,000 keys, gone through twice"
    for jid, kind, name in (
        ("q2999-1", "queue", "q2999"),
        ("w17", "waiting", "AWorker"),
        ("h5", "in flight", "host:5:00000000000e"),
    ):
        found = search.search(each_redis, jid, lambda *_: None)
        assert [(one.store.kind, one.store.name, one.payload["jid"]) for one in found] == [(kind, name, jid)]


@pytest.mark.parametrize("size", [10, 400_000])
def test_search_large_jobs_stays_within_bytes_of_a_step(redis, monkeypatch, size):
    """No step exceeds its limit of bytes after its first page, and the search reads every job of the list."""
    monkeypatch.setattr(search, "STEP_BYTES", 1_000_000)
    redis.rpush("queue:q", *[encoded(jid=f"j{number:03}", args=["x" * size]) for number in range(30)])
    steps = []
    assert [one.position for one in search.search(redis, "j029", lambda *_: None)] == [1]
    assert search.search(redis, "j030", lambda key, looked: steps.append((key, looked))) == []
    looked = [jobs for key, jobs in steps if key == "queue:q"]
    assert looked[-1] == 60, "twice"
    assert len(looked) == (2 if size == 10 else 2 * 13), "8 at first, then 2 to a step, and the end"


def test_search_finds_a_job_that_moves_to_a_searched_key(redis, monkeypatch):
    monkeypatch.setattr(search, "_KEYS_PER_STEP", 1)
    job = enqueue(redis, "NoopWorker", jid=JID, queue="z")
    enqueue(redis, "NoopWorker", jid="other", queue="a")

    def moves(key, _looked):
        if key == "queue:a" and redis.lrem("queue:z", 1, job):
            redis.zadd(keys.RETRY, {job: 1})

    assert [found.store.kind for found in search.search(redis, JID, moves)] == ["retry"]
