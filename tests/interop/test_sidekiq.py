"""Jobs go between Python and Ruby's own Sidekiq 6.4.1 through one store, both ways, and come out equal."""

import base64
import json
import time
import zlib
from datetime import UTC, datetime, timedelta

import pytest

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
    """Equality that tells True from 1 and 1 from 1.0."""
    return repr(value)


@pytest.mark.proves("F42", "I12", "I23")
def test_python_pushes_and_ruby_runs_it_with_equal_arguments_in_order(jobs, ruby, ruby_server, noted):
    jid = jobs.EchoWorker.perform_async(*ARGUMENTS)
    jobs.EchoWorker.perform_bulk([(number,) for number in range(20)])
    jobs.EchoWorker.perform_async("last")

    before = ruby("queue", name="default")
    assert before["names"] == ["default"]
    oldest = before["jobs"][-1]
    assert oldest["jid"] == jid
    assert abs(oldest["created_at"] - time.time()) < 60  # a wrong unit would be off by decades
    assert 0 <= before["latency"] < 60

    with ruby_server():
        seen = noted("ruby", 22)
    assert exact(seen[0]) == exact(["EchoWorker", *ARGUMENTS])
    assert seen[1:] == [["EchoWorker", number] for number in range(20)] + [["EchoWorker", "last"]]


@pytest.mark.proves("F42", "I23")
def test_a_job_scheduled_here_is_moved_by_ruby_when_it_is_due(jobs, ruby, redis):
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
def test_ruby_pushes_now_and_later_and_python_runs_it(jobs, ruby, python_server, noted, redis):
    ruby("perform_async", **{"class": "EchoWorker", "args": ARGUMENTS})
    ruby("perform_in", **{"class": "EchoWorker", "args": ["later"], "seconds": 0.3})
    assert redis.zcard("schedule") == 1
    with python_server():
        seen = noted("python", 2)
    # Two slots and a poller that is quick: which comes first is nobody's promise.
    assert exact(sorted(seen, key=len)) == exact([["EchoWorker", "later"], ["EchoWorker", *ARGUMENTS]])


@pytest.mark.proves("F42", "I23")
def test_what_failed_in_ruby_is_retried_here(jobs, ruby, ruby_server, python_server, noted, redis):
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
def test_what_failed_here_is_read_by_ruby_with_other_writers_fields_intact(
    jobs, ruby, python_server, redis, eventually
):
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
def test_a_dead_job_goes_back_to_work_from_ruby(jobs, ruby, python_server, noted, redis, eventually):
    jid = jobs.MendableWorker.perform_async(5)
    redis.lpush("queue:default", NO_JSON)
    with python_server():
        eventually(lambda: redis.zcard("dead") == 2, "two dead jobs")
        entries = ruby("entries", set="dead")
        (raw,) = [entry["raw"] for entry in entries if "raw" in entry]
        assert bytes.fromhex(raw) == NO_JSON
        (dead,) = [entry for entry in entries if "jid" in entry]
        assert (dead["jid"], dead["item"]["error_class"], dead["args"]) == (jid, "ValueError", [5])

        redis.set("interop:mended", "yes")
        ruby("retry_entry", set="dead", jid=jid)
        assert noted("python", 1) == [["MendableWorker", 5]]
    assert redis.zcard("dead") == 1


@pytest.mark.proves("R70", "I23")
def test_ruby_sees_our_process_its_job_and_its_figures_and_is_obeyed(
    jobs, ruby, python_server, noted, redis, eventually
):
    jobs.EchoWorker.perform_async("quick")
    jobs.MendableWorker.perform_async(1)
    waiting = jobs.WaitingWorker.perform_async("interop:gate")
    with python_server() as process:
        eventually(lambda: redis.llen("interop:waiting"), "the waiting job's start")
        # The list is what the last beat saw; that may still be the quick job.
        (work,) = eventually(
            lambda: [job for job in ruby("work") if waiting in str(job)], "the busy job in Ruby's list"
        )
        assert work["queue"] == "default"
        assert abs(work["run_at"] - time.time()) < 60
        payload = json.loads(work["payload"]) if isinstance(work["payload"], str) else work["payload"]
        assert (payload["jid"], payload["class"], payload["args"]) == (waiting, "WaitingWorker", ["interop:gate"])

        (seen,) = ruby("processes")
        assert work["process"] == seen["identity"]
        assert (seen["concurrency"], seen["busy"], seen["queues"]) == (2, 1, ["default"])
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
        jobs.EchoWorker.perform_async("for nobody")
        redis.lpush("interop:gate", "open")
        noted("python", 2)
        assert redis.llen("queue:default") == 1

        ruby("signal", identity=seen["identity"], signal="stop!")
        assert process.ended() == 0
    assert ruby("processes") == []
    stats = ruby("stats")
    assert (stats["processed"], stats["failed"], stats["enqueued"]) == (3, 1, 1)
    # One key runs out by itself.
    assert {key.decode() for key in redis.scan_iter()} - {"aw:beats", "aw:parked:watch"} == {
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


def pages_answer(ruby):
    """Sidekiq's own Web UI on our data, with a process, a running job, a dead one, and one of each other kind."""
    ruby("perform_in", **{"class": "EchoWorker", "args": ["far off"], "seconds": 3600})
    paths = ["/", "/busy", "/queues", "/queues/default", "/retries", "/scheduled", "/morgue", "/stats"]
    pages = ruby("pages", paths=paths)
    assert {path: page["status"] for path, page in pages.items()} == dict.fromkeys(paths, 200)
    assert "WaitingWorker" in pages["/busy"]["body"]
    assert "MendableWorker" in pages["/morgue"]["body"]
    assert "EchoWorker" in pages["/scheduled"]["body"]
    assert "default" in pages["/queues"]["body"]


@pytest.mark.proves("F42", "I12")
def test_a_job_given_back_at_shutdown_is_the_next_that_ruby_runs(
    jobs, ruby, python_server, ruby_server, noted, redis, eventually
):
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
MARKS = ("compressed", "original_job_size_bytes", "size_limiter")


@pytest.mark.proves("I23")
def test_what_ruby_compressed_runs_here_and_is_retried_as_it_was(jobs, ruby, python_server, noted, redis, eventually):
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
    assert {name: retried[name] for name in ("args", *MARKS)} == {
        name: before[failing][name] for name in ("args", *MARKS)
    }


@pytest.mark.proves("I23")
def test_what_we_compress_is_read_by_ruby(jobs, ruby):
    jid = jobs.EchoWorker.perform_async(*LARGE)
    jobs.EchoWorker.perform_bulk([(1,), tuple(LARGE)])
    (bulk, small, single) = ruby("decompressed", name="default")
    assert (single["jid"], small["args"]) == (jid, [1])
    for job in (single, bulk):
        assert exact(job["args"]) == exact(LARGE)
        assert job["size_limiter"] == "validated"


def test_a_large_job_scheduled_here_passes_the_limiter_of_rubys_poller_as_it_is(
    jobs, ruby, redis, python_server, noted
):
    """Smaller limits over there: it was accepted here, and must be neither compressed again nor lost."""
    jobs.EchoWorker.perform_in(600, *LARGE)
    member = redis.zrange("schedule", 0, 0)[0]
    ruby("limit_sizes", threshold=100, limit=200)
    redis.zadd("schedule", {member: 1})
    ruby("enqueue_due")
    (moved,) = [json.loads(data) for data in redis.lrange("queue:default", 0, -1)]
    assert {name: moved[name] for name in ("args", *MARKS)} == {
        name: json.loads(member)[name] for name in ("args", *MARKS)
    }
    with python_server():
        assert exact(noted("python", 1)) == exact([["EchoWorker", *LARGE]])
