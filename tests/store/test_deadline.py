"""Check that each call has one deadline, also against a Redis that answers byte by byte."""

import gc
import socket
import threading

import pytest
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.errors import ShardUnavailableError
from framework.fetch.pipeline import FetchCall
from framework.fetch.unit_of_work import UnitOfWork
from framework.process.heartbeat import ProcessLease
from framework.recover.reaper import FailureDetector
from framework.shard.shard import Shard
from framework.store import deadline as deadline_module
from framework.store.channel import Channel
from framework.store.connect import Endpoint, open_client
from framework.store.deadline import SLOWEST_BYTES_PER_S, Deadline
from framework.store.script import HEARTBEAT
from framework.timings import STANDARD
from framework.wire import keys
from framework.wire.resources import UniqueJobs
from tests.harness import IDENTITY, until
from tests.servers.guarded import with_all_rights
from tests.servers.proxy import Proxy

LIMIT_S = 0.8
DRIP_S = 0.3
"""Each byte is in time for a time-out of the socket, and three make a call late."""


@pytest.fixture
def proxy(redis, redis_url):
    with Proxy(redis_url) as one:
        yield one


@pytest.fixture
def client(proxy):
    """A client with the role's rights, for code of the framework."""
    with open_client(Endpoint(proxy.url), name="tests", read_timeout_s=LIMIT_S) as one:
        yield one


@pytest.fixture
def unlimited(proxy):
    """A client with all rights, for commands of an application."""
    with open_client(Endpoint(with_all_rights(proxy.url)), name="tests", read_timeout_s=LIMIT_S) as one:
        yield one


def run_script(client):
    return HEARTBEAT(
        client,
        [keys.lease(IDENTITY), keys.REGISTRY, keys.process(IDENTITY), keys.STEADY_SINCE],
        [IDENTITY, 15_000, 1, 6_000],
    )


def run_pipeline(client):
    return client.pipeline(transaction=False).get("a").get("b").execute()


def run_transaction(client):
    return client.pipeline().get("a").get("b").execute()


def beat(client):
    return ProcessLease(client, IDENTITY, 1, FailureDetector(15.0, 3.0)).renew()


def subscribe(client):
    with client.pubsub() as one:
        one.subscribe("channel")
        return one.parse_response()


CALLS = {
    "command": lambda client: client.set("a", 1),
    "script": run_script,
    "pipeline": run_pipeline,
    "transaction": run_transaction,
    "beat": beat,
    "subscription": subscribe,
}
OWN = (run_script, beat)
"""Code of the framework; the others are calls of an application."""


@pytest.mark.proves("R3", "F11")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("connected", [True, False], ids=["", "connecting"])
def test_call_with_a_slow_reply_ends_at_its_deadline(client, unlimited, proxy, call, connected):
    used = client if call in OWN else unlimited
    if connected:
        call(used)
    proxy.drip_s = DRIP_S
    with pytest.raises(RedisTimeoutError):
        call(used)
    proxy.heal()
    call(used)


@pytest.mark.proves("R3", "F11")
@pytest.mark.parametrize("connected", [True, False], ids=["", "connecting"])
def test_fetch_with_a_slow_reply_ends_at_its_deadline(client, proxy, redis, connected):
    redis.lpush("queue:q", b"x" * 100)
    redis.set(keys.lease(IDENTITY), 1)
    call = FetchCall(client, IDENTITY, read_timeout_s=LIMIT_S, lease_ms=STANDARD.lease_ms)

    def fetch(wanted):
        call.send([UnitOfWork("q", b"done")], [("q", wanted)], wanted, 0.0)
        return call.read()

    if connected:
        assert fetch(0).units == []
    proxy.drip_s = DRIP_S
    with pytest.raises(RedisTimeoutError):
        fetch(1)
    assert not call.pending
    proxy.heal()
    assert fetch(0).lease_held
    call.close()


PUSHES = {
    "one": lambda shard: shard.enqueue_one("q", b"job"),
    "bulk": lambda shard: shard.enqueue("q", [b"job"] * 1_000, "token"),
    "later": lambda shard: shard.schedule([(1.0, b"job")], "token"),
    "unique": lambda shard: shard.enqueue_unique("q", UniqueJobs((), [b"job"], ["aw:lock:a"], ["jid"])),
    "states": lambda shard: shard.states(["a"]),
}


@pytest.mark.proves("R3", "F11", "F21")
@pytest.mark.parametrize("push", PUSHES.values(), ids=PUSHES)
@pytest.mark.parametrize("connected", [True, False], ids=["", "connecting"])
def test_push_with_a_slow_reply_opens_the_circuit(proxy, redis, push, connected):
    endpoint = Endpoint(proxy.url, options=(("socket_timeout", LIMIT_S),))
    shard = Shard("second", endpoint, role="tests", read_timeout_s=LIMIT_S)
    if connected:
        shard.enqueue_one("q", b"first")
    proxy.drip_s = DRIP_S
    with pytest.raises(ShardUnavailableError) as failed:
        push(shard)
    assert isinstance(failed.value.__cause__, RedisTimeoutError)
    assert failed.value.maybe_written is (connected and push is not PUSHES["states"])
    assert shard._connection._circuit.open
    with pytest.raises(ShardUnavailableError, match="nothing was sent"):
        push(shard)
    shard.close()


@pytest.fixture
def slow_reader():
    """A server that reads a kilobyte at intervals and sends no reply."""
    listener, over = socket.create_server(("127.0.0.1", 0)), threading.Event()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)

    def serve():
        connection, _ = listener.accept()
        with connection:
            while not over.is_set() and (packet := connection.recv(200)).count(b"CLIENT"):
                connection.sendall(b"+OK\r\n" * packet.count(b"CLIENT"))
            while not over.wait(0.05) and connection.recv(1_024):
                pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"redis://127.0.0.1:{listener.getsockname()[1]}?protocol=2"
    over.set()
    listener.close()
    thread.join()


@pytest.mark.proves("R3")
@pytest.mark.parametrize("client_kind", ["channel", "client"])
def test_send_to_a_slow_reader_ends_at_its_deadline(slow_reader, client_kind):
    client = open_client(Endpoint(slow_reader), name="tests", read_timeout_s=LIMIT_S)
    large = b"x" * 20_000_000
    with pytest.raises(RedisTimeoutError):
        if client_kind == "client":
            client.set("key", large)
        else:
            Channel(client, read_timeout_s=LIMIT_S).call("SET", "key", large)
    client.close()


@pytest.mark.campaign
@pytest.mark.proves("R12")
@pytest.mark.parametrize("client_kind", ["channel", "client"])
def test_large_payload_on_a_narrow_network_arrives(proxy, redis, client_kind):
    """The transfer takes twice as long as the limit and makes progress throughout."""
    limit_s = 2.0
    large = b"x" * int(2 * limit_s * 16 * SLOWEST_BYTES_PER_S)
    redis.set("large", large)
    with open_client(Endpoint(with_all_rights(proxy.url)), name="tests", read_timeout_s=limit_s) as client:
        channel = Channel(client, read_timeout_s=limit_s)
        assert client.get("none") is channel.call("GET", "none") is None
        proxy.bytes_per_s = 16 * SLOWEST_BYTES_PER_S
        if client_kind == "client":
            assert client.get("large") == large
        else:
            assert channel.call("GET", "large") == large
        channel.close()


@pytest.mark.proves("R3")
def test_late_message_is_no_reply_to_a_later_call(unlimited, redis):
    """A subscription may wait longer than any call; a read with its own timeout keeps that timeout."""
    with unlimited.pubsub() as one:
        one.subscribe("channel")
        assert one.get_message(timeout=5)["type"] == "subscribe"
        for number in range(3):
            assert one.get_message(timeout=LIMIT_S) is None
            redis.publish("channel", number)
            assert until(lambda one=one: one.get_message(timeout=LIMIT_S))["data"] == b"%d" % number


@pytest.mark.proves("R3")
def test_command_on_an_old_connection_has_a_full_deadline(unlimited, redis):
    """The time to connect counts for the first command only."""
    connection = unlimited.connection_pool.get_connection()
    made = connection.deadline
    connection.send_command("PING")
    assert connection.read_response() == b"PONG"
    assert connection.deadline is made
    until(lambda: deadline_module.monotonic() - connection._ready_at > 2 * deadline_module._SAME_CALL_S)
    connection.send_command("PING")
    assert connection.read_response() == b"PONG"
    assert connection.deadline is not made
    assert not connection.in_call
    unlimited.connection_pool.release(connection)


def test_deadline_is_extended_only_at_the_minimum_rate(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(deadline_module, "monotonic", lambda: now[0])
    slow_deadline = Deadline(100.0, 5.0)
    for _ in range(4):
        now[0] += 1.2
        slow_deadline.add_bytes(1)
        assert 0 < slow_deadline.left_s() <= 5.0
    now[0] += 1.2
    with pytest.raises(TimeoutError, match="not done within 5 s"):
        slow_deadline.left_s()
    moving = Deadline(now[0], 5.0)
    moving.add_bytes(50_000_000)  # bytes in the kernel's buffers are no progress
    for _ in range(60):
        now[0] += 1.0
        moving.add_bytes(SLOWEST_BYTES_PER_S + 1_000)
        assert moving.left_s() > 0
    now[0] += 4.1
    with pytest.raises(TimeoutError):
        moving.left_s()


def test_deadline_is_not_extended_by_the_first_bytes(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(deadline_module, "monotonic", lambda: now[0])
    one = Deadline(100.0, 5.0)
    one.add_bytes(50_000_000)
    now[0] = 105.01
    with pytest.raises(TimeoutError):
        one.left_s()


def test_deadline_errors_are_redis_errors(unlimited, proxy):
    proxy.swallow()
    with pytest.raises(RedisError):
        unlimited.get("a")
    with pytest.raises(RedisError):
        Channel(unlimited, read_timeout_s=LIMIT_S).call("PING")


@pytest.mark.parametrize("opened", ["channel", "connection"])
def test_connection_dropped_unclosed_ends_at_once(redis, redis_url, opened):
    """The last reference closes the connection. Otherwise Redis keeps the client until the garbage collector runs."""
    with open_client(Endpoint(with_all_rights(redis_url)), name="dropped") as client:
        gc.disable()
        try:
            if opened == "channel":
                one = Channel(client, read_timeout_s=LIMIT_S)
                one.call("PING")
            else:
                one = client.connection_pool.make_connection()
                one.connect()
            assert "dropped" in [each["name"] for each in redis.client_list()]
            del one
            until(lambda: "dropped" not in [each["name"] for each in redis.client_list()], "the connection's end")
        finally:
            gc.enable()
