"""Stand for a shard of the configuration: a database of the server of this process, in which the time of the fake holds.

Every command of every client passes a connection of this file. First it brings the time in the database up to date, where that has
changed. And it sends scripts with another part ``time``, which reads the time there. Redis itself ends keys by its own clock, so a
step of the fake's clock shortens what all keys have left.
"""

import hashlib
import math
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import redis
from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError

from framework.all_settings import Settings
from framework.errors import ShardUnavailableError
from framework.shard.connection import ShardConnection
from framework.shard.routing_validator import RoutingValidator
from framework.shard.shard import Shard
from framework.shard.shards import open_validated_client
from framework.store.channel import ChannelPool
from framework.store.connect import COMMAND_TIMEOUT_S, Endpoint, open_client
from framework.store.script import Script, part_text
from framework.testing.fake_clock import FakeClock, host_time
from framework.testing.server import CLOCK_KEY, fake_server
from framework.wire.status_key import StatusCommand

_SET_TIME = """
redis.call('SET', KEYS[1], ARGV[1])
local passed = tonumber(ARGV[2])
for _, key in ipairs(passed > 0 and redis.call('KEYS', '*') or {}) do
  local left = redis.call('PTTL', key)
  if left > passed then
    redis.call('PEXPIRE', key, string.format('%.0f', left - passed))
  elseif left >= 0 then
    redis.call('DEL', key)
  end
end
"""

_FAKE_PART = f"""
local now_s
local function redis_now()
  if not now_s then
    local text = redis.call('GET', '{CLOCK_KEY}') or '+0'
    now_s = tonumber(string.sub(text, 2))
    if string.sub(text, 1, 1) == '+' then
      local time = redis.call('TIME')
      now_s = now_s + tonumber(time[1]) + tonumber(time[2]) / 1000000
    end
  end
  return now_s
end
""".encode()

_SAME_S = 0.001
"""Two readings of one clock differ by less, if it goes as fast as the host's."""

_UNAVAILABLE = "the test says so"


class _FakeScripts:
    """The scripts with the other part. A server knows a script by the digest of its text, so these have digests of their own."""

    def __init__(self) -> None:
        self._digests: dict[str, str] = {}
        self._scripts: dict[str, Script] = {}

    def translated(self, command: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the command that redis-py shall send in the place of this one."""
        if command[0] == "EVALSHA":
            # One that was never sent is unknown to the server too: its caller sends the text then.
            return ("EVALSHA", self._digests.get(command[1], command[1]), *command[2:])
        if command[0] == "EVAL" and isinstance(command[1], bytes):
            return ("EVAL", self._text(command[1]), *command[2:])
        return command

    def of(self, script: Script) -> Script:
        """Return the script that a push shall send in the place of this one."""
        found = self._scripts.get(script.digest)
        if found is None:
            found = Script(script.name, *script.parts)
            # Reading a text once is a cached property.
            found.__dict__["source"] = self._text(script.source)
            self._scripts[script.digest] = found
        return found

    def _text(self, source: bytes) -> bytes:
        text = source.replace(part_text("time"), _FAKE_PART)
        self._digests[_digest(source)] = _digest(text)
        return text


def _digest(text: bytes) -> str:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()


_SCRIPTS = _FakeScripts()


class _SetTime(NamedTuple):
    """The time that a database shows: that of its clock, or ``frozen`` at one."""

    ahead_s: float
    frozen: float | None


class FakeDatabase:
    """One database of the server. It is used by one fake after the other, and keeps its connections."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.available = True
        """Whether it answers the application; a test may say that it does not."""
        self.shards: dict[str, FakeShard] = {}
        self._lock = threading.Lock()
        self._client = open_client(endpoint, name="framework:testing")
        self._clock: Callable[[], float] = time.time
        self._set = _SetTime(0.0, None)

    def begin(self, clock: FakeClock) -> None:
        """Empty the database for a fake with this clock."""
        self.available, self._clock = True, clock
        self.clear()

    def clear(self) -> None:
        """Delete everything but the time."""
        with self._lock:
            self._set = self._current(self._clock(), host_time())
            pipeline: Any = self._client.pipeline(transaction=False)
            pipeline.flushdb()
            pipeline.set(CLOCK_KEY, _text_of(self._set))
            pipeline.execute()

    def now(self) -> float:
        """Return the time that the database shows."""
        return self._clock()

    def prepare(self) -> None:
        """Bring the time in the database up to date. Raises redis errors."""
        # Two calls of C for a command: the clocks almost never differ from what is set.
        now, host = self._clock(), host_time()
        ahead_s, frozen = self._set
        if now == frozen or (frozen is None and abs(now - host - ahead_s) < _SAME_S):
            return
        with self._lock:
            before = host + self._set.ahead_s if self._set.frozen is None else self._set.frozen
            self._set = self._current(now, host)
            passed_ms = max(0, math.floor((now - before) * 1_000))
            self._client.eval(_SET_TIME, 1, CLOCK_KEY, _text_of(self._set), passed_ms)

    def attach(self, client: "redis.Redis", *, own: bool) -> "redis.Redis":
        """Let all connections of a client, which has none yet, pass this object; ``own``: the fake uses it, not the application."""
        pool: Any = client.connection_pool
        kind = pool.connection_class
        facts = {"database": self, "own": own}
        pool.connection_class = type(f"Fake{kind.__name__}", (_FakeConnection, kind), facts)
        client.set_response_callback("TIME", self._time)
        return client

    def _time(self, *_: Any, **__: Any) -> tuple[int, int]:
        fraction, seconds = math.modf(self._clock())
        return int(seconds), int(fraction * 1_000_000)

    def _current(self, now: float, host: float) -> _SetTime:
        # freezegun and time-machine may stop the host's clock, which another clock follows.
        stands = getattr(self._clock, "frozen", False) or time.time_ns() == time.time_ns()
        return _SetTime(0.0, now) if stands else _SetTime(now - host, None)


def _text_of(shown: _SetTime) -> str:
    return f"+{shown.ahead_s:.6f}" if shown.frozen is None else f"={shown.frozen:.6f}"


class _FakeConnection(AbstractConnection):
    """A connection of redis-py; mixed into the connection class of a pool."""

    database: FakeDatabase
    own: bool

    def send_command(self, *args: Any, **options: Any) -> None:
        super().send_command(*_SCRIPTS.translated(args), **options)  # type: ignore[no-untyped-call]

    def pack_commands(self, commands: Any) -> Any:
        return super().pack_commands(list(map(_SCRIPTS.translated, commands)))  # type: ignore[no-untyped-call]

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: FBT001, FBT002 - redis-py's own
        if not (self.own or self.database.available):
            raise RedisConnectionError(_UNAVAILABLE)
        self.database.prepare()
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]


class _FakeShardConnection(ShardConnection):
    """The connection of pushes, which is no connection of redis-py."""

    def __init__(self, name: str, pool: ChannelPool, database: FakeDatabase, *, own: bool) -> None:
        super().__init__(name, database.endpoint, pool)
        self._shard, self._database, self._own = name, database, own

    def read(self, packet: bytes) -> Any:
        self._prepare()
        return super().read(packet)

    def write(
        self,
        packet: bytes,
        command_count: int,
        *,
        queue_command_count: int,
        status_commands: Sequence[StatusCommand] = (),
        job_commands: slice | None = None,
    ) -> None:
        self._prepare()
        super().write(
            packet,
            command_count,
            queue_command_count=queue_command_count,
            status_commands=status_commands,
            job_commands=job_commands,
        )

    def run_script(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        self._prepare()
        return super().run_script(_SCRIPTS.of(script), keys, arguments)

    def _prepare(self) -> None:
        if not (self._own or self._database.available):
            raise ShardUnavailableError(self._shard, _UNAVAILABLE, advice="fake().unavailable() of the test")
        self._database.prepare()


class _CurrentValidator(RoutingValidator):
    """The validator of the fake that uses a shard now: the connections of the shard outlive it."""

    current: RoutingValidator

    def refuses(self, shard: str) -> bool:
        return self.current.refuses(shard)

    def check(self, shard: str, packet: Any) -> None:
        self.current.check(shard, packet)


class FakeShard(Shard):
    """A shard of a fake, for the application; ``own`` is the same one for the fake itself, which a test cannot make unavailable."""

    own: "FakeShard"

    def __init__(self, name: str, database: FakeDatabase, *, is_own: bool = False) -> None:
        self.database = database
        self.validator = _CurrentValidator()
        self._is_own = is_own
        super().__init__(name, database.endpoint, role="testing", validator=self.validator)
        for client in (self.client, self.pool):
            database.attach(client, own=is_own)
        pool = ChannelPool(self.client, read_timeout_s=COMMAND_TIMEOUT_S)
        self._connection = _FakeShardConnection(name, pool, database, own=is_own)
        self.own = self if is_own else FakeShard(name, database, is_own=True)

    def open_client(self, role: str, *, read_timeout_s: float) -> "redis.Redis":
        """See ``Shard``. The fake itself needs one client, whose connections it keeps."""
        if self._is_own:
            return self.client
        return self.database.attach(super().open_client(role, read_timeout_s=read_timeout_s), own=False)

    def time(self) -> float:
        """See ``Shard``. Raises ShardUnavailableError if the test says so."""
        self._connection.read(_PING)
        return self.database.now()


_PING = b"*1\r\n$4\r\nPING\r\n"


@contextmanager
def faked_shards(settings: Settings, clock: FakeClock) -> Generator[dict[str, FakeShard]]:
    """Give the block a shard for each of the configuration, empty, in a database that no other block uses.

    Raises:
        ModeError: there is no server, or it has no further database.
    """
    server, validator = fake_server(settings), open_validated_client(settings)
    with server.databases(len(settings.shards)) as numbers:
        shards: dict[str, FakeShard] = {}
        for name, number in zip(settings.shards, numbers, strict=True):
            database = server.opened.get(number)
            if database is None:
                database = server.opened[number] = FakeDatabase(server.endpoint(number))
            database.begin(clock)
            shards[name] = _shard_of(name, database, validator)
        try:
            yield shards
        finally:
            if server.outlives_process:
                for shard in shards.values():
                    shard.database.clear()


def _shard_of(name: str, database: FakeDatabase, validator: RoutingValidator) -> FakeShard:
    """Return the shard of this name in a database: the same object for each fake."""
    found = database.shards.get(name)
    if found is None:
        found = database.shards[name] = FakeShard(name, database)
    found.validator.current = found.own.validator.current = validator
    return found
