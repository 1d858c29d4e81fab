import hashlib
import os
import threading

import pytest
from redis.exceptions import (
    BusyLoadingError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.store.channel import Channel
from framework.store.connect import Endpoint, open_client
from framework.store.script import Script
from tests.harness import full_memory, until
from tests.servers.guarded import GuardedServer, with_all_rights
from tests.store.scripted import CLOSE, scripted
from tests.tables import each_row


def channel_to(url, read_timeout_s=5.0):
    return Channel(open_client(Endpoint(url), name="tests"), read_timeout_s=read_timeout_s)


@pytest.fixture
def channel(redis, redis_url):
    opened = channel_to(with_all_rights(redis_url))
    yield opened
    opened.close()


@pytest.fixture
def tcp_server(short_path):
    """Too long a path for a Unix socket, so it listens on loopback."""
    with GuardedServer(short_path / ("x" * 100)) as server:
        assert server.url.startswith("redis://")
        yield server


def test_channel_connects_at_its_first_call(channel, redis):
    assert not channel.open
    assert not channel.healthy()
    assert channel.call("PING") == b"PONG"
    assert channel.open
    assert channel.fileno() >= 0


def test_channel_replies_are_in_the_order_of_commands(channel, redis):
    channel.send(("RPUSH", "list", b"a", "b", 3), ("LLEN", "list"), ("LRANGE", "list", 0, -1))
    assert [channel.read(), channel.read(), channel.read()] == [3, 3, [b"a", b"b", b"3"]]
    channel.send(("GET", "none"), ("PING",))
    assert channel.replies(2) == [None, b"PONG"]


def test_channel_over_tcp_works(tcp_server):
    channel = channel_to(with_all_rights(tcp_server.url))
    assert channel.call("SET", "key", b"\x00\r\n\xff") == b"OK"
    assert channel.call("GET", "key") == b"\x00\r\n\xff"
    assert channel.healthy()
    channel.close()


@pytest.mark.parametrize("protocol", [2, 3])
def test_channel_works_with_each_protocol(redis, redis_url, protocol):
    client = open_client(Endpoint(with_all_rights(redis_url), options=(("protocol", protocol),)), name="tests")
    channel = Channel(client, read_timeout_s=5)
    assert channel.call("HSET", "hash", "a", 1) == 1
    found = channel.call("HGETALL", "hash")
    assert found == ({b"a": b"1"} if protocol == 3 else [b"a", b"1"])
    # False is a value of RESP3, and no sign that a reply is still on its way.
    false_reply = channel.call("EVAL", f"redis.setresp({protocol}); return {{['map'] = {{a = false}}}}", 0)
    assert channel.call("PING") == b"PONG", false_reply
    channel.close()


def test_channel_resp3_false_is_a_reply():
    with scripted(b"#f\r\n") as server:
        channel = channel_to(server.url)
        assert channel.call("PING") is False
        channel.close()


def test_channel_large_packets_and_replies_arrive(channel, redis):
    large = os.urandom(1 << 20) * 20
    assert channel.call("SET", "large", large) == b"OK"
    assert channel.call("GET", "large") == large
    channel.send(*(("ECHO", str(number)) for number in range(5_000)))
    assert channel.replies(5_000) == [str(number).encode() for number in range(5_000)]


def test_channel_packet_larger_than_socket_buffer_arrives(tcp_server):
    channel = channel_to(with_all_rights(tcp_server.url))
    channel.fileno()
    large = b"x" * 50_000_000
    assert channel.call("STRLEN", "large") == 0
    assert channel.call("APPEND", "large", large) == len(large)
    channel.close()


@each_row(
    ("line", "kind", "closed"),
    [
        (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", OutOfMemoryError, False),
        (b"-READONLY You can't write against a read only replica.\r\n", ReadOnlyError, True),
        (b"-LOADING Redis is loading the dataset in memory\r\n", BusyLoadingError, True),
        (b"-NOREPLICAS Not enough good replicas to write.\r\n", ResponseError, True),
        (b"-UNBLOCKED force unblock from blocking operation, instance state changed\r\n", ResponseError, True),
        (b"-NOSCRIPT No matching script.\r\n", NoScriptError, False),
        (b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", ResponseError, False),
    ],
)
def test_channel_error_reply_raises_its_exception_type(line, kind, closed):
    with scripted(line + b"+PONG\r\n") as server:
        channel = channel_to(server.url)
        channel.send(("LPUSH", "a", "b"), ("PING",))
        with pytest.raises(kind) as caught:
            channel.read()
        assert type(caught.value) is kind
        if closed:  # another server may be behind the address: it is resolved again
            assert not channel.open
            with pytest.raises(RedisConnectionError, match="before the replies were read"):
                channel.read()  # at once, and not on a new connection without a command
        else:
            assert channel.read() == b"PONG"
        channel.close()


def test_channel_error_reply_leaves_other_replies(channel, redis):
    redis.set("text", "x")
    with full_memory(redis):
        channel.send(("PING",), ("LPUSH", "text", "y"), ("SET", "more", "x"), ("PING",))
        first, second, third, fourth = channel.replies(4)
    assert (first, fourth) == (b"PONG", b"PONG")
    assert isinstance(second, ResponseError)
    assert isinstance(third, OutOfMemoryError)
    assert channel.open


@pytest.mark.proves("R3")
def test_channel_each_read_has_a_deadline():
    answers = iter([b"+PONG\r\n", b"", b"+PONG\r\n"])
    with scripted(lambda packet: next(answers)) as server:
        # Long enough for the answered calls on a loaded machine.
        channel = channel_to(server.url, read_timeout_s=2)
        assert channel.call("PING") == b"PONG"
        with pytest.raises(RedisTimeoutError, match=r"no answer within 2 s"):
            channel.call("PING")
        assert channel.sent
        assert not channel.open  # a late reply would answer another call
        assert channel.call("PING") == b"PONG"
        assert server.connections == 2
        channel.close()


@pytest.mark.proves("R3")
def test_channel_write_to_a_stuck_server_times_out():
    reading = threading.Event()

    def never(packet):
        reading.wait(20)

    with scripted(never) as server:
        channel = channel_to(server.url, read_timeout_s=0.2)
        with pytest.raises(RedisTimeoutError):
            channel.call("SET", "key", b"x" * 50_000_000)
        assert not channel.open
        reading.set()


@pytest.mark.proves("R11")
def test_channel_partial_write_continues_with_a_new_deadline():
    """A send that wrote a part returns; the next send writes the rest with a new deadline."""
    received = 0

    def slow(packet):
        nonlocal received
        if not received:
            until(lambda: channel.sent, "the first part is sent")
        received += len(packet)
        return b"+OK\r\n" if received > len(large) else b""

    large = b"x" * 50_000_000
    with scripted(slow) as server:
        channel = channel_to(server.url, read_timeout_s=20.0)
        assert channel.call("SET", "key", large) == b"OK"
        channel.close()


def test_channel_reconnects_after_the_server_closes():
    answers = iter([CLOSE, b"+PONG\r\n"])
    with scripted(lambda packet: next(answers)) as server:
        channel = channel_to(server.url)
        with pytest.raises(RedisConnectionError, match="closed"):
            channel.call("PING")
        assert channel.sent
        assert not channel.open
        assert channel.call("PING") == b"PONG"
        assert server.connections == 2
        channel.close()


@pytest.mark.proves("R11")
def test_channel_incomplete_reply_raises():
    with scripted(lambda packet: b"$10\r\nhalf") as server:
        channel = channel_to(server.url, read_timeout_s=0.1)
        with pytest.raises(RedisTimeoutError):
            channel.call("GET", "key")
        channel.close()


@pytest.mark.proves("R11")
def test_channel_invalid_reply_raises():
    with scripted(b"HTTP/1.1 400 Bad Request\r\n") as server:
        channel = channel_to(server.url)
        with pytest.raises(RedisConnectionError, match="Protocol error"):
            channel.call("PING")
        assert not channel.open


def test_channel_without_server_raises(short_path):
    channel = channel_to(f"unix://{short_path}/gone.sock")
    with pytest.raises(RedisConnectionError):
        channel.call("PING")
    assert not channel.sent


def test_idle_channel_detects_the_end_of_its_server(make_server):
    own = make_server()
    channel = channel_to(with_all_rights(own.url))
    assert channel.call("PING") == b"PONG"
    assert channel.healthy()
    assert channel.call("PING") == b"PONG"  # the check has changed nothing
    own.kill()
    assert not channel.healthy()


def test_channel_failed_write_is_not_marked_sent(make_server):
    own = make_server()
    channel = channel_to(with_all_rights(own.url))
    channel.call("PING")
    assert channel.sent
    own.kill()
    with pytest.raises(RedisConnectionError):
        channel.call("SET", "key", "value")
    assert not channel.sent  # a Unix socket without its peer accepts no bytes
    own.start()
    assert channel.call("GET", "key") is None


@pytest.mark.proves("R11")
def test_channel_unexpected_byte_is_unhealthy(redis, redis_url):
    channel = channel_to(with_all_rights(redis_url))
    channel.send(("PING",))
    # The reply is on its way: until it arrives the connection looks healthy.
    while channel.healthy():
        pass
    channel.close()


class Doubling(Script):
    """A script of this test: the scripts of the framework may change."""

    def __init__(self):
        self.name = "doubling"
        self.source = b"redis.call('INCR', KEYS[1]); return 2 * ARGV[1]"
        self.digest = hashlib.sha1(self.source).hexdigest()


@pytest.mark.proves("R12")
def test_channel_sends_an_unknown_script_as_text(channel, redis):
    redis.script_flush()
    with pytest.raises(NoScriptError):
        channel.call(*Doubling().by_digest(1, "runs", 21))
    assert channel.call(*Doubling().by_source(1, "runs", 21)) == 42
    assert channel.call(*Doubling().by_digest(1, "runs", 4)) == 8
    assert redis.get("runs") == b"2"


def test_closed_channel_opens_again(channel, redis):
    channel.close()
    channel.call("PING")
    channel.close()
    channel.close()
    assert channel.call("PING") == b"PONG"
