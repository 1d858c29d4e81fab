"""Run real jobs in one worker process per test, and read each line of its stdout as JSON."""

import json
import re
import time

import pytest

from framework.recover.reaper import mark_dead
from framework.wire import keys
from tests.harness import STARTED, compressed, encoded, enqueue, is_metric, until, unwrapped

START = {
    "severity",
    "time",
    "message",
    "pid",
    "worker_id",
    "class",
    "jid",
    "queue",
    "shard",
    "args",
    "retry",
    "job_status",
    "job_size_bytes",
    "tid",
    "correlation_id",
    "created_at",
    "enqueued_at",
    "queue_duration_s",
    "scheduling_latency_s",
}
DONE = START | {"duration_s", "cpu_s", "completed_at"}


def members(redis, key):
    return [json.loads(data) for data in redis.zrange(key, 0, -1)]


def drained(redis, process):
    """Wait until nothing waits and nothing is held."""
    until(lambda: not redis.llen("queue:default") and not redis.llen(keys.working(process.identity)), "all done")


@pytest.mark.proves("F46", "I15")
def test_paused_queue_is_skipped_until_it_is_resumed(site, redis):
    redis.sadd(keys.PAUSED, "default")
    process = site.hurried_worker("-q", "default", "-q", "other")
    assert process.line(event_name="queues.paused")["queues"] == ["default"]
    until(lambda: sum("b" in client["flags"] for client in redis.client_list()) == 1, "only `other` is waited at")
    enqueue(redis, "TalkWorker", args=[1, "a", "quick"], jid="held back")
    enqueue(redis, "TalkWorker", args=[1, "a", "quick"], jid="served", queue="other")
    process.line(job_status="done", jid="served")
    assert redis.llen("queue:default") == 1
    redis.srem(keys.PAUSED, "default")
    process.line(job_status="done", jid="held back")


def test_job_runs_and_each_stdout_line_is_json(site, redis):
    enqueue(redis, "TalkWorker", args=[5, "my secret", "quick"], jid="j1", correlation_id="cafe", version=1)
    process = site.worker("-q", "default")
    done = process.line(job_status="done")
    start = process.line(job_status="start")
    assert set(start) >= START
    assert set(done) >= DONE
    for line in (start, done):
        assert (line["class"], line["jid"], line["queue"], line["shard"]) == ("TalkWorker", "j1", "default", "main")
        assert (line["retry"], line["correlation_id"], line["pid"], line["version"]) == (25, "cafe", process.pid, 1)
        assert (line["urgency"], line["feature_category"], line["severity"]) == ("high", "not_owned", "INFO")
        assert line["args"] == ["5", "[FILTERED]", "quick"]  # numbers pass, others when the class lists them
        assert line["created_at"] == "2025-06-15T15:06:40.500Z"
        assert line["queue_duration_s"] > 1_000
    assert re.fullmatch(r"TalkWorker JID-j1: done: [0-9.]+ sec", done["message"])
    assert min(done["duration_s"], done["cpu_s"]) >= 0
    assert (done["extra.talk_worker.rows"], done["extra.talk_worker.odd"]) == (7, "?")
    (line,) = process.find(message="half way")
    assert (line["class"], line["jid"], line["step"], line["correlation_id"]) == ("TalkWorker", "j1", 5, "cafe")
    drained(redis, process)
    assert process.end() == 0
    assert process.lines[-1]["event_name"] == "process.stopped"
    assert "a print in a job" in process.errors.read_text()  # stdout is the log's alone
    assert redis.get("stat:processed") == b"1"
    assert redis.exists("stat:failed") == 0


@pytest.mark.proves("I24")
def test_process_end_leaves_no_keys_in_redis(site, redis, proofs):
    enqueue(redis, "NoopWorker")
    process = site.worker("-q", "default").ready()
    proofs("noop")
    assert process.end() == 0
    left = {key for key in redis.keys("*") if not (key.startswith((b"proof:", b"stat:")) or is_metric(key))}
    assert left - {b"aw:steady_since", b"aw:held_alert"} == {b"queues"}  # both keys expire


def test_job_that_replaces_the_streams_leaves_a_clean_stop(site, redis):
    process = site.worker("-q", "default").ready()
    enqueue(redis, "StreamsWorker")
    process.line(job_status="done")
    assert process.end() == 0
    assert process.errors.read_text() == ""


def test_job_pushed_by_a_job_has_its_correlation_id(site, redis, proofs):
    enqueue(redis, "ParentWorker", correlation_id="c0ffee", **{"meta.user": "u1"})
    process = site.worker("-q", "default")
    proofs("noop")
    child = process.line(**{"class": "NoopWorker", "job_status": "done"})
    assert (child["correlation_id"], child["meta.user"]) == ("c0ffee", "u1")
    assert child["args"] == ["[FILTERED]"]
    parent = process.line(**{"class": "ParentWorker", "job_status": "done"})
    assert "meta.caller_id" not in parent
    assert (child["meta.caller_id"], child["meta.root_caller_id"]) == ("ParentWorker", "ParentWorker")


@pytest.mark.parametrize("parent", ["ParentWorker", "AsyncWorker"])
def test_root_caller_is_the_caller_of_the_first_job(site, redis, proofs, parent):
    facts = {"meta.caller_id": "POST /orders", "meta.feature_category": "billing"}
    enqueue(redis, parent, args=[] if parent == "ParentWorker" else [1], **facts)
    process = site.worker("-q", "default")
    proofs("noop")
    child = process.line(**{"class": "NoopWorker", "job_status": "done"})
    assert (child["meta.caller_id"], child["meta.root_caller_id"]) == (parent, "POST /orders")
    assert (child["feature_category"], child["meta.feature_category"]) == ("billing", "billing")


def test_async_jobs_run_on_one_loop_and_keep_their_context(site, redis, proofs):
    for number in range(20):
        enqueue(redis, "AsyncWorker", args=[number], correlation_id=f"c{number}", jid=f"a{number}")
    process = site.worker("-q", "default", "-c", "4")
    found = proofs("async", 20)
    assert sorted(int(one.split()[0]) for one in found) == list(range(20))
    assert {one.split(maxsplit=1)[1] for one in found} == {"event-loop"}
    proofs("noop", 20)
    until(lambda: len(process.find(**{"class": "NoopWorker", "job_status": "done"})) == 20)
    children = process.find(**{"class": "NoopWorker", "job_status": "done"})
    assert {line["correlation_id"] for line in children} == {f"c{number}" for number in range(20)}


@pytest.mark.parametrize("name", ["PatientWorker", "AsyncPatientWorker"])
def test_iterable_job_sees_its_cancellation(site, redis, proofs, name):
    enqueue(redis, name, jid="patient")
    process = site.worker("-q", "default", "-c", "1")
    proofs("patient")
    redis.hset("it-patient", "cancelled", int(time.time()))
    assert proofs("patient", 2) == ["begun", "cancelled"]
    assert process.line(**{"class": name, "job_status": "cancelled"})["jid"] == "patient"
    until(lambda: not redis.exists("it-patient"), "the mark goes with the job")
    assert process.end() == 0


@pytest.mark.proves("F31")
def test_async_job_that_exits_ends_no_other_job(site, redis, proofs):
    process = site.worker("-q", "default", "-c", "1")
    enqueue(redis, "AsyncExitWorker", retry=0)
    failed = process.line(job_status="fail")
    assert (failed["error_class"], failed["dead"]) == ("SystemExit", True)
    enqueue(redis, "AsyncWorker", args=[1])
    proofs("async")
    drained(redis, process)


@pytest.mark.proves("F31")
@pytest.mark.parametrize(
    ("kind", "status", "error", "place"),
    [
        ("plain", "fail", "ValueError", keys.RETRY),
        ("exit", "fail", "SystemExit", keys.RETRY),
        ("unspeakable", "fail", "jobs.BadError", keys.RETRY),
        ("business", "fail", "framework.errors.BusinessError", None),
        ("later", "snoozed", None, keys.SCHEDULE),
        ("discard", "dropped", None, None),
    ],
)
def test_failed_job_is_in_the_place_of_its_outcome(site, redis, kind, status, error, place):
    enqueue(redis, "FailWorker", args=[kind])
    enqueue(redis, "NoopWorker", jid="next")
    process = site.worker("-q", "default", "-c", "1")
    end = process.line(job_status=status)
    process.line(job_status="done", jid="next")  # the slot lives
    drained(redis, process)
    places = {key: members(redis, key) for key in (keys.RETRY, keys.SCHEDULE, keys.DEAD) if redis.exists(key)}
    assert list(places) == ([place] if place else [])
    assert end.get("error_class") == end.get("exception.class") == error
    refused = kind == "business"
    assert end.get("error_kind") == ("business" if refused else None)
    if refused:
        assert (end["severity"], end["dead"], end["retry_count"]) == ("WARN", False, 0)
    elif status == "fail":
        ((job,),) = places.values()
        assert (job["error_class"], job["retry_count"], end["retry_count"]) == (error, 0, 0)
        assert end["severity"] == "WARN"
        assert any("jobs.py" in frame for frame in end["exception.backtrace"])
        assert (15 <= end["retry_in_s"] < 25) if place == keys.RETRY else end["dead"]
    if kind == "later":
        assert end["retry_in_s"] == 3600
    if kind == "discard":
        assert end["dropped_reason"] == "no need"
    assert process.end() == 0
    assert redis.get("stat:failed") == (b"1" if status == "fail" and not refused else None)
    counted = redis.hgetall(keys.COUNTERS)
    assert counted == ({b'sidekiq_jobs_business_failed_total{worker="FailWorker"}': b"1"} if refused else {})


def test_business_errors_are_kept_if_the_setting_says_so(site, redis):
    for number in range(4):
        enqueue(redis, "FailWorker", args=["business"], jid=f"b{number}")
    enqueue(redis, "FailWorker", args=["plain"], jid="real", retry=0)
    process = site.worker(
        "-q", "default", "-c", "1", FRAMEWORK_DEAD__BUSINESS="true", FRAMEWORK_DEAD__BUSINESS_MAX_JOBS="2"
    )
    until(lambda: len(process.find(job_status="fail")) == 5)
    drained(redis, process)
    assert [job["jid"] for job in members(redis, keys.DEAD)] == ["b2", "b3", "real"]
    assert {line["dead"] for line in process.find(job_status="fail")} == {True}
    assert process.find(event_name="dead.trimmed")
    assert process.end() == 0


def test_retried_job_logs_its_retry_count(site, redis):
    enqueue(redis, "FailWorker", args=["again"], retry_count=4, failed_at=STARTED)
    process = site.worker("-q", "default")
    end = process.line(job_status="fail")
    assert (end["retry_count"], end["failed_at"]) == (5, "2025-06-15T15:06:40.500Z")
    assert process.line(job_status="start")["retry_count"] == 4
    (job,) = until(lambda: members(redis, keys.RETRY))
    assert (job["retry_count"], job["failed_at"]) == (5, STARTED)
    assert job["retried_at"] > STARTED


def test_job_logs_off_still_writes_failures(site, redis, proofs):
    enqueue(redis, "NoopWorker")
    enqueue(redis, "FailWorker", args=["x"])
    process = site.worker("-q", "default", FRAMEWORK_LOGGING__JOBS="false")
    failed = process.line(job_status="fail")
    assert (failed["class"], failed["exception.message"]) == ("FailWorker", "x")
    proofs("noop")
    drained(redis, process)
    assert process.end() == 0
    assert [line["job_status"] for line in process.lines if "job_status" in line] == ["fail"]


# --- jobs of other writers in the queue -------------------------------------------------------------------------------


@pytest.mark.proves("F39")
@pytest.mark.parametrize("args", [[], [1, 2], ["1"], [True], [None]])
def test_job_with_wrong_arguments_is_retried(site, redis, args):
    enqueue(redis, "StrictWorker", args=args)
    process = site.worker("-q", "default")
    assert process.line(job_status="fail")["exception.class"] == "framework.errors.ArgumentsMismatchError"
    (job,) = until(lambda: members(redis, keys.RETRY))
    assert (job["args"], job["retry_count"]) == (args, 0)
    assert not redis.exists("proof:strict")


def test_job_with_wrong_arguments_runs_if_the_setting_allows(site, redis, proofs):
    for _ in range(3):
        enqueue(redis, "StrictWorker", args=["7"])
    process = site.worker("-q", "default", FRAMEWORK_STRICT_ARGUMENTS="warn")
    assert proofs("strict", 3) == ["7"] * 3
    until(lambda: len(process.find(job_status="done")) == 3)
    (line,) = process.find(event_name="arguments.not_strict")  # one line per class and minute
    assert (line["severity"], line["class"], line["jid"], line["suppressed"]) == ("WARN", "StrictWorker", "ab" * 12, 0)
    assert list(line["arguments"]) == ["number"]


@pytest.mark.parametrize("args", [["text"], [5, "\ud83d\ude00"]], ids=["marked, not compressed", "two"])
def test_job_with_false_compression_marks_is_quarantined(site, redis, proofs, args):
    data = json.dumps(compressed(["x"], args=args, **{"class": "NoopWorker"})).encode()
    redis.lpush("queue:default", data)
    enqueue(redis, "NoopWorker", jid="next")
    process = site.worker("-q", "default")
    assert process.line(job_status="quarantined")["exception.class"] == "framework.errors.PayloadError"
    assert proofs("noop") == ["next"]
    assert until(lambda: redis.zrange(keys.DEAD, 0, -1)) == [data]


@pytest.mark.proves("F38", "R54")
def test_worker_malformed_payload_keeps_its_bytes(site, redis, proofs):
    broken = [
        b"\x00\xff{",
        b"",
        b"{}",
        b"[1]",
        b'{"class":"NoopWorker","args":{}}',
    ]
    invalid_base64 = encoded("NoopWorker", args=["!"], compressed=True)
    redis.lpush("queue:default", *broken, invalid_base64, encoded("NoopWorker", jid="good"))
    process = site.worker("-q", "default", "-c", "1")
    assert proofs("noop") == ["good"]
    dead = redis.zrange(keys.DEAD, 0, -1)
    assert invalid_base64 in dead
    assert set(map(unwrapped, set(dead) - {invalid_base64})) == set(broken)
    until(lambda: len(process.find(severity="ERROR", queue="default")) == len(broken) + 1)
    assert all(line["job_status"] == "quarantined" for line in process.find(severity="ERROR"))
    assert process.end() == 0


@pytest.mark.proves("R53")
@pytest.mark.parametrize(
    "fields",
    [
        {"enqueued_at": 1e300},
        {"enqueued_at": 10**400},
        {"created_at": "nan", "enqueued_at": "inf"},
        {"enqueued_at": -1e18, "failed_at": [], "retry_count": 10**300, "retry_for": 10**300, "tags": 5},
        {"jid": None, "retry": {"a": 1}, "correlation_id": 7, "meta.x": [1], "version": "two", "queue": 9},
        {"interrupted_count": "x", "original_job_size_bytes": 1e308, "backtrace": "yes", "dead": "no"},
    ],
    ids=["huge", "digits", "words", "mixed", "types", "more"],
)
def test_jobs_with_invalid_fields_run(site, redis, proofs, fields):
    redis.lpush(
        "queue:default",
        encoded("FailWorker", **{**fields, "args": ["boom"]}),
        encoded("NoopWorker", **{**fields, "args": []}),
    )
    redis.lpush("queue:default", encoded("NoopWorker", jid="good"))
    process = site.worker("-q", "default", "-c", "1")
    assert proofs("noop", 2)[1] == "good"
    assert proofs("fail") == ["boom"]
    drained(redis, process)
    assert redis.zcard(keys.RETRY) + redis.zcard(keys.DEAD) == 1
    assert process.end() == 0


@pytest.mark.proves("F30")
def test_job_with_deep_recursion_fails_alone(site, redis, proofs):
    enqueue(redis, "RecursiveWorker")
    enqueue(redis, "NoopWorker")
    process = site.worker("-q", "default", "-c", "1")
    assert process.line(job_status="fail")["exception.class"] == "RecursionError"
    proofs("noop")


def test_compressed_arguments_are_read_and_not_logged(site, redis, proofs):
    redis.lpush(
        "queue:default", json.dumps(compressed(["my secret"] * 10_000, **{"class": "NoopWorker", "jid": "packed"}))
    )
    process = site.worker("-q", "default")
    assert proofs("noop") == ["packed"]
    for status in ("start", "done"):
        line = process.line(job_status=status)
        assert (line["args"], line["compressed"], line["size_limiter"]) == (["[COMPRESSED]"], True, "validated")
        assert line["original_job_size_bytes"] == len('"my secret",') * 10_000 + 1
    assert "my secret" not in process.log.read_text()


SIZES = ("args", "compressed", "original_job_size_bytes", "size_limiter")


@pytest.mark.proves("R51", "I5")
def test_compressed_arguments_keep_their_bytes_on_every_move(site, redis, proofs):
    """Schedule and enqueue a job, requeue it at a stop, quarantine it after a kill; fail it, retry it, fail it again."""
    name = "x" * 200_000
    push = "import jobs; jobs.{}.perform_in(0.05, 'x' * 200_000)"
    site.write("application.yml", {"poll_interval": 0.1})
    assert site.run("-c", push.format("LongWorker")).returncode == 0
    (written,) = members(redis, keys.SCHEDULE)
    assert (written["compressed"], written["original_job_size_bytes"], written["size_limiter"]) == (
        True,
        200_004,
        "validated",
    )
    kept = {field: written[field] for field in SIZES}

    first = site.worker("-q", "default", "-t", "0").ready()
    proofs(f"begun:{name}")
    assert first.end() == 0
    (job,) = [json.loads(data) for data in redis.lrange("queue:default", 0, -1)]
    assert ({field: job[field] for field in SIZES}, job["interrupted_count"]) == (kept, 1)

    second = site.worker("-q", "default").ready()
    proofs(f"begun:{name}", 2)
    second.kill()
    mark_dead(redis, second.identity)
    third = site.worker("-q", "default").ready()
    proofs(f"begun:{name}", 3)
    third.kill()
    mark_dead(redis, third.identity)
    fourth = site.worker("-q", "default").ready()
    fourth.line(job_status="quarantined")  # its class allows two
    (job,) = members(redis, keys.INTERRUPTED)
    assert {field: job[field] for field in SIZES} == kept

    assert site.run("-c", push.format("FailWorker")).returncode == 0
    for count in range(2):
        (job,) = until(
            lambda count=count: [job for job in members(redis, keys.RETRY) if job["retry_count"] == count], "a retry"
        )
        assert {field: job[field] for field in SIZES} == kept
        redis.zadd(keys.RETRY, {redis.zrange(keys.RETRY, 0, 0)[0]: 1}, xx=True)


# --- due jobs -------------------------------------------------------------------------------------------------------


@pytest.mark.proves("I13")
def test_due_jobs_run_and_later_jobs_wait(site, redis, proofs):
    redis.zadd(keys.SCHEDULE, {encoded("NoopWorker", jid="due"): redis.time()[0] - 5})
    redis.zadd(keys.RETRY, {encoded("NoopWorker", jid="again", retry_count=2): redis.time()[0] - 5})
    redis.zadd(keys.SCHEDULE, {encoded("NoopWorker", jid="future"): redis.time()[0] + 500})
    process = site.worker("-q", "default")
    assert sorted(proofs("noop", 2)) == ["again", "due"]
    assert process.line(job_status="done", jid="due")["queue_duration_s"] < 60  # it waits since it was due
    assert [job["jid"] for job in members(redis, keys.SCHEDULE)] == ["future"]
    assert redis.zcard(keys.RETRY) == 0


# --- which queues ---------------------------------------------------------------------------------------------------


def test_process_serves_its_own_queues_and_shard_only(site, redis, second_redis, second_redis_url, proofs):
    site.write("redis.yml", {"shards": {"main": {"url": site.url}, "second": {"url": second_redis_url}}})
    enqueue(redis, "NoopWorker", jid="elsewhere", queue="a")
    enqueue(second_redis, "NoopWorker", jid="here", queue="a")
    enqueue(second_redis, "NoopWorker", jid="other", queue="b")
    process = site.worker("-q", "a", "--shard", "second")
    assert proofs("noop") == ["here"]
    assert process.line(job_status="done")["shard"] == "second"
    assert (redis.llen("queue:a"), second_redis.llen("queue:b")) == (1, 1)
    enqueue(second_redis, "ParentWorker", queue="a")  # its pushes reach all shards
    until(lambda: redis.llen("queue:default") == 1)
