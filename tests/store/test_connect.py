"""Check the connections of clients: through Sentinels with and without a password, and without automatic retries."""

import contextlib
import subprocess
import time

import pytest
from redis.exceptions import RedisError

from framework.store.connect import Endpoint, epoch_s, open_client, server_time
from tests.conftest import binary_or_skip
from tests.harness import until

SECRET = "open sesame"


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def started(short_path):
    """Start redis-server with lines of configuration; return its port."""
    running = []

    def start(*lines, sentinel=False):
        port = free_port()
        file = short_path / f"{port}.conf"
        file.write_text("\n".join([f"port {port}", "bind 127.0.0.1", f"dir {short_path}", 'save ""', *lines]))
        argv = [str(binary_or_skip("redis-server")), str(file), *(["--sentinel"] if sentinel else [])]
        running.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL))
        return port

    yield start
    for process in running:
        process.kill()
        process.wait()


@pytest.mark.parametrize("guarded", [True, False], ids=["sentinel with password", "sentinel without"])
@pytest.mark.parametrize("protocol", [2, 3])
def test_client_finds_a_guarded_redis_by_its_sentinel(started, guarded, protocol):
    port = started(f'requirepass "{SECRET}"')
    lines = [f"sentinel monitor house 127.0.0.1 {port} 1", f'sentinel auth-pass house "{SECRET}"']
    if guarded:
        lines.append(f'requirepass "{SECRET}"')
    sentinel = started(*lines, sentinel=True)
    options = (("password", SECRET), ("protocol", protocol))
    endpoint = Endpoint("", (("127.0.0.1", sentinel),), "house", options)
    client = open_client(endpoint, name="tests")

    def answers():
        with contextlib.suppress(RedisError):
            return client.ping()

    assert until(answers, "the sentinel names a master that answers")
    assert client.connection_pool.get_master_address()[1] == port
    client.close()
    for one in client.connection_pool.sentinel_manager.sentinels:
        one.close()


@pytest.mark.proves("R3")
def test_client_unreachable_sentinel_fails_within_10_s():
    endpoint = Endpoint("", (("127.0.0.1", 1),), "house")
    assert endpoint.shown == "house of the sentinels 127.0.0.1:1"
    client = open_client(endpoint, name="tests")
    began = time.monotonic()
    with pytest.raises(RedisError, match="house"):
        client.ping()
    assert time.monotonic() - began < 10


def test_epoch_s_of_a_time_reply_has_microseconds():
    assert epoch_s((1_700_000_000, 250_000)) == 1_700_000_000.25


def test_server_time_lies_between_two_time_replies(redis):
    before = redis.time()
    assert epoch_s(before) <= server_time(redis) <= epoch_s(redis.time())
