"""Test an unavailable, refusing, forgetting or full Redis: processes recover soon, producers get typed errors.

Every wait for a promise has the promised time as its limit.
"""

import resource
import signal
import threading
from contextlib import contextmanager, suppress

import pytest
from redis.exceptions import RedisError

from tests.harness import until

AT_WORK_AGAIN_S = 10.0
"""Promised are 5 s after Redis is well again; the rest is for a loaded machine."""

PUSHES_AGAIN_S = 5.0
"""Promised from the return of a silent Redis until pushes are accepted."""


def seen_trouble(process, count=1):
    until(lambda: len(process.find(event_name="redis.failed")) >= count, "the process has noticed")


def at_work(scene, process, value):
    """Check that a new job runs soon, and that no job stays in flight."""
    scene.enqueue("NoteWorker", value)
    scene.wait_for("note", value, timeout_s=AT_WORK_AGAIN_S)
    scene.settled(process)
    assert process.popen.poll() is None


@pytest.mark.proves("F7", "F10", "R1")
@pytest.mark.parametrize("fault", ["reset", "client kill", "clean restart", "kill and restart"])
def test_lost_connections_lose_no_job(scene, fault):
    proxy = scene.proxy()
    process = scene.worker("-c", "2", url=proxy.url).ready()
    scene.enqueue("LongWorker", "one")
    scene.wait_for("begun", "one")
    if fault == "reset":
        proxy.reset()
    elif fault == "client kill":
        scene.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    else:
        (scene.server.stop if fault == "clean restart" else scene.server.kill)()
        seen_trouble(process)
        scene.let_end("one")  # ends while Redis is away
        scene.wait_for("ended", "one")
        scene.server.start()
    scene.let_end("one")
    at_work(scene, process, "next")
    scene.once("begun")
    assert process.end() == 0


@pytest.mark.campaign
@pytest.mark.proves("F11", "R1", "R3")
def test_producer_in_network_partition_gets_typed_errors(scene):
    proxy = scene.proxy()
    process = scene.worker("-c", "2", url=proxy.url).ready()
    producer = scene.producer(url=proxy.url)
    assert producer.push("NoteWorker", "before")["jid"]
    scene.enqueue("LongWorker", "one")
    scene.wait_for("begun", "one")
    proxy.swallow()
    scene.let_end("one")  # its acknowledgement is lost in the network
    answer = producer.push("NoteWorker", "into the hole")
    assert (answer["error"], answer["maybe_written"]) == ("ShardUnavailableError", True)
    seen_trouble(process)
    proxy.heal()
    at_work(scene, process, "after")
    until(lambda: "jid" in producer.push("NoteWorker", "again"), "its circuit has closed", PUSHES_AGAIN_S)
    scene.wait_for("note", "again")
    scene.once("begun")
    scene.once()
    assert "into the hole" not in scene.proven("note")
    assert process.end() == 0


@pytest.mark.proves("F16", "R10")
def test_read_only_redis_is_survived(scene):
    process = scene.worker("-c", "2").ready()
    producer = scene.producer()
    scene.enqueue("LongWorker", "one")
    scene.wait_for("begun", "one")
    scene.client.replicaof("127.0.0.1", 1)
    scene.let_end("one")
    answer = producer.push("NoteWorker", "refused")
    assert (answer["error"], answer["maybe_written"]) == ("ShardUnavailableError", False)
    assert "READONLY" in answer["text"].upper() or "read only" in answer["text"]
    seen_trouble(process)
    scene.client.replicaof("NO", "ONE")
    at_work(scene, process, "after")
    assert producer.push("NoteWorker", "taken")["jid"]
    scene.wait_for("note", "taken")
    scene.once("begun")
    assert process.end() == 0


REFUSALS = (
    b"-LOADING Redis is loading the dataset in memory\r\n",
    b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
    b"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n",
    b"-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)\r\n",
    b"-NOREPLICAS Not enough good replicas to write.\r\n",
    b"-ERR max number of clients reached\r\n",
    b"-ERR an unknown error\r\n",
)


@pytest.mark.campaign
@pytest.mark.proves("R2", "R13")
def test_error_reply_of_redis_ends_no_process(scene):
    proxy = scene.proxy()
    process = scene.worker("-c", "2", url=proxy.url).ready()
    producer = scene.producer(url=proxy.url)
    assert producer.push("NoteWorker", "before")["jid"]
    answers = {}
    for number, line in enumerate(REFUSALS):
        before = proxy.refused
        proxy.refusal = line
        answers[line] = producer.push("NoteWorker", f"refused {number}")
        until(lambda before=before: proxy.refused >= before + 5, "the process has been refused, too")
        proxy.heal()
        at_work(scene, process, f"after {number}")
    assert not [value for value in scene.proven("note") if value.startswith("refused")]
    assert {line: answer["error"] for line, answer in answers.items()} == dict.fromkeys(
        REFUSALS, "ShardUnavailableError"
    )
    # an answer came: it is surely not written
    assert not [line for line, answer in answers.items() if answer["maybe_written"]]
    assert process.end() == 0


@pytest.mark.proves("F14", "R14")
def test_full_redis_is_drained_by_the_workers(scene):
    process = scene.worker("-c", "4").ready()
    producer = scene.producer()
    process.send(signal.SIGSTOP)
    values = [f"backlog {number}" for number in range(200)]
    for value in values:
        scene.enqueue("NoteWorker", value)
    scene.enqueue("FailWorker", "fails while full")
    scene.client.config_set("maxmemory", 1)
    process.send(signal.SIGCONT)
    scene.wait_for("note", *values)
    until(lambda: scene.client.zcard("retry") == 1, "its retry is kept")
    answer = producer.push("NoteWorker", "refused")
    assert (answer["error"], answer["maybe_written"]) == ("ShardUnavailableError", False)
    assert "maxmemory" in answer["text"]
    scene.settled(process)
    scene.client.config_set("maxmemory", 0)
    at_work(scene, process, "after")
    scene.once()
    assert process.end() == 0


@contextmanager
def failing_snapshot(scene):
    """Make snapshots fail, by a folder in their place; Redis then refuses to write (MISCONF)."""
    obstacle = scene.server.data_dir / "dump.rdb"
    obstacle.mkdir()
    scene.client.config_set("save", "3600 1")
    scene.client.config_set("stop-writes-on-bgsave-error", "yes")
    scene.client.bgsave()
    until(lambda: scene.client.info("persistence")["rdb_last_bgsave_status"] == "err", "the snapshot failed")
    try:
        yield
    finally:
        obstacle.rmdir()
        scene.client.config_set("stop-writes-on-bgsave-error", "no")


@contextmanager
def full_disk(scene):
    """Let no file of the server grow: its append-only file cannot be written (MISCONF)."""
    files = (scene.server.data_dir / "appendonlydir").iterdir()
    longest = max(file.stat().st_size for file in files)
    resource.prlimit(scene.server.pid, resource.RLIMIT_FSIZE, (longest + 1_000, resource.RLIM_INFINITY))
    with suppress(RedisError):
        scene.client.set("filler", "x" * 10_000)
    until(lambda: scene.client.info("persistence")["aof_last_write_status"] == "err", "a write failed")
    try:
        yield
    finally:
        resource.prlimit(scene.server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        until(lambda: scene.client.info("persistence")["aof_last_write_status"] == "ok", "there is space again")


@pytest.mark.proves("F19", "R13")
@pytest.mark.parametrize("disk", [failing_snapshot, full_disk])
def test_redis_that_cannot_save_loses_no_job(scene, disk):
    process = scene.worker("-c", "2").ready()
    producer = scene.producer()
    scene.enqueue("LongWorker", "one")
    scene.enqueue("NoteWorker", "waiting", queue="later")
    scene.wait_for("begun", "one")
    with disk(scene):
        scene.let_end("one")
        answer = producer.push("NoteWorker", "refused")
        assert (answer["error"], answer["maybe_written"]) == ("ShardUnavailableError", False)
        assert "MISCONF" in answer["text"]
        seen_trouble(process)
    at_work(scene, process, "after")
    scene.once("begun")
    assert process.end() == 0


@pytest.mark.proves("F17", "R12")
@pytest.mark.refused("role-worker evalsha")
def test_redis_losing_its_scripts_loses_no_job(scene):
    process = scene.worker("-c", "4").ready()
    over = threading.Event()

    def flush():
        while not over.wait(0.1):
            scene.client.script_flush()

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        values = [str(number) for number in range(300)]
        for value in values:
            scene.enqueue("NoteWorker", value)
        scene.wait_for("note", *values)
        scene.settled(process)
    finally:
        over.set()
        thread.join()
    scene.once()
    assert not process.find(event_name="redis.failed")
    evalsha_is_denied_for_a_while(scene, process)
    assert process.end() == 0


def evalsha_is_denied_for_a_while(scene, process):
    """No command of the framework works without it, no job is lost, and the line names the command."""
    scene.client.execute_command("ACL", "SETUSER", "role-worker", "-evalsha")
    scene.enqueue("LongWorker", "denied", jid="denied")
    seen_trouble(process)
    scene.client.execute_command("ACL", "SETUSER", "role-worker", "+evalsha")
    scene.let_end("denied")
    at_work(scene, process, "allowed again")
    scene.once("begun")
    assert "evalsha" in str(process.find(event_name="redis.failed")[0])


@pytest.mark.proves("F21")
def test_shard_outage_does_not_affect_other_shards(scene, make_server):
    second = make_server()
    shards = {"main": {"url": scene.url}, "second": {"url": second.url}}
    scene.site.write("redis.yml", {"shards": shards})
    scene.site.write("routing.yml", {"routing_rules": [["worker_name=ElsewhereWorker", None, "second"], ["*", None]]})
    process = scene.worker().ready()
    producer = scene.producer()
    assert producer.push("ElsewhereWorker", "before")["jid"]
    second.stop()
    for number in range(20):
        answer = producer.push("ElsewhereWorker", "lost shard")
        assert (answer["error"], answer["shard"], answer["maybe_written"]) == ("ShardUnavailableError", "second", False)
        assert producer.push("NoteWorker", f"main {number}")["jid"]
    scene.wait_for("note", *(f"main {number}" for number in range(20)))
    second.start()
    assert producer.push("ElsewhereWorker", "back")["jid"]
    assert process.end() == 0
