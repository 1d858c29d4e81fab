"""Check that a silent shard costs few callers their time, and that an answering shard is never refused."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from framework.errors import ShardUnavailableError
from framework.shard import connection as shard_connection
from framework.shard.connection import PROBE_PERIOD_S
from framework.shard.shard import Shard
from framework.store.connect import Endpoint
from tests.harness import full_memory, server_lines, until
from tests.servers.proxy import Proxy

READ_S = 0.6
BACK_S = 5.0
"""The promised time from the shard's return until pushes succeed."""


@pytest.fixture
def proxy(redis_url):
    with Proxy(redis_url) as found:
        yield found


@contextmanager
def opened_shard(url, read_timeout_s):
    found = Shard("second", Endpoint(url), role="tests", read_timeout_s=read_timeout_s)
    yield found
    found.close()


@pytest.fixture
def shard(redis, proxy):
    with opened_shard(proxy.url, READ_S) as found:
        yield found


@pytest.fixture
def patient_shard(redis, proxy):
    """A shard whose time-out no delay of a test reaches, also on a loaded machine."""
    with opened_shard(proxy.url, 20.0) as found:
        yield found


def attempt(shard, payload=b"job"):
    """Push; return the error, or ``None``, and the seconds it took."""
    began = time.monotonic()
    try:
        shard.enqueue_one("default", payload)
    except ShardUnavailableError as error:
        return error, time.monotonic() - began
    return None, time.monotonic() - began


def is_taken(shard, payload):
    error, _ = attempt(shard, payload)
    return error is None


@pytest.mark.proves("F21", "F11")
def test_circuit_of_a_silent_shard_lets_only_one_push_wait(shard, redis, proxy):
    with server_lines("info") as read, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: attempt(shard), range(4)))  # each keeps a connection
        redis.delete("queue:default")
        proxy.swallow()
        error, took_s = attempt(shard)
        assert error.maybe_written
        assert took_s >= READ_S
        began = time.monotonic()
        errors = [attempt(shard)[0] for _ in range(20)]
        probes = [error for error in errors if "not answered for" not in str(error)]
        assert len(probes) <= (time.monotonic() - began) / PROBE_PERIOD_S
        assert len(proxy.open) <= len(probes), "a push that is refused at once makes no connection"
        assert not any(error.maybe_written for error in errors)
        assert all("'second'" in str(error) for error in errors)
        with pytest.raises(ShardUnavailableError):
            shard.states(["jid"])
        proxy.heal()
        with full_memory(redis):
            until(lambda: "maxmemory" in str(attempt(shard)[0]), "it answers, if only to refuse", BACK_S)
        assert all(is_taken(shard, b"again") for _ in range(5))  # no push uses an old connection
        assert redis.lrange("queue:default", 0, -1) == [b"again"] * 5
    events = [line["event_name"] for line in read()]
    assert events == ["shard.circuit_open", "shard.circuit_closed"]


@pytest.mark.proves("F22")
def test_circuit_of_a_slow_shard_stays_closed(patient_shard, proxy):
    assert is_taken(patient_shard, b"first")  # connecting takes several round trips, and counts
    proxy.delay_s = 0.3
    for _ in range(3):
        error, took_s = attempt(patient_shard)
        assert error is None
        assert took_s >= 0.3


@pytest.mark.proves("F14")
def test_circuit_counts_a_slow_refusal_as_a_reply(patient_shard, redis, proxy):
    assert is_taken(patient_shard, b"job")
    proxy.delay_s = 0.3
    with full_memory(redis):
        for _ in range(2):
            error, took_s = attempt(patient_shard)
            assert "maxmemory" in str(error)
            assert took_s >= 0.3
    assert is_taken(patient_shard, b"job")


@pytest.mark.proves("F21")
def test_circuit_of_a_stopped_shard_stays_closed(make_server, monkeypatch):
    monkeypatch.setattr(shard_connection, "SLOW_FAILURE_S", 60.0)  # a refusal by the system is never so slow
    own = make_server()
    shard = Shard("second", Endpoint(own.url), role="tests")
    own.stop()
    for _ in range(20):
        error, _ = attempt(shard)
        assert not error.maybe_written
        assert "not answered for" not in str(error)
    own.start()
    assert is_taken(shard, b"job")
    shard.close()


def test_circuit_with_one_dead_connection_stays_closed(shard, proxy):
    assert is_taken(shard, b"job")
    proxy.lose_replies(b"LPUSH.*dead", {1}, hang=True)
    over = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        dead = pool.submit(attempt, shard, b"dead")
        others = pool.submit(lambda: [attempt(shard, b"other")[0] for _ in iter(over.is_set, True)])
        error, took_s = dead.result(20)
        over.set()
        assert error.maybe_written
        assert took_s >= READ_S
        assert set(others.result(20)) == {None}
    assert is_taken(shard, b"job")


def test_circuit_ignores_calls_sent_before_the_last_reply(shard, proxy):
    assert is_taken(shard, b"job")
    proxy.swallow()
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(attempt, shard)
        until(lambda: not shard._connection._channel_pool._free, "it is under way")
        proxy.heal()
        assert is_taken(shard, b"job")
        error, _ = early.result(20)
    assert error.maybe_written
    assert is_taken(shard, b"job")
