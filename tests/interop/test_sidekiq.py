"""Exchange jobs between Python and Ruby's Sidekiq through one Redis, both ways, and compare them.

With the installed Sidekiq (Debian's 6.4.1); in the campaigns also with those that `scripts/setup --sidekiqs` has made, and those of
SIDEKIQ_GEMS (conftest.py).
"""

import base64
import json
import time
import zlib
from datetime import UTC, datetime, timedelta
from unittest.mock import ANY

import pytest

import framework
from framework import active_job
from framework.features.packing.packer import QueuePacker
from framework.process.record import read_processes
from framework.wire import keys
from tests.harness import is_metric

ARGUMENTS = [
    None,
    True,
    False,
    0,
    2**53 + 1,
    -(2**70),
    -1.5,
    1.0,
    "",
    'é ü 日本 😀 \u2028 \u0000 \\ " </script>',
    [],
    {},
    [1, [2, [3, []]]],
    {"a": {"b": [None, {"c": "d"}]}, "😀": 1},
]
FOREIGN = {"bid": "b-1_x", "cattr": {"user": 7, "tags": ["a"]}, "unique_for": "3600", "locale": "de", "encrypt": False}
NO_JSON = b"\xff no JSON {"


def exact(value):
    """Equality for which True, 1 and 1.0 are different."""
    return repr(value)


@pytest.mark.proves("F42", "I12", "I23")
def test_ruby_runs_python_jobs_with_equal_arguments(jobs, ruby, ruby_server, noted):
    jid = jobs.EchoWorker.perform_async(*ARGUMENTS)
    jobs.EchoWorker.perform_bulk([(number,) for number in range(20)])
    jobs.EchoWorker.perform_async("last")

    before = ruby("queue", name="default")
    assert before["names"] == ["default"]
    oldest = before["jobs"][-1]
    assert oldest["jid"] == jid
    assert abs(oldest["created_at"] - time.time()) < 60  # a wrong unit of time gives a date decades away
    assert 0 <= before["latency"] < 60

    with ruby_server():
        seen = noted("ruby", 22)
    assert exact(seen[0]) == exact(["EchoWorker", *ARGUMENTS])
    assert seen[1:] == [["EchoWorker", number] for number in range(20)] + [["EchoWorker", "last"]]


@pytest.mark.proves("F42", "I23")
def test_ruby_moves_python_jobs_when_they_are_due(jobs, ruby, redis):
    due = datetime.now(UTC) + timedelta(minutes=10)
    jid = jobs.EchoWorker.perform_at(due, "later")
    (entry,) = ruby("entries", set="schedule")
    assert entry["jid"] == jid
    assert abs(entry["score"] - due.timestamp()) < 0.001
    assert not {"at", "enqueued_at"} & set(entry["item"])
    ruby("enqueue_due")
    assert redis.llen("queue:default") == 0

    redis.zincrby("schedule", -600, redis.zrange("schedule", 0, 0)[0])
    ruby("enqueue_due")
    (moved,) = ruby("queue", name="default")["jobs"]
    assert (moved["jid"], moved["args"]) == (jid, ["later"])
    assert redis.zcard("schedule") == 0


@pytest.mark.proves("F42", "I23")
def test_python_runs_ruby_jobs_now_and_later(jobs, ruby, python_server, noted, redis):
    ruby("perform_async", **{"class": "EchoWorker", "args": ARGUMENTS})
    ruby("perform_in", **{"class": "EchoWorker", "args": ["later"], "seconds": 0.3})
    assert redis.zcard("schedule") == 1
    with python_server():
        seen = noted("python", 2)
    # Two threads and a fast poller: the order is not guaranteed.
    assert exact(sorted(seen, key=len)) == exact([["EchoWorker", "later"], ["EchoWorker", *ARGUMENTS]])


@pytest.mark.campaign
def test_shared_queue_leaves_ruby_its_jobs_unchanged(
    jobs, ruby, environment, ruby_server, python_server, noted, redis, eventually
):
    environment["FRAMEWORK_FOREIGN_CLASSES"] = "Ruby::*"
    with python_server() as process:
        for number in range(20):
            ruby("perform_async", **{"class": "Ruby::OnlyWorker", "args": [number]})
            jobs.EchoWorker.perform_async(number)
        ruby("push", item={"class": "Ruby::OnlyWorker", "args": ["no retry"], "retry": False})
        noted("python", 20)  # Python continues its jobs while no Ruby process runs
        eventually(lambda: redis.zcard("schedule") == 21, "Ruby's wait")
        with ruby_server():
            seen = noted("ruby", 21)  # while Python is at the same queue
    ran = [["Ruby::OnlyWorker", number] for number in [*range(20), "no retry"]]
    assert sorted(seen, key=str) == sorted(ran, key=str)  # each once
    assert not any(redis.zcard(key) for key in ("retry", "dead", "schedule"))
    assert redis.llen("queue:default") == 0
    logged = [line for line in process.lines() if line.get("event_name") == "class.foreign"]
    assert sum(line["classes"]["Ruby::OnlyWorker"] for line in logged) >= 21
    assert not [line for line in process.lines() if line.get("class") == "Ruby::OnlyWorker"]


def test_block_that_ruby_takes_returns_and_its_jobs_run(
    jobs, ruby, ruby_server, python_server, redis, noted, eventually
):
    jobs.EchoWorker.perform_bulk([(number,) for number in range(5)])
    assert QueuePacker(redis, "default", 1, 4).pack()
    with ruby_server():
        assert noted("ruby", 1) == [["EchoWorker", 0]]
        eventually(lambda: redis.zcard("retry"), "Ruby has no class of this name")
    (entry,) = ruby("entries", set="retry")
    assert (entry["item"]["args"], entry["item"]["error_class"]) == (["4 waiting jobs"], "NameError")
    redis.zadd("retry", {redis.zrange("retry", 0, 0)[0]: 1}, xx=True)
    ruby("enqueue_due")
    with python_server():
        assert sorted(noted("python", 4)) == [["EchoWorker", number] for number in range(1, 5)]
    assert not redis.exists("retry", "schedule", "dead", "queue:default", keys.PACKED, keys.PACKED_BLOCKS)


@pytest.mark.campaign
def test_ruby_retries_a_job_delayed_by_python(jobs, ruby, ruby_server, python_server, redis, noted, eventually):
    jid = ruby("push", item={"class": "Ruby::OnlyWorker", "args": ["fails once"], "retry": 5})
    with python_server():
        eventually(lambda: redis.zcard("schedule"), "Python puts it off")
    redis.zadd("schedule", {redis.zrange("schedule", 0, 0)[0]: 1}, xx=True)
    ruby("enqueue_due")  # Ruby's own poller moves it without knowing the framework's fields
    with ruby_server():
        noted("ruby", 1)
        eventually(lambda: redis.zcard("retry"), "it fails in Ruby")
    (entry,) = ruby("entries", set="retry")
    assert (entry["jid"], entry["item"]["error_class"], entry["item"]["retry_count"]) == (jid, "ArgumentError", 0)


@pytest.mark.proves("F42", "I23")
def test_python_retries_a_job_failed_in_ruby(jobs, ruby, ruby_server, python_server, noted, redis):
    item = {"class": "HandoverWorker", "args": [1], "retry": 5, "backtrace": 2, **FOREIGN}
    jid = ruby("push", item=item)
    with ruby_server():
        noted("ruby", 1)
    (entry,) = ruby("entries", set="retry")
    assert entry["jid"] == jid
    assert entry["item"]["error_class"] == "ArgumentError"
    assert len(entry["backtrace"]) == 2

    redis.zadd("retry", {redis.zrange("retry", 0, 0)[0]: 1}, xx=True)
    with python_server() as process:
        assert noted("python", 1) == [["HandoverWorker", 1]]
    done = next(line for line in process.lines() if line.get("job_status") == "done")
    assert done["jid"] == jid
    assert done["retry_count"] == 0
    assert done["bid"] == FOREIGN["bid"]
    assert redis.zcard("retry") == 0


@pytest.mark.proves("F42", "I5", "I23")
def test_ruby_reads_a_failed_python_job_with_all_fields(jobs, ruby, python_server, redis, eventually):
    jid = ruby("push", item={"class": "FailingWorker", "args": ["boom é😀"], "retry": 3, "backtrace": True, **FOREIGN})
    with python_server():
        eventually(lambda: redis.zcard("retry"), "first failure")
        (first,) = ruby("entries", set="retry")
        assert 14 <= first["score"] - time.time() <= 26
        redis.zadd("retry", {redis.zrange("retry", 0, 0)[0]: 1}, xx=True)
        eventually(
            lambda: any(json.loads(member).get("retry_count") == 1 for member in redis.zrange("retry", 0, -1)),
            "second failure",
        )
    (second,) = ruby("entries", set="retry")

    for number, entry in enumerate((first, second)):
        fields = entry["item"]
        assert (entry["jid"], entry["klass"], entry["args"]) == (jid, "FailingWorker", ["boom é😀"])
        assert {name: fields[name] for name in FOREIGN} == FOREIGN
        assert (fields["error_class"], fields["error_message"]) == ("RuntimeError", "boom é😀")
        assert fields["retry_count"] == number
        assert isinstance(fields["failed_at"], float)
        assert ("retried_at" in fields) == (number == 1)
        stored = json.loads(zlib.decompress(base64.b64decode(fields["error_backtrace"])))
        assert entry["backtrace"] == stored
        assert "in `_explain'" in stored[0]
        assert "in `perform'" in stored[1]
    assert first["item"]["failed_at"] == second["item"]["failed_at"] < second["item"]["retried_at"]

    detail = f"/retries/{redis.zrange('retry', 0, 0, withscores=True)[0][1]}-{jid}"
    page = ruby("pages", paths=[detail])[detail]
    assert page["status"] == 200
    assert "boom é😀" in page["body"]


@pytest.mark.proves("F42", "I23")
def test_ruby_retries_a_dead_python_job(jobs, ruby, python_server, noted, redis, eventually):
    jid = jobs.MendableWorker.perform_async(5)
    with python_server():
        eventually(lambda: redis.zcard("dead"), "a dead job")
        (dead,) = ruby("entries", set="dead")
        assert (dead["jid"], dead["item"]["error_class"], dead["args"]) == (jid, "ValueError", [5])

        redis.set("interop:mended", "yes")
        ruby("retry_entry", set="dead", jid=jid)
        assert noted("python", 1) == [["MendableWorker", 5]]
    assert redis.zcard("dead") == 0


@pytest.mark.proves("F38", "F42", "I23")
def test_ruby_dead_page_shows_malformed_entries(ruby, python_server, redis, eventually):
    """Each is shown, retried from there, and lies dead again as it was; nothing runs."""
    malformed = [NO_JSON, b"[1,2]", b"null", b"7", b'"x"', b"{}", b'{"class":"EchoWorker","args":[NaN]}']
    redis.lpush("queue:default", *malformed)
    with python_server() as process:
        eventually(lambda: redis.zcard("dead") == len(malformed), "set aside")
        first = dict(redis.zrange("dead", 0, -1, withscores=True))
        entries = ruby("entries", set="dead")
        for entry in entries:
            assert (entry["klass"], entry["args"], entry["item"]["queue"]) == ("aw.Malformed", [], "default")
        assert sorted(base64.b64decode(entry["item"]["aw_raw"]) for entry in entries) == sorted(malformed)
        jids = {json.loads(data)["jid"]: score for data, score in first.items()}
        paths = ["/morgue", *(f"/morgue/{score}-{jid}" for jid, score in jids.items()), "/"]
        pages = ruby("pages", paths=paths)
        assert {path: page["status"] for path, page in pages.items()} == dict.fromkeys(paths, 200)
        assert all("cannot be read" in pages[path]["body"] for path in paths[:-1])

        redis.zadd("dead", {data: score - 60 for data, score in first.items()})
        for jid in jids:
            ruby("retry_entry", set="dead", jid=jid)

        def quarantined():
            return [line["job_status"] for line in process.lines() if "job_status" in line]

        eventually(lambda: len(quarantined()) == 2 * len(malformed), "set aside again")
    assert quarantined() == ["quarantined"] * 2 * len(malformed)
    again = {json.loads(data)["jid"]: json.loads(data) for data in redis.zrange("dead", 0, -1)}
    for kept in map(json.loads, first):
        found = again[kept["jid"]]
        assert {name for name in kept if kept[name] != found.get(name)} <= {"failed_at"}
        assert kept.keys() == found.keys()
    assert redis.llen("queue:default") == 0


@pytest.mark.proves("F38", "I23")
def test_ruby_moves_a_wrapped_entry_to_the_dead_set(ruby, python_server, ruby_server, redis, eventually):
    redis.lpush("queue:default", b"[1,2]")
    with python_server():
        eventually(lambda: redis.zcard("dead"), "set aside")
    (entry,) = ruby("entries", set="dead")
    ruby("retry_entry", set="dead", jid=entry["jid"])
    with ruby_server():
        eventually(lambda: redis.zcard("dead"), "dead again")
    (again,) = ruby("entries", set="dead")
    assert (again["item"]["aw_raw"], again["item"]["error_class"]) == (entry["item"]["aw_raw"], "NameError")


@pytest.mark.proves("R70", "I23")
def test_ruby_shows_and_controls_a_python_process(jobs, ruby, python_server, noted, redis, eventually):
    jobs.EchoWorker.perform_async("quick")
    jobs.MendableWorker.perform_async(1)
    waiting = jobs.WaitingWorker.perform_async("interop:release")
    with python_server() as process:
        eventually(lambda: redis.llen("interop:waiting"), "the waiting job's start")
        # The list is from the last heartbeat, which may still show the quick job.
        (work,) = eventually(
            lambda: [job for job in ruby("work") if waiting in str(job)], "the busy job in Ruby's list"
        )
        assert work["queue"] == "default"
        assert abs(work["run_at"] - time.time()) < 60
        payload = json.loads(work["payload"]) if isinstance(work["payload"], str) else work["payload"]
        assert (payload["jid"], payload["class"], payload["args"]) == (waiting, "WaitingWorker", ["interop:release"])

        (seen,) = eventually(
            lambda: [one for one in ruby("processes") if one["busy"] == 1], "a heartbeat without the quick jobs"
        )
        assert work["process"] == seen["identity"]
        assert (seen["concurrency"], seen["queues"]) == (2, ["default"])
        assert seen["identity"].startswith(f"{seen['hostname']}:{seen['pid']}:")
        assert int(seen["rss"]) > 1_000
        assert seen["quiet"] == "false"
        assert 0 < redis.ttl(seen["identity"]) <= 60

        stats = ruby("stats")
        assert (stats["processed"], stats["failed"], stats["dead"]) == (2, 1, 1)
        assert (stats["processed_today"], stats["failed_today"]) == (2, 1)
        assert (stats["processes"], stats["busy"], stats["enqueued"]) == (1, 1, 0)
        pages_answer(ruby)

        ruby("signal", identity=seen["identity"], signal="quiet!")
        eventually(lambda: ruby("processes")[0]["quiet"] == "true", "quiet")
        jobs.EchoWorker.perform_async("unserved")
        redis.lpush("interop:release", "open")
        noted("python", 2)
        assert redis.llen("queue:default") == 1

        ruby("signal", identity=seen["identity"], signal="stop!")
        assert process.ended() == 0
    assert ruby("processes") == []
    stats = ruby("stats")
    assert (stats["processed"], stats["failed"], stats["enqueued"]) == (3, 1, 1)
    # One key expires by itself.
    kept = {key.decode() for key in redis.scan_iter() if not is_metric(key)}
    assert kept - {"aw:steady_since", "aw:held_alert", "process_cleanup"} == {
        *(
            "queues",
            "queue:default",
            "schedule",
            "dead",
            "stat:processed",
            "stat:failed",
            "interop:python",
            "interop:waiting",
        ),
        *(f"stat:{kind}:{datetime.now(UTC):%Y-%m-%d}" for kind in ("processed", "failed")),
    }


def test_running_job_is_found_in_the_log_by_its_tid(jobs, ruby, python_server, redis, eventually):
    jid = jobs.WaitingWorker.perform_async("interop:release")
    with python_server("--tag", "shop", "--label", "blue") as process:
        (work,) = eventually(lambda: ruby("work"), "the busy job in Ruby's list")
        (start,) = [line for line in process.lines() if line.get("jid") == jid]
        assert start["tid"] == work["thread"]
        page = ruby("pages", paths=["/busy"])["/busy"]
        assert page["status"] == 200
        assert all(text in page["body"] for text in (start["tid"], "shop", "blue"))
        redis.lpush("interop:release", "open")


def test_ruby_idle_process_is_shown_with_its_threads(ruby, ruby_server, redis, eventually):
    with ruby_server():
        (seen,) = eventually(lambda: read_processes(redis), "its record")
    assert (seen.queues, seen.slots, seen.busy) == ({"default"}, 1, 0)


def test_ruby_metrics_page_shows_python_jobs(jobs, ruby, sidekiq, python_server, noted, redis):
    if not sidekiq.since(7):
        pytest.skip("the page came with Sidekiq 7")
    jobs.EchoWorker.perform_bulk([(number,) for number in range(5)])
    jobs.MendableWorker.perform_async(1)
    with python_server() as process:
        noted("python", 5)
        process.wait_for('"job_status":"fail"')
    assert {name: ruby("metrics", **{"class": "EchoWorker"})["totals"][name] for name in ("p", "ms")} == {
        "p": 5,
        "ms": ANY,
    }
    assert ruby("metrics", **{"class": "EchoWorker"})["histogram"] == 5
    assert {name: ruby("metrics", **{"class": "MendableWorker"})["totals"][name] for name in "pf"} == {"p": 1, "f": 1}
    paths = ["/metrics", "/metrics/EchoWorker", "/metrics/MendableWorker"]
    pages = ruby("pages", paths=paths)
    assert {path: page["status"] for path, page in pages.items()} == dict.fromkeys(paths, 200)
    assert "EchoWorker" in pages["/metrics"]["body"]


def test_ruby_cancel_stops_a_python_job(jobs, ruby, sidekiq, python_server, noted, redis, eventually):
    if not sidekiq.since(7, 3, 3):
        pytest.skip("Client#cancel! came with Sidekiq 7.3.3")
    before = jobs.PatientWorker.perform_async("cancelled before it began")
    ruby("cancel", jid=before)
    running = jobs.PatientWorker.perform_async("cancelled as it ran")
    with python_server():
        assert noted("python", 1) == [["PatientWorker", "cancelled before it began"]]
        eventually(lambda: running in str(ruby("work")), "it runs")
        ruby("cancel", jid=running)
        assert noted("python", 2)[1] == ["PatientWorker", "cancelled as it ran"]
    # The end of a job removes the mark: a page of Ruby shows no job that has ended.
    assert not redis.exists(f"it-{running}")


def pages_answer(ruby):
    """Sidekiq's own Web UI on the framework's data, with a process, a running job, a dead one, and one of each other kind."""
    ruby("perform_in", **{"class": "EchoWorker", "args": ["far off"], "seconds": 3600})
    paths = ["/", "/busy", "/queues", "/queues/default", "/retries", "/scheduled", "/morgue", "/stats"]
    pages = ruby("pages", paths=paths)
    assert {path: page["status"] for path, page in pages.items()} == dict.fromkeys(paths, 200)
    assert "WaitingWorker" in pages["/busy"]["body"]
    assert "MendableWorker" in pages["/morgue"]["body"]
    assert "EchoWorker" in pages["/scheduled"]["body"]
    assert "default" in pages["/queues"]["body"]


@pytest.mark.proves("F42", "I12")
def test_ruby_runs_a_job_requeued_at_shutdown_first(jobs, ruby, python_server, ruby_server, noted, redis, eventually):
    waiting = jobs.WaitingWorker.perform_async("interop:closed")
    with python_server("-t", "0.2") as process:
        eventually(lambda: redis.llen("interop:waiting"), "the job's start")
        process.quiet()
        jobs.EchoWorker.perform_async("younger")
    (given_back, younger) = [json.loads(data) for data in reversed(redis.lrange("queue:default", 0, -1))]
    assert (given_back["jid"], given_back["interrupted_count"]) == (waiting, 1)
    assert younger["args"] == ["younger"]
    with ruby_server():
        assert noted("ruby", 2) == [["WaitingWorker", "interop:closed"], ["EchoWorker", "younger"]]


# --- large arguments, as GitLab's Ruby clients and servers have them -------------------------------------------------

LARGE = ["é😀\u2028</script>" * 40_000, {"deep": [None, 2**70, -1.5]}]
MARKER_FIELDS = ("compressed", "original_job_size_bytes", "size_limiter")


@pytest.mark.proves("I23")
def test_python_retries_a_ruby_compressed_job_unchanged(jobs, ruby, python_server, noted, redis, eventually):
    ruby("limit_sizes", threshold=100, limit=5_000_000)
    ruby("perform_async", **{"class": "EchoWorker", "args": LARGE})
    ruby("perform_async", **{"class": "EchoWorker", "args": ["small"]})
    failing = ruby("push", item={"class": "FailingWorker", "args": ["boom " * 100], "retry": 3})
    before = {job["jid"]: job["item"] for job in ruby("queue", name="default")["jobs"]}
    assert [bool(job.get("compressed")) for job in before.values()] == [True, False, True]  # the newest first
    with python_server() as process:
        seen = noted("python", 2)
        eventually(lambda: redis.zcard("retry"), "the failure")
    assert exact(sorted(seen, key=len)) == exact([["EchoWorker", "small"], ["EchoWorker", *LARGE]])
    done = next(line for line in process.lines() if line.get("job_status") == "done" and line.get("compressed"))
    assert (done["args"], done["size_limiter"]) == (["[COMPRESSED]"], "validated")
    assert done["original_job_size_bytes"] > 400_000
    ((member, _),) = redis.zrange("retry", 0, -1, withscores=True)
    retried = json.loads(member)
    assert {name: retried[name] for name in ("args", *MARKER_FIELDS)} == {
        name: before[failing][name] for name in ("args", *MARKER_FIELDS)
    }


@pytest.mark.proves("I23")
@pytest.mark.parametrize("library", ["isal", "zlib"])
def test_ruby_reads_arguments_compressed_by_python(jobs, ruby, monkeypatch, library):
    if library == "zlib":
        monkeypatch.setattr("framework.wire.compress._isal_compress", None)
    jid = jobs.EchoWorker.perform_async(*LARGE)
    jobs.EchoWorker.perform_bulk([(1,), tuple(LARGE)])
    (bulk, small, single) = ruby("decompressed", name="default")
    assert (single["jid"], small["args"]) == (jid, [1])
    for job in (single, bulk):
        assert exact(job["args"]) == exact(LARGE)
        assert job["size_limiter"] == "validated"


def test_ruby_without_a_size_limiter_gets_uncompressed_arguments(jobs, ruby, ruby_server, noted):
    """Of a class that compresses, Sidekiq alone gives its worker one string of base64, in silence."""
    jobs.EchoWorker.perform_async(*LARGE)
    jobs.PlainWorker.perform_async(*LARGE)
    with ruby_server():
        compressed, plain = noted("ruby", 2)
    assert (compressed[0], len(compressed), type(compressed[1])) == ("EchoWorker", 2, str)
    assert exact(plain) == exact(["PlainWorker", *LARGE])


def test_ruby_poller_keeps_a_large_python_job(jobs, ruby, redis, python_server, noted):
    """Ruby has smaller limits: a job that Python accepted must be neither compressed again nor lost."""
    jobs.EchoWorker.perform_in(600, *LARGE)
    member = redis.zrange("schedule", 0, 0)[0]
    ruby("limit_sizes", threshold=100, limit=200)
    redis.zadd("schedule", {member: 1})
    ruby("enqueue_due")
    (moved,) = [json.loads(data) for data in redis.lrange("queue:default", 0, -1)]
    assert {name: moved[name] for name in ("args", *MARKER_FIELDS)} == {
        name: json.loads(member)[name] for name in ("args", *MARKER_FIELDS)
    }
    with python_server():
        assert exact(noted("python", 1)) == exact([["EchoWorker", *LARGE]])


@pytest.mark.proves("F42", "I23")
def test_ruby_runs_jobs_that_python_pushes_by_name(jobs, ruby, ruby_server, redis, noted):
    jid = framework.enqueue("Ruby::OnlyWorker", ARGUMENTS, queue="default")
    framework.enqueue("Ruby::OnlyWorker", ["later"], queue="default", at=600)
    active_job.enqueue("ReportJob", [7, {"a": [None]}], {"mode": "fast"}, queue="default")
    wrapped, plain = ruby("queue", name="default")["jobs"]
    assert (plain["jid"], plain["klass"]) == (jid, "Ruby::OnlyWorker")
    assert wrapped["item"]["wrapped"] == "ReportJob"
    redis.zincrby("schedule", -600, redis.zrange("schedule", 0, 0)[0])
    ruby("enqueue_due")
    with ruby_server():
        seen = noted("ruby", 3)
    assert exact(seen) == exact(
        [["Ruby::OnlyWorker", *ARGUMENTS], ["ReportJob", 7, {"a": [None]}, "fast"], ["Ruby::OnlyWorker", "later"]]
    )


@pytest.mark.proves("F42", "I23")
def test_python_runs_jobs_that_rails_wrapped(jobs, ruby, python_server, noted):
    ruby("perform_later", args=[7, "é"], mode="fast")
    with python_server() as process:
        assert noted("python", 1) == [["ReportJob", 7, "é", {"mode": "fast"}]]
    done = next(line for line in process.lines() if line.get("job_status") == "done")
    assert (done["class"] in (active_job.WRAPPER, active_job.WRAPPER_8), done["wrapped"]) == (True, "ReportJob")
