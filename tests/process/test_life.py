"""How a worker process starts, is quiet, stops, dies; and what becomes of its jobs."""

import json
import signal

import pytest

from framework.fetch.reaper import retire
from framework.store.connect import Endpoint, open_client
from framework.wire import keys
from tests.harness import enqueue, full_memory, until


def queued(redis, name="default"):
    """Next to run first."""
    return [json.loads(data) for data in reversed(redis.lrange(keys.queue(name), 0, -1))]


@pytest.mark.proves("F4", "I12", "I24")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_unfinished_jobs_go_back_where_they_came_from(site, redis, proofs, number):
    enqueue(redis, "LongWorker", args=["one"], jid="j1")
    enqueue(redis, "LongWorker", args=["two"], jid="j2", interrupted_count=1)
    enqueue(redis, "NoopWorker", jid="waiting")
    process = site.worker("-q", "default", "-c", "2", "-t", "0").ready()
    proofs("begun:one"), proofs("begun:two")
    assert process.end(number) == 0
    assert [(job["jid"], job.get("interrupted_count")) for job in queued(redis)] == [
        ("j1", 1),
        ("j2", 2),
        ("waiting", None),
    ]
    stopped = process.line(event_name="process.stopped")
    assert (stopped["returned"], stopped["finished"]) == (2, False)
    assert process.line(event_name="process.stopping")["signal"] == number.name
    left = {key for key in redis.keys("*") if not key.startswith((b"proof:", b"stat:"))}
    assert left - {b"aw:beats", b"aw:parked:watch"} == {b"queues", b"queue:default"}  # those two run out by themselves
    assert not process.find(job_status="fail")


@pytest.mark.proves("F3")
def test_what_ends_in_time_is_done(site, redis, proofs, release):
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


@pytest.mark.proves("F28", "R69")
def test_a_job_that_cannot_be_stopped_does_not_keep_the_process(site, redis, proofs):
    enqueue(redis, "StubbornWorker")
    process = site.worker("-q", "default", "-t", "0").ready()
    proofs("begun:stubborn")
    assert process.end() == 0
    assert len(queued(redis)) == 1


def test_a_quiet_process_takes_nothing_new_and_ends_what_it_has(site, redis, proofs, release):
    enqueue(redis, "LongWorker", args=["one"])
    process = site.hurried_worker("-q", "default", "-c", "2").ready()
    proofs("begun:one")
    process.send(signal.SIGTSTP)
    process.line(event_name="process.quiet")
    until(lambda: not [client for client in redis.client_list() if "b" in client["flags"]], "the parked calls end")
    enqueue(redis, "NoopWorker")
    release("one")
    proofs("ended:one")
    until(lambda: not redis.llen(keys.working(process.identity)))
    assert redis.llen("queue:default") == 1
    until(lambda: redis.hget(process.identity, "quiet") == b"true", "the record says so")
    assert process.end() == 0
    assert not redis.exists("proof:noop")


def test_stacks_are_dumped_with_their_jobs(site, redis, proofs):
    enqueue(redis, "LongWorker", args=["one"], jid="j1")
    process = site.worker("-q", "default", "-t", "0").ready()
    proofs("begun:one")
    process.send(signal.SIGTTIN)
    stack = process.line(event_name="process.stack", jid="j1")
    assert any("jobs.py" in frame and "perform" in frame for frame in stack["stack"])
    assert process.line(event_name="process.stack", thread="MainThread")
    assert process.end() == 0


def test_a_dashboard_may_ask_through_redis(site, redis):
    process = site.hurried_worker("-q", "default").ready()
    redis.lpush(keys.signals(process.identity), "TERM")
    assert process.wait() == 0


@pytest.mark.proves("R70")
def test_the_record_is_what_sidekiqs_pages_read(site, redis, proofs):
    enqueue(redis, "LongWorker", args=["one"], jid="j1")
    process = site.hurried_worker("-q", "default,2", "-q", "other,1", "-c", "3", "-t", "0").ready()
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
    assert 0 < redis.ttl(identity) <= 60
    for key in keys.work(identity):
        (work,) = redis.hvals(key)
        entry = json.loads(work)
        assert (entry["queue"], json.loads(entry["payload"])["jid"], type(entry["run_at"])) == ("default", "j1", int)
    assert process.end() == 0


# --- death ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("R18", "I8")
def test_the_jobs_of_a_killed_process_are_taken_back_by_another(site, redis, proofs, release):
    enqueue(redis, "LongWorker", args=["one"], jid="j1", bid="kept")
    first = site.worker("-q", "default").ready()
    proofs("begun:one")
    first.kill()
    assert redis.llen(keys.working(first.identity)) == 1
    retire(redis, first.identity)  # what a supervisor does that has seen it die
    release("one")
    second = site.worker("-q", "default")
    assert proofs("ended:one") == [str(second.pid)]
    back = second.line(job_status="recovered")
    assert (back["jid"], back["owner"], back["interrupted_count"]) == ("j1", first.identity, 1)
    assert second.line(job_status="done", jid="j1")["interrupted_count"] == 1
    until(lambda: redis.exists(keys.working(first.identity)) == 0)


@pytest.mark.proves("R18", "R30", "I8")
def test_a_tracked_job_runs_again_after_a_kill_and_says_so(site, redis, proofs, release):
    """Completed is said before the job leaves Redis: what runs twice is running twice, and is never completed before."""
    enqueue(redis, "LongWorker", args=["one"], jid="j1", status_expiration=600)
    first = site.worker("-q", "default").ready()
    proofs("begun:one")
    assert redis.get(keys.status("j1")) == b"running"
    first.kill()
    retire(redis, first.identity)
    second = site.worker("-q", "default")
    proofs("begun:one", 2)
    assert redis.get(keys.status("j1")) == b"running"
    release("one")
    assert proofs("ended:one") == [str(second.pid)]
    until(lambda: redis.get(keys.status("j1")) == b"completed")
    assert 590 < redis.ttl(keys.status("j1")) <= 600


@pytest.mark.proves("R24", "I6")
def test_a_job_that_kills_too_often_is_quarantined_and_its_class_told(site, redis, proofs):
    enqueue(  # its class allows two
        redis, "LongWorker", args=["one"], jid="j1", interrupted_count=2, status_expiration=600
    )
    first = site.worker("-q", "default").ready()
    proofs("begun:one")
    first.kill()
    retire(redis, first.identity)
    second = site.worker("-q", "default").ready()
    assert proofs("exhausted") == ["j1"]
    assert second.line(job_status="quarantined")["destination"] == "interrupted"
    (job,) = redis.zrange(keys.INTERRUPTED, 0, -1)
    assert json.loads(job)["interrupted_count"] == 3
    assert redis.llen("queue:default") == 0
    until(lambda: redis.get(keys.status("j1")) == b"failed")


@pytest.mark.proves("I1")
def test_a_process_that_stops_leaves_what_it_lost_sight_of_to_others(site, redis):
    """A fetch whose reply was lost: the job is in the working list and in nobody's memory."""
    process = site.worker("-q", "default").ready()
    enqueue(redis, "NoopWorker", jid="lost", queue="side")
    redis.lmove("queue:side", keys.working(process.identity), "RIGHT", "LEFT")
    assert process.end() == 0
    if redis.llen("queue:side"):
        return  # it was found and given back
    assert redis.llen(keys.working(process.identity)) == 1
    site.worker("-q", "other")
    until(lambda: redis.llen("queue:side") == 1, "taken back")


# --- Redis in trouble -----------------------------------------------------------------------------------------------


@pytest.mark.proves("F23")
def test_a_worker_started_before_its_redis_waits_for_it(site, make_server, redis):
    own = make_server()
    url = own.url
    own.stop()
    process = site.worker("-q", "default", REDIS_URL=url, PROOF_URL=site.url)
    waiting = process.line(event_name="boot.waiting")
    assert waiting["exception.class"].startswith("redis.exceptions.")
    assert waiting["address"] == url
    own.start()
    process.ready()
    with open_client(Endpoint(own.url), name="tests") as client:
        enqueue(client, "NoopWorker")
    process.line(job_status="done")
    assert process.end() == 0


@pytest.mark.proves("F23", "R19")
def test_a_redis_that_answers_but_takes_no_lease_yet_is_waited_for(site, make_server):
    """One that loads, is a replica, or dies between two commands: no traceback, no status 1."""
    own = make_server()
    with open_client(Endpoint(own.url), name="tests") as client:
        client.execute_command("ACL", "SETUSER", "default", "-eval", "-evalsha")
        process = site.worker("-q", "default", REDIS_URL=own.url, PROOF_URL=site.url)
        assert process.line(event_name="boot.waiting")["exception.class"] == "redis.exceptions.NoPermissionError"
        client.execute_command("ACL", "SETUSER", "default", "+eval", "+evalsha")
        process.ready()
        assert process.end() == 0
    assert process.errors.read_text() == ""


def test_a_worker_that_waits_for_redis_can_be_stopped(site, short_path):
    process = site.worker("-q", "default", REDIS_URL=f"unix://{short_path}/nobody.sock")
    process.line(event_name="boot.waiting")
    assert process.end() == 0


@pytest.mark.proves("F23")
def test_an_unreachable_redis_ends_in_75(site, short_path):
    code = "import framework.wiring.server as s; s.BOOT_PATIENCE_S = 0.1; from framework.cli.worker import main; main()"
    process = site.start("-c", code, "-r", "jobs", "-q", "default", REDIS_URL=f"unix://{short_path}/nobody.sock")
    assert process.wait() == 75
    last = process.line(event_name="boot.unreachable")
    assert "scripts/store start" in last["message"]
    assert "REDIS_URL" in last["message"]
    assert process.errors.read_text() == ""


@pytest.mark.proves("F7", "R1")
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_work_goes_on_when_redis_comes_back(site, make_server, redis, proofs, release, end):
    own = make_server()
    process = site.worker("-q", "default", "-c", "2", REDIS_URL=own.url).ready()
    with open_client(Endpoint(own.url), name="tests") as client:
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
def test_work_goes_on_at_maxmemory(site, redis, proofs):
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
def test_a_dead_thread_of_the_framework_ends_the_process_with_1(site, redis):
    """Promise 4: no process may stand there with a part of it dead."""
    code = (
        "import framework.fetch.reaper as r\n"
        "def broken(self, own=''): raise LookupError('a bug of ours')\n"
        "r.Reaper.sweep = broken\n"
        "from framework.cli.worker import main; main()"
    )
    process = site.start("-c", code, "-r", "jobs", "-q", "default")
    assert process.wait() == 1
    died = process.line(event_name="component.died")
    assert (died["component"], died["exception.message"]) == ("reaper", "a bug of ours")
    assert not redis.exists(keys.lease(process.identity))


@pytest.mark.proves("F33")
def test_what_is_sent_to_a_forked_child_stops_the_child_and_not_us(site, redis, proofs):
    process = site.worker("-q", "default")
    enqueue(redis, "ForkWorker")
    assert proofs("fork") == [str(-signal.SIGTERM)]
    enqueue(redis, "NoopWorker", jid="after")
    assert proofs("noop") == ["after"]
    assert process.popen.poll() is None
