"""Check which errors of a shard are outages, during which pushes may be kept."""

import pytest
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.errors import ShardUnavailableError
from framework.shard.redis_errors import is_outage, unavailable_error
from framework.store.connect import Endpoint

OUTAGES = [
    None,
    RedisConnectionError("Connection refused"),
    RedisTimeoutError("Timeout reading from socket"),
    BusyLoadingError("Redis is loading the dataset in memory"),
    ResponseError("OOM command not allowed when used memory > 'maxmemory'."),
    ResponseError("MISCONF Redis is configured to save RDB snapshots"),
]
REFUSALS = [
    AuthenticationError("WRONGPASS invalid username-password pair"),
    NoPermissionError("this user has no permissions to run the 'lpush' command"),
    ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
    ResponseError("MOVED 866 127.0.0.1:7001"),
]


def failure(cause):
    error = ShardUnavailableError("main", "it failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(("causes", "wanted"), [(OUTAGES, True), (REFUSALS, False)])
def test_outages_and_refusals_are_told_apart(causes, wanted):
    assert [cause for cause in causes if is_outage(failure(cause)) is not wanted] == []


def test_failed_script_is_told_apart_from_a_silent_server():
    endpoint = Endpoint("redis://localhost:6379/0")
    script = ResponseError("ERR Error running script: user_script:3: attempt to index a nil value")
    failed, silent = (
        str(unavailable_error("main", endpoint, one)) for one in (script, RedisConnectionError("refused"))
    )
    assert failed.startswith("shard 'main' refuses the command: redis://localhost:6379/0: ERR Error running script")
    assert "it runs, but a command or script on it failed" in failed
    assert "store start" not in failed
    assert silent.startswith("shard 'main' is unavailable: ")
    assert "store start" in silent
