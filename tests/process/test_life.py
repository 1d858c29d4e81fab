"""Check the start, the quiet state, the stop and the death of a worker process, and the fate of its jobs."""

import json
import re
import signal

import pytest

from framework.recover.reaper import mark_dead
from framework.wire import keys
from tests.harness import enqueue, full_memory, is_metric, until
from tests.servers.guarded import PASSWORD


def queued(redis, name="default"):
    """Return the jobs of the queue, the next one first."""
    return [json.loads(data) for data in reversed(redis.lrange(keys.queue(name), 0, -1))]


@pytest.mark.proves("F4", "I12", "I24")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_stop_returns_unfinished_jobs_to_their_queues(site, redis, proofs, number):
    enqueue(redis, "LongWorker", args=["one"], jid="j1")
    enqueue(redis, "LongWorker", args=["two"], jid="j2", aw_death_count=1)
    enqueue(redis, "NoopWorker", jid="waiting")
    process = site.worker("-q", "default", "-c", "2", "-t", "0").ready()
    proofs("begun:one"), proofs("begun:two")
    assert process.end(number) == 0
    assert [(job["jid"], job.get("interrupted_count")) for job in queued(redis)] == [
        ("j1", 1),
        ("j2", 1),
        ("waiting", None),
    ]
    stopped = process.line(event_name="process.stopped")
    assert (stopped["returned"], stopped["finished"]) == (2, False)
    assert process.line(event_name="process.stopping")["signal"] == number.name
    left = {key for key in redis.keys("*") if not (key.startswith((b"proof:", b"stat:")) or is_metric(key))}
    assert left - {b"aw:steady_since", b"aw:held_alert"} == {
        b"queues",
        b"queue:default",
    }  # both keys expire
    assert not process.find(job_status="fail")


@pytest.mark.proves("F3")
def test_stop_waits_for_jobs_that_end_in_time(site, redis, proofs, release):
    enqueue(redis, "LongWorker", args=["one"])
    process = site.worker("-q", "default", "-t", "30").ready()
    proofs("begun:one")
    process.send(signal.SIGTERM)
    process.line(event_name="process.stopping")
    release("one")
    assert process.wait() == 0
    assert process.line(event_name="process.stopped")["returned"] == 0
    assert process.find(job_status="done")
    assert not redis.exists("queue:default")
    assert redis.get("stat:processed") == b"1"


def test_two_signals_to_stop_read_at_once_log_one_stop(site, redis, proofs):
    """A supervisor and systemd each send one; the frozen process reads both after SIGCONT."""
    enqueue(redis, "LongWorker", args=["one"])
    process = site.worker("-q", "default", "-t", "300").ready()
    proofs("begun:one")
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        process.send(number)
    assert process.wait() == 0
    assert len(process.find(event_name="process.stopping")) == 1
    assert process.line(event_name="process.stopped")["returned"] == 1


@pytest.mark.proves("F28", "R69")
def test_stop_ends_the_process_despite_an_endless_job(site, redis, proofs):
    enqueue(redis, "StubbornWorker")
    process = site.worker("-q", "default", "-t", "0").ready()
    proofs("begun:stubborn")
    assert process.end() == 0
    assert len(queued(redis)) == 1


def test_quiet_process_ends_its_jobs_and_fetches_none(site, redis, proofs, release):
    enqueue(redis, "LongWorker", args=["one"])
    process = site.hurried_worker("-q", "default", "-c", "2").ready()
    proofs("begun:one")
    process.send(signal.SIGTSTP)
    process.line(event_name="process.quiet")
    until(lambda: not [client for client in redis.client_list() if "b" in client["flags"]], "the blocking calls end")
    enqueue(redis, "NoopWorker")
    release("one")
    proofs("ended:one")
    until(lambda: not redis.llen(keys.working(process.identity)))
    assert redis.llen("queue:default") == 1
    until(lambda: redis.hget(process.identity, "quiet") == b"true", "the record says so")
    assert process.end() == 0
    assert not redis.exists("proof:noop")


def test_process_excludes_loaded_objects_from_collections(site, redis, proofs):
    site.worker("-q", "default").ready()
    enqueue(redis, "FrozenWorker")
    (frozen,) = proofs("frozen")
    assert int(frozen) > 50_000


def test_stacks_are_dumped_with_their_jobs(site, redis, proofs):
    enqueue(redis, "LongWorker", args=["one"], jid="j1")
    process = site.worker("-q", "default", "-t", "0").ready()
    proofs("begun:one")
    process.send(signal.SIGTTIN)
    stack = process.line(event_name="process.stack", jid="j1")
    assert any("jobs.py" in frame and "perform" in frame for frame in stack["stack"])
    assert process.line(event_name="process.stack", thread="MainThread")
    assert process.end() == 0


def test_worker_obeys_signals_of_a_dashboard(site, redis):
    process = site.hurried_worker("-q", "default").ready()
    redis.lpush(keys.signals(process.identity), "TERM")
    assert process.wait() == 0


@pytest.mark.proves("R70")
def test_process_record_has_the_fields_of_sidekiqs_pages(site, redis, proofs):
    enqueue(redis, "LongWorker", args=["one"], jid="j1")
    marks = ("--tag", "shop", "--label", "blue", "--label", "rack 7")
    process = site.hurried_worker("-q", "default,2", "-q", "other,1", "-c", "3", "-t", "0", *marks).ready()
    identity = process.identity
    until(lambda: redis.hlen(f"{identity}:work"), "the job in the record")
    assert redis.smembers(keys.PROCESSES) == {identity.encode()}
    record = {name.decode(): value.decode() for name, value in redis.hgetall(identity).items()}
    assert set(record) >= {"info", "concurrency", "busy", "beat", "rtt_us", "quiet", "rss"}
    assert (record["concurrency"], record["quiet"]) == ("3", "false")
    info = json.loads(record["info"])
    assert (info["pid"], info["identity"], info["concurrency"]) == (process.pid, identity, 3)
    assert (info["queues"], info["weights"]) == (["default", "other"], [{"default": 2, "other": 1}])
    assert info["capsules"]["default"]["mode"] == "weighted"
    assert isinstance(info["started_at"], float)
    assert (info["tag"], info["labels"]) == ("shop", ["python", "blue", "rack 7"])
    assert 0 < redis.ttl(identity) <= 60
    for key in keys.work(identity):
        (work,) = redis.hvals(key)
        entry = json.loads(work)
        assert (entry["queue"], json.loads(entry["payload"])["jid"], type(entry["run_at"])) == ("default", "j1", int)
        assert redis.hkeys(key) == [process.line(jid="j1", job_status="start")["tid"].encode()]
    assert process.end() == 0


# --- forced stops ---------------------------------------------------------------------------------------------------


def stop_amid(site, proofs, name, *, runs=1, number=signal.SIGTERM, **env):
    """Stop a process while it executes run number ``runs`` of the job ``name``."""
    process = site.worker("-q", "default", "-t", "0", **env).ready()
    proofs(f"begun:{name}", runs)
    assert process.end(number) == 0
    return process


@pytest.mark.proves("R24", "I6")
def test_worker_job_interrupted_too_often_runs_the_hook(site, redis, proofs):
    enqueue(redis, "LongWorker", args=["one"], jid="j1", status_expiration=600, foreign="kept")
    first = stop_amid(site, proofs, "one")
    line = first.line(job_status="interrupted")
    assert (line["jid"], line["class"], line["queue"]) == ("j1", "LongWorker", "default")
    assert (line["interrupted_count"], line["aw_death_count"], line["destination"]) == (1, 0, "queue:default")
    assert "iterate" not in line["message"]
    assert not first.find(job_status="quarantined")
    second = stop_amid(site, proofs, "one", runs=2)  # its class allows two
    line = second.line(job_status="interrupted")
    assert (line["interrupted_count"], line["destination"], line["severity"]) == (2, "interrupted", "WARN")
    assert re.search(r"2 stops, ran [\d.]+ s, deadline 0 s: iterate, split, or raise -t$", line["message"])
    quarantined = second.line(job_status="quarantined")
    assert (quarantined["jid"], quarantined["cause"], quarantined["destination"]) == ("j1", "stop", "interrupted")
    assert second.line(event_name="process.stopped")["returned"] == 1
    assert proofs("exhausted") == ["j1"]
    (job,) = [json.loads(data) for data in redis.zrange(keys.INTERRUPTED, 0, -1)]
    assert (job["interrupted_count"], job["foreign"], "aw_death_count" in job) == (2, "kept", False)
    assert (redis.llen("queue:default"), redis.get(keys.status("j1"))) == (0, b"failed")
    assert redis.hget(keys.COUNTERS, 'sidekiq_jobs_quarantined_total{cause="stop",worker="LongWorker"}') == b"1"
    assert not redis.keys("aw:working:*")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_of_a_process_at_a_terminal_is_not_counted(site, redis, proofs, number):
    """A developer stops a process at any time, and ``--watch`` at each change: both mark it so."""
    enqueue(redis, "LongWorker", args=["one"], jid="j1")
    process = stop_amid(site, proofs, "one", number=number, FRAMEWORK_AT_TERMINAL="1")
    assert process.line(job_status="interrupted")["jid"] == "j1"
    (job,) = queued(redis)
    assert "interrupted_count" not in job


@pytest.mark.proves("R24", "R25", "I6")
def test_interruptions_and_deaths_are_counted_separately(site, redis, proofs, release):
    enqueue(redis, "LongWorker", args=["one"], jid="j1")
    stop_amid(site, proofs, "one")  # its class allows two of either
    killed = site.worker("-q", "default").ready()
    proofs("begun:one", 2)
    killed.kill()
    mark_dead(redis, killed.identity)
    release("one")
    last = site.worker("-q", "default")
    done = last.line(job_status="done", jid="j1")
    assert (done["interrupted_count"], done["aw_death_count"]) == (1, 1)
    assert redis.zcard(keys.INTERRUPTED) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT], ids=lambda number: number.name)
def test_interruption_setting_is_the_default_of_classes(site, redis, proofs, number):
    enqueue(redis, "StubbornWorker", jid="j1")
    process = stop_amid(site, proofs, "stubborn", number=number, FRAMEWORK_MAX_RETRIES_AFTER_INTERRUPTION="1")
    assert process.line(job_status="quarantined")["jid"] == "j1"
    assert redis.zcard(keys.INTERRUPTED) == 1
    assert "deadline" not in process.line(job_status="interrupted")["message"]


@pytest.mark.parametrize("how", ["cancelled", "deaf"])
def test_interrupted_async_job_is_counted(site, redis, proofs, how):
    enqueue(redis, "AsyncLongWorker", args=[how], jid="j1")
    process = stop_amid(site, proofs, how)
    assert [(job["jid"], job["interrupted_count"]) for job in queued(redis)] == [("j1", 1)]
    assert process.line(job_status="interrupted")["jid"] == "j1"
    assert process.find(job_status="done") == process.find(job_status="fail") == []


def test_job_that_stops_on_shutdown_is_not_counted(site, redis, proofs):
    enqueue(redis, "GivesWayWorker", jid="j1")
    process = site.worker("-q", "default", "-t", "60").ready()
    proofs("begun:polite")
    assert process.end() == 0  # long before the deadline
    assert [(job["jid"], job.get("interrupted_count")) for job in queued(redis)] == [("j1", None)]
    assert not process.find(job_status="interrupted")
    assert process.line(event_name="process.stopped")["returned"] == 1


@pytest.mark.proves("F28", "R69")
def test_stop_with_a_hanging_hook_ends_the_process(site, redis, proofs):
    enqueue(redis, "HangingHookWorker", jid="j1")
    process = stop_amid(site, proofs, "hook")
    assert proofs("hook hangs") == ["j1"]
    assert process.line(event_name="hook.abandoned")["severity"] == "ERROR"
    assert redis.zcard(keys.INTERRUPTED) == 1
    assert not redis.exists(keys.lease(process.identity))  # the hook hung after the last write


def test_interrupted_set_of_wrong_type_loses_no_job(site, redis, proofs):
    redis.set(keys.INTERRUPTED, "x")
    enqueue(redis, "LongWorker", args=["one"], jid="j1", interrupted_count=1)
    process = stop_amid(site, proofs, "one")
    assert [(job["jid"], job["interrupted_count"]) for job in queued(redis)] == [("j1", 2)]
    assert process.line(job_status="interrupted")["destination"] == "queue:default"
    assert redis.exists("proof:exhausted") == 0


# --- death ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("R18", "I8")
def test_jobs_of_a_killed_process_run_in_another(site, redis, proofs, release):
    enqueue(redis, "LongWorker", args=["one"], jid="j1", bid="kept")
    first = site.worker("-q", "default").ready()
    proofs("begun:one")
    first.kill()
    assert redis.llen(keys.working(first.identity)) == 1
    mark_dead(redis, first.identity)  # as a supervisor does after the death of its child
    release("one")
    second = site.worker("-q", "default")
    assert proofs("ended:one") == [str(second.pid)]
    back = second.line(job_status="recovered")
    assert (back["jid"], back["owner"], back["aw_death_count"]) == ("j1", first.identity, 1)
    done = second.line(job_status="done", jid="j1")
    assert (done["aw_death_count"], "interrupted_count" in done) == (1, False)
    until(lambda: redis.exists(keys.working(first.identity)) == 0)


@pytest.mark.proves("R18", "R30", "I8")
def test_tracked_job_has_status_running_again_after_a_kill(site, redis, proofs, release):
    """A tracked job becomes completed before it leaves Redis: its second run has the status running again."""
    enqueue(redis, "LongWorker", args=["one"], jid="j1", status_expiration=600)
    first = site.worker("-q", "default").ready()
    proofs("begun:one")
    until(lambda: redis.get(keys.status("j1")) == b"running")
    first.kill()
    mark_dead(redis, first.identity)
    second = site.worker("-q", "default")
    proofs("begun:one", 2)
    assert redis.get(keys.status("j1")) == b"running"
    release("one")
    assert proofs("ended:one") == [str(second.pid)]
    until(lambda: redis.get(keys.status("j1")) == b"completed")
    assert 590 < redis.ttl(keys.status("j1")) <= 600


@pytest.mark.proves("R24", "I6")
def test_worker_killing_job_is_quarantined_with_hook(site, redis, proofs):
    enqueue(  # its class allows two
        redis, "LongWorker", args=["one"], jid="j1", aw_death_count=1, status_expiration=600
    )
    first = site.worker("-q", "default").ready()
    proofs("begun:one")
    first.kill()
    mark_dead(redis, first.identity)
    second = site.worker("-q", "default").ready()
    assert proofs("exhausted") == ["j1"]
    assert second.line(job_status="quarantined")["destination"] == "interrupted"
    (job,) = redis.zrange(keys.INTERRUPTED, 0, -1)
    assert json.loads(job)["aw_death_count"] == 2
    assert redis.llen("queue:default") == 0
    until(lambda: redis.get(keys.status("j1")) == b"failed")


@pytest.mark.proves("I1")
def test_worker_stop_leaves_lost_replies_to_others(site, redis):
    """A fetch whose reply was lost: the job is in the working list and in the memory of no process."""
    process = site.worker("-q", "default").ready()
    enqueue(redis, "NoopWorker", jid="lost", queue="side")
    redis.lmove("queue:side", keys.working(process.identity), "RIGHT", "LEFT")
    assert process.end() == 0
    if redis.llen("queue:side"):
        return  # it was found and given back
    assert redis.llen(keys.working(process.identity)) == 1
    site.worker("-q", "other")
    until(lambda: redis.llen("queue:side") == 1, "taken back")


# --- unavailable Redis ------------------------------------------------------------------------------------------------


@pytest.mark.proves("F23")
def test_boot_waits_for_a_redis_that_starts_later(site, make_server, redis):
    own = make_server()
    url = own.url
    own.stop()
    process = site.worker("-q", "default", REDIS_URL=url)
    waiting = process.line(event_name="boot.waiting")
    assert waiting["exception.class"].startswith("redis.exceptions.")
    assert waiting["address"] == url
    own.start()
    process.ready()
    with own.open() as client:
        enqueue(client, "NoopWorker")
    process.line(job_status="done")
    assert process.end() == 0


UNAVAILABLE = {
    "replica": (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"), "ReadOnlyError"),
    "login": (
        ("ACL", "SETUSER", "role-worker", "resetpass"),
        ("ACL", "SETUSER", "role-worker", f">{PASSWORD}"),
        "AuthenticationError",
    ),
}


@pytest.mark.proves("F23", "R19")
@pytest.mark.parametrize(
    "condition", ["replica", pytest.param("login", marks=pytest.mark.refused("role-worker HELLO"))]
)
def test_boot_redis_without_lease_is_waited_for(site, make_server, condition):
    """Redis loads its data, is a replica, or asks for a password: no traceback, no status 1, no error about rights."""
    begin, end, kind = UNAVAILABLE[condition]
    own = make_server()
    with own.open() as client:
        client.execute_command(*begin)
        process = site.worker("-q", "default", REDIS_URL=own.url)
        assert process.line(event_name="boot.waiting")["exception.class"] == f"redis.exceptions.{kind}"
        client.execute_command(*end)
        process.ready()
        assert process.end() == 0
    assert process.errors.read_text() == ""


def test_worker_that_waits_for_redis_stops_on_signal(site, short_path):
    process = site.worker("-q", "default", REDIS_URL=f"unix://{short_path}/absent.sock")
    process.line(event_name="boot.waiting")
    assert process.end() == 0


@pytest.mark.proves("F23")
def test_boot_unreachable_redis_ends_with_75(site, short_path):
    code = "from dataclasses import replace; from framework import timings; "
    code += (
        "timings.use(replace(timings.STANDARD, redis_patience_s=0.1)); from framework.cli.worker import main; main()"
    )
    process = site.start("-c", code, "-r", "jobs", "-q", "default", REDIS_URL=f"unix://{short_path}/absent.sock")
    assert process.wait() == 75
    last = process.line(event_name="boot.unreachable")
    assert "scripts/store start" in last["message"]
    assert "REDIS_URL" in last["message"]
    assert process.errors.read_text() == ""


@pytest.mark.proves("F7", "R1")
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_worker_continues_after_a_redis_outage(site, make_server, redis, proofs, release, end):
    own = make_server()
    process = site.worker("-q", "default", "-c", "2", REDIS_URL=own.url).ready()
    with own.open() as client:
        enqueue(client, "LongWorker", args=["one"], jid="j1")
        proofs("begun:one")
        getattr(own, end)()
        process.line(event_name="redis.failed")
        release("one")  # it ends while Redis is away
        proofs("ended:one")
        own.start()
        enqueue(client, "NoopWorker", jid="j2")
        process.line(job_status="done", jid="j2")
        process.line(job_status="done", jid="j1")
        until(lambda: client.llen(keys.working(process.identity)) == 0, "acknowledged")
    assert process.end() == 0
    assert len(proofs("begun:one")) == 1


@pytest.mark.proves("F14", "R14")
def test_worker_at_maxmemory_continues(site, redis, proofs):
    for number in range(20):
        enqueue(redis, "StrictWorker", args=["does not fit"], jid=str(number))
    process = site.worker("-q", "other", "-q", "default", "-c", "3").ready()
    until(lambda: redis.zcard(keys.RETRY) == 20)
    with full_memory(redis):
        redis.config_set("maxmemory", 0)
        enqueue(redis, "StrictWorker", args=["late"], jid="late")
        redis.config_set("maxmemory", 1)
        until(lambda: redis.zcard(keys.RETRY) == 21, "a job is fetched and its retry kept")
        assert process.popen.poll() is None
    assert process.end() == 0


@pytest.mark.proves("R4")
def test_framework_thread_death_ends_process_with_1(site, redis):
    """Promise 4: a process with a dead thread ends."""
    code = (
        "import framework.recover.reaper as r\n"
        "def broken(self, own=''): raise LookupError('a bug')\n"
        "r.Reaper.sweep = broken\n"
        "from framework.cli.worker import main; main()"
    )
    process = site.start("-c", code, "-r", "jobs", "-q", "default")
    assert process.wait() == 1
    assert "a bug" in process.deaths[0]  # a test that does not read its deaths fails
    died = process.line(event_name="component.died")
    assert process.deaths == []
    assert (died["component"], died["exception.message"]) == ("reaper", "a bug")
    assert not redis.exists(keys.lease(process.identity))


@pytest.mark.proves("F33")
def test_signal_to_forked_child_stops_only_the_child(site, redis, proofs):
    process = site.worker("-q", "default")
    enqueue(redis, "ForkWorker")
    assert proofs("fork") == [str(-signal.SIGTERM)]
    enqueue(redis, "NoopWorker", jid="after")
    assert proofs("noop") == ["after"]
    assert process.popen.poll() is None


@pytest.mark.proves("R4")
def test_repeated_pipeline_error_ends_process_with_1(site, redis, proofs):
    """The pipeline retries ten times and logs each traceback; other processes run the fetched jobs."""
    code = (
        "import framework.fetch.pipeline as e\n"
        "def broken(self, reply): raise TypeError('a bug')\n"
        "e.FetchPipeline._apply_reply = broken\n"
        "from framework.cli.worker import main; main()"
    )
    for number in range(3):
        enqueue(redis, "NoopWorker", jid=f"{number}")
    process = site.start("-c", code, "-r", "jobs", "-q", "default", "-t", "1")
    assert process.wait() == 1
    failed = process.find(event_name="fetch_pipeline.failed")
    assert [line["count"] for line in failed][:10] == list(range(1, 11))
    assert "broken" in failed[0]["exception.backtrace"][0]
    assert process.line(event_name="component.died")["exception.message"] == "a bug"
    site.worker("-q", "default").ready()
    until(lambda: sorted(proofs("noop")) == ["0", "1", "2"])


# --- the counters of a killed process ---------------------------------------------------------------------------------


def test_killed_process_has_counted_every_acknowledged_job(site, redis, proofs):
    process = site.worker("-q", "default").ready()
    for number in range(50):
        enqueue(redis, "NoopWorker", jid=f"j{number}")
    until(lambda: redis.llen("proof:noop") == 50 and not redis.llen(keys.working(process.identity)), "all acknowledged")
    process.kill()  # most likely before its next heartbeat, which it sends every 5 s
    assert redis.get("stat:processed") == b"50"
    (day,) = redis.keys("stat:processed:*")
    assert redis.get(day) == b"50"


def test_record_killed_process_loses_counts_of_one_heartbeat(site, redis):
    process = site.hurried_worker("-q", "default").ready()
    for number in range(5):
        enqueue(redis, "FailWorker", args=["x"], jid=f"f{number}", retry=3)
        enqueue(redis, "FailWorker", args=["x"], jid=f"n{number}", retry=False)

    def counted():
        return redis.get("stat:processed"), redis.get("stat:failed")

    until(lambda: counted() == (b"10", b"10"), "a heartbeat reports them, and all are acknowledged")
    process.kill()
    assert counted() == (b"10", b"10")
