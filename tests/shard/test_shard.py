"""Check the commands that write jobs, against real and scripted servers."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from framework.errors import ShardUnavailableError
from framework.shard import connection as shard_connection
from framework.shard.shard import Shard
from framework.store import channel
from framework.store.connect import Endpoint
from framework.wire import keys
from framework.wire.resources import LockDetails, LockTerms, UniqueJobs
from tests.harness import full_memory, opened, until
from tests.store.scripted import CLOSE, scripted
from tests.tables import each_row

TAKEN = b":1\r\n"
READONLY = b"-READONLY You can't write against a read only replica.\r\n"


@pytest.fixture
def shard(redis, redis_url):
    found = Shard("main", Endpoint(redis_url), role="counted")  # another name than the connections of other tests
    yield found
    found.close()


TERMS = LockTerms("Job", 60.0, drop_duplicate=True, counter="c").encode(LockDetails({}))


def connections(redis):
    return sum(client["name"] == "framework:counted" for client in redis.client_list())


def answering(*answers):
    """A server with one answer per packet."""
    left = iter(answers)
    return scripted(lambda packet: next(left))


def refused(write):
    with pytest.raises(ShardUnavailableError) as caught:
        write()
    return caught.value


def test_enqueue_writes_queue_names_and_jobs(shard, redis):
    shard.enqueue_one("a", b"1")
    shard.enqueue("a", [b"2", b"3"], "token")
    shard.enqueue("ü b", [b"4"], "another")
    shard.enqueue_one("ü b", b"")
    shard.schedule([(5.5, b"5"), (2_000_000_000.123456, b"6")], "third")
    assert redis.lrange("queue:a", 0, -1) == [b"3", b"2", b"1"]
    assert redis.lrange("queue:ü b", 0, -1) == [b"", b"4"]
    assert redis.smembers(keys.QUEUES) == {b"a", "ü b".encode()}
    assert redis.zrange(keys.SCHEDULE, 0, -1, withscores=True) == [(b"5", 5.5), (b"6", 2_000_000_000.123456)]


# --- refusals -------------------------------------------------------------------------------------------------------


@each_row(
    ("line", "words"),
    [
        (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", ("OOM", "maxmemory", "full")),
        (READONLY, ("READONLY", "replica", "Sentinels")),
        (b"-LOADING Redis is loading the dataset in memory\r\n", ("LOADING", "in a moment")),
        (b"-MISCONF Redis is configured to save RDB snapshots, but it is\r\n", ("MISCONF", "disk")),
        (b"-NOREPLICAS Not enough good replicas to write.\r\n", ("NOREPLICAS", "min-replicas-to-write")),
        (b"-NOAUTH Authentication required.\r\n", ("NOAUTH", "username and password")),
        (b"-NOPERM User default has no permissions\r\n", ("NOPERM", "ACL")),
        (b"-WRONGTYPE Operation against a key\r\n", ("WRONGTYPE", "is not a list")),
        (b"-ERR something that is unknown\r\n", ("that is unknown", "with TYPE")),
    ],
)
def test_enqueue_refused_names_the_remedy(line, words):
    with scripted(TAKEN + line) as server:
        shard = opened(server.url)
        error = refused(lambda: shard.enqueue_one("default", b"job"))
        assert not error.maybe_written
        for word in (*words, "'main'", "127.0.0.1"):
            assert word in str(error)
        shard.close()


@pytest.mark.proves("R10", "R17")
@pytest.mark.parametrize("line", [READONLY, b"-LOADING Redis is loading the dataset in memory\r\n"])
def test_enqueue_is_retried_once_where_it_may_help(line):
    with answering(TAKEN + line, TAKEN + TAKEN) as server:
        shard = opened(server.url)
        shard.enqueue_one("default", b"job")
        assert (server.connections, len(server.packets)) == (2, 2)
        shard.close()
    with answering(TAKEN + line, TAKEN + line) as server:
        shard = opened(server.url)
        assert not refused(lambda: shard.enqueue_one("default", b"job")).maybe_written
        assert len(server.packets) == 2
        shard.close()


def test_enqueue_on_a_full_server_is_not_retried():
    with answering(b"-OOM command not allowed\r\n" * 2, b"$-1\r\n") as server:
        shard = opened(server.url)
        refused(lambda: shard.enqueue_one("default", b"job"))
        assert sum(b"LPUSH" in packet for packet in server.packets) == 1
        shard.close()


@pytest.mark.proves("R17")
@pytest.mark.parametrize(
    ("replies", "maybe"),
    [
        (READONLY + READONLY, False),
        (TAKEN + READONLY, True),
        (READONLY + TAKEN, True),
    ],
)
def test_enqueue_partly_refused_is_maybe_written(replies, maybe):
    """A proxy without transactions executes each command at once."""
    unknown = b"-ERR unknown command\r\n"
    whole = TAKEN + unknown + TAKEN + unknown + TAKEN + replies + TAKEN + unknown
    with answering(*[whole] * (1 if maybe else 2)) as server:
        shard = opened(server.url)
        assert refused(lambda: shard.enqueue("a", [b"1", b"2"], "token")).maybe_written == maybe
        shard.close()


def test_enqueue_on_a_replica_closes_all_connections():
    barrier = threading.Barrier(2)

    def two_at_once(packet):
        barrier.wait(20)
        return TAKEN + TAKEN

    with scripted(two_at_once) as server:
        shard = opened(server.url)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda number: shard.enqueue_one("default", b"%d" % number), range(2)))
        assert server.open == 2
        answers = iter([TAKEN + READONLY, TAKEN + TAKEN])
        server.answer = lambda packet: next(answers)
        shard.enqueue_one("default", b"3")
        until(lambda: server.open == 1, "only the new connection is left")
        shard.close()


@pytest.mark.proves("F49", "I25")
def test_enqueue_with_a_wrong_password_is_not_retried():
    with scripted(b"-WRONGPASS invalid username-password pair or user is disabled.\r\n") as server:
        shard = opened(server.url.replace("//", "//:secret@"))
        error = refused(lambda: shard.enqueue_one("default", b"job"))
        assert not error.maybe_written
        assert "username and password" in str(error)
        assert "secret" not in str(error)
        assert server.connections == 1
        shard.close()


def test_enqueue_on_a_full_server_keeps_its_connection(shard, redis):
    with full_memory(redis):
        for _ in range(3):
            refused(lambda: shard.enqueue_one("default", b"job"))
    shard.enqueue_one("default", b"job")
    assert connections(redis) == 1


def test_schedule_partly_refused_is_maybe_written():
    with scripted(TAKEN + READONLY) as server:
        shard = opened(server.url)
        assert refused(lambda: shard.schedule([(5.0, b"%d" % number) for number in range(600)], "token")).maybe_written
        shard.close()


def test_enqueue_on_a_key_of_another_type_is_refused(shard, redis):
    redis.set("queue:default", "text")
    error = refused(lambda: shard.enqueue_one("default", b"job"))
    assert not error.maybe_written
    assert "WRONGTYPE" in str(error)
    redis.flushall()
    redis.set(keys.QUEUES, "text")
    redis.set(keys.SCHEDULE, "text")
    for write in (lambda: shard.schedule([(5.0, b"job")], "token"), lambda: shard.schedule_in(5.0, b"job")):
        error = refused(write)
        assert not error.maybe_written
        assert "WRONGTYPE" in str(error)


def test_enqueue_with_a_refused_queue_name_is_written(shard, redis, caplog):
    """With an error the caller would push the job a second time."""
    redis.set(keys.QUEUES, "text")
    shard.enqueue_one("default", b"1")
    shard.enqueue("default", [b"2", b"3"], "token")
    assert shard.enqueue_unique("default", UniqueJobs(TERMS, [b"4"], ["aw:lock:a"], ["jid"])) == [""]
    assert redis.lrange("queue:default", 0, -1) == [b"4", b"3", b"2", b"1"]
    (line,) = caplog.records
    assert line.levelname == "WARNING"
    assert "queues.write_failed" in line.getMessage()
    assert "does not list it" in line.getMessage()


@pytest.mark.refused("narrow queues", "narrow aw:push:*")
def test_enqueue_without_rights_on_queues_is_written(redis, redis_url, caplog):
    redis.execute_command("ACL", "SETUSER", "narrow", "on", ">secret", "~queue:*", "+@all")
    shard = opened(redis_url.replace("unix://", "unix://narrow:secret@"))
    try:
        shard.enqueue_one("default", b"1")
        shard.enqueue("default", [b"2"], "token")
        assert redis.lrange("queue:default", 0, -1) == [b"2", b"1"]
        assert "queues.write_failed" in caplog.text
    finally:
        shard.close()
        redis.execute_command("ACL", "DELUSER", "narrow")


@pytest.mark.proves("F49", "I25")
def test_enqueue_without_a_password_names_the_remedy(make_server):
    own = make_server()
    shard = opened(own.url)
    with own.open() as client:
        client.config_set("requirepass", "secret")
    error = refused(lambda: shard.enqueue_one("default", b"job"))
    assert not error.maybe_written
    assert "secret" not in str(error)
    shard.close()


# --- lost connections -----------------------------------------------------------------------------------------------


@pytest.mark.proves("F10", "R17")
def test_enqueue_with_a_lost_reply_is_not_retried():
    with answering(CLOSE, TAKEN + TAKEN) as server:
        shard = opened(server.url)
        error = refused(lambda: shard.enqueue_one("default", b"job"))
        assert error.maybe_written
        assert "may have been applied" in str(error)
        assert len(server.packets) == 1
        shard.enqueue_one("default", b"other")
        shard.close()


def test_enqueue_with_a_timeout_is_maybe_written(redis, redis_url, monkeypatch):
    monkeypatch.setattr(shard_connection, "SLOW_FAILURE_S", 60.0)  # the circuit stays closed
    # Long enough for the answered calls on a loaded machine.
    shard = Shard("main", Endpoint(redis_url), role="tests", read_timeout_s=2)
    shard.enqueue_one("default", b"1")
    redis.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    try:
        error = refused(lambda: shard.enqueue_one("default", b"2"))
    finally:
        redis.execute_command("CLIENT", "UNPAUSE")
    assert error.maybe_written
    assert "no answer within" in str(error)
    shard.enqueue_one("default", b"3")  # on another connection: a late reply would answer another call
    shard.close()


def test_enqueue_after_a_restart_of_the_server_succeeds(make_server):
    own = make_server()
    shard = opened(own.url)
    for number in range(4):
        shard.enqueue_one("default", b"%d" % number)
        own.kill()
        own.start()
    shard.enqueue_one("default", b"after")
    assert shard.client.llen("queue:default") == 5
    shard.close()


def test_enqueue_does_not_use_a_closed_idle_connection(monkeypatch):
    monkeypatch.setattr(channel, "HEALTH_CHECK_AFTER_S", 0)
    with scripted(TAKEN + TAKEN) as server:
        shard = opened(server.url)
        shard.enqueue_one("default", b"1")
        (kept, _) = shard._connection._channel_pool._free[0]
        server.hang_up()
        until(lambda: not kept.healthy(), "the end of the connection has come in")
        shard.enqueue_one("default", b"2")
        assert server.connections == 2
        shard.close()


def test_enqueue_without_a_server_is_not_maybe_written(short_path):
    shard = opened(f"unix://{short_path}/gone.sock")
    assert not refused(lambda: shard.enqueue_one("default", b"job")).maybe_written
    assert not refused(lambda: shard.schedule_one(5.0, b"job")).maybe_written
    shard.close()


# --- connections ----------------------------------------------------------------------------------------------------


@pytest.mark.proves("R56", "I16")
def test_pool_keeps_few_of_the_connections_of_threads(shard, redis):
    together = threading.Barrier(30)

    def push(number):
        together.wait()
        for _ in range(20):
            shard.enqueue_one("default", b"%d" % number)

    with ThreadPoolExecutor(30) as pool:
        list(pool.map(push, range(30)))
    found = redis.lrange("queue:default", 0, -1)
    assert sorted(found) == sorted(b"%d" % number for number in range(30) for _ in range(20))
    until(lambda: connections(redis) <= channel.MAX_IDLE_CHANNELS, "what is too many is closed")
    shard.close()
    until(lambda: connections(redis) == 0, "all are closed")
    shard.enqueue_one("default", b"again")


def test_pool_of_one_thread_opens_one_connection(shard, redis):
    for number in range(10):
        shard.enqueue_one("default", b"%d" % number)
    with full_memory(redis):
        refused(lambda: shard.enqueue_one("default", b"refused"))
    shard.enqueue_one("default", b"taken")
    assert connections(redis) == 1


@pytest.mark.proves("F33", "R63")
def test_pool_after_a_fork_shares_no_connection(shard, redis):
    shard.enqueue_one("default", b"parent 1")
    child = os.fork()
    if not child:
        status = 1
        try:
            for number in range(50):
                shard.enqueue_one("default", b"child %d" % number)
            status = 0 if connections(redis) == 2 else 2
            shard.close()
        finally:
            os._exit(status)
    for number in range(50):
        shard.enqueue_one("default", b"parent %d" % number)
    assert os.waitpid(child, 0)[1] == 0
    shard.enqueue_one("default", b"after")
    assert redis.llen("queue:default") == 102
    assert connections(redis) == 1  # the parent's own, which the child's end has not closed


# --- states of tracked jobs -----------------------------------------------------------------------------------------

RUNNING = b"*2\r\n$7\r\nrunning\r\n$-1\r\n"


@pytest.mark.proves("R17")
def test_read_that_was_cut_off_is_retried_once():
    """A read changes nothing, so it may be sent twice."""
    with answering(CLOSE, RUNNING) as server:
        assert opened(server.url).states(["a", "b"]) == [b"running", None]
        assert server.connections == 2
    with answering(CLOSE, CLOSE, RUNNING) as server:
        assert refused(lambda: opened(server.url).states(["a"])).shard == "main"


def test_write_status_is_not_retried():
    mark = ("SET", keys.status("a"), "running", "EX", 60)
    with answering(CLOSE, b"+OK\r\n") as server:
        assert refused(lambda: opened(server.url).write_status(mark)).maybe_written
        assert len(server.packets) == 1
    with answering(READONLY, b"+OK\r\n") as server:  # the address leads to another server by now
        opened(server.url).write_status(mark)


def test_enqueue_sends_statuses_before_jobs_in_one_packet():
    status_commands = [("SET", keys.status(jid), "queued", "EX", 60) for jid in "ab"]
    done = b"*4\r\n:2\r\n:1\r\n$1\r\n2\r\n:1\r\n"
    with answering(b"+OK\r\n" * 2 + TAKEN * 8 + done) as server:
        opened(server.url).enqueue("q", [b"1", b"2"], "token", status_commands)
        (packet,) = server.packets
    places = [packet.index(word) for word in (b"aw:status:a", b"aw:status:b", b"SADD", b"LPUSH")]
    assert places == sorted(places)


def test_enqueue_with_only_statuses_written_is_not_written():
    """The server became a replica between status and job: the status is deleted, and both go to the next server."""
    mark = ("SET", keys.status("a"), "queued", "EX", 60)
    with answering(b"+OK\r\n" + TAKEN + READONLY, TAKEN, b"+OK\r\n" + TAKEN + TAKEN) as server:
        opened(server.url).enqueue_one("q", b"job", [mark])
        assert [b"LPUSH" in packet for packet in server.packets] == [True, False, True]
        assert b"UNLINK" in server.packets[1]


def test_enqueue_of_tracked_jobs_with_a_lost_reply():
    with answering(CLOSE) as server:
        mark = ("SET", keys.status("a"), "queued", "EX", 60)
        assert refused(lambda: opened(server.url).enqueue_one("q", b"job", [mark])).maybe_written
        assert len(server.packets) == 1


def test_waiting_payload_is_found_by_its_bytes(shard):
    shard.enqueue_one("default", b"job")
    shard.schedule_one(1.0, b"later")
    assert shard.is_waiting("default", b"job")
    assert not shard.is_waiting("default", b"later")
    assert shard.is_waiting(None, b"later")
    assert not shard.is_waiting(None, b"job")
