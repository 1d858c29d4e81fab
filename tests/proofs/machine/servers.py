"""Run the two real servers: their contents, the clock that is moved, and the acts of operators and other writers."""

import json
import time
from collections.abc import Iterable
from typing import Any, cast

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from framework.store.channel import Channel
from framework.wire import keys
from tests.lua import SCRIPTS
from tests.proofs.machine.job_model import Contents
from tests.servers.guarded import GuardedServer, with_all_rights

SHARDS = ("main", "second")

_WRONG_VALUE = b"no such thing"
_DUE = 1.0  # a score that is long overdue
_SCORED = (b"schedule", b"retry", b"dead", b"interrupted", b"aw:processes")

_SNAPSHOT = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key)['ok']
  if kind == 'list' then found[#found + 1] = {key, redis.call('LRANGE', key, 0, -1)}
  elseif kind == 'zset' then found[#found + 1] = {key, redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')}
  elseif kind == 'hash' and string.match(key, '^aw:lock:') then found[#found + 1] = {key, redis.call('HMGET', key, 'jid')} end
end
local time = redis.call('TIME')
return {time[1] .. '.' .. string.format('%06d', time[2]), found}
"""

# Redis's clock cannot be moved: so all values that are compared with it are moved the other way.
_LET_TIME_GO_BY = """
redis.call('PEXPIRE', 'none', 1)  -- a full server takes the other writes only after one that frees
local s, awake = tonumber(ARGV[1]), {}
for i = 2, #ARGV do awake[ARGV[i]] = true end
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  local kept = (key == 'aw:steady_since' and #ARGV > 1) or awake[string.match(key, '^aw:lease:(.*)') or '']
  if left >= 0 and not kept then
    if left <= s * 1000 then redis.call('DEL', key) else redis.call('PEXPIRE', key, math.floor(left - s * 1000)) end
  end
end
for _, key in ipairs(redis.call('KEYS', '*')) do
  local stamped = key == 'schedule' or key == 'retry' or key == 'aw:processes' or string.match(key, '^aw:limit:.*:running$')
  if stamped and redis.call('TYPE', key)['ok'] == 'zset' then
    local members = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #members, 2 do
      local score = tonumber(members[i + 1])
      if not (key == 'aw:processes' and awake[members[i]]) then
        redis.call('ZADD', key, string.format('%.6f', score < 0 and score + s or score - s), members[i])
      end
    end
  end
end
if redis.call('EXISTS', 'aw:steady_since') == 1 then
  redis.call('SET', 'aw:steady_since', string.format('%.6f', tonumber(redis.call('GET', 'aw:steady_since')) - s), 'KEEPTTL')
end
return 0
"""


class Servers:
    """The servers of the two shards, by name, already started."""

    def __init__(self, servers: dict[str, GuardedServer]) -> None:
        self._servers = servers
        self._down: set[str] = set()
        # With all rights: the processes are simulated, and no role knows their names.
        self.urls = {name: with_all_rights(server.url) for name, server in servers.items()}
        self.clients = {name: server.open("states") for name, server in servers.items()}
        self._readers = {name: Channel(client, read_timeout_s=5.0) for name, client in self.clients.items()}

    def close(self) -> None:
        """Close every connection."""
        for one in (*self.clients.values(), *self._readers.values()):
            one.close()

    def reset(self) -> None:
        """Start all servers, empty them, and load every script."""
        for name, client in self.clients.items():
            self.bring_up(name)
            client.config_set("maxmemory", 0)
            client.flushall()
            loading = client.pipeline(transaction=False)
            for one in SCRIPTS.values():
                loading.script_load(one.source)
            loading.execute()

    # --- up and down

    def up(self) -> list[tuple[str, Redis]]:
        """Return the running servers."""
        return [(name, self.clients[name]) for name in SHARDS if self.is_up(name)]

    def is_up(self, name: str) -> bool:
        """Return whether the server runs."""
        return name not in self._down

    def kill(self, name: str) -> None:
        """Kill the server with -9; every answered write stays.

        With `everysec` Redis answers, and holds back for up to 2 s the writes of a busy disk: a promise of Redis, not
        of the framework, and no history may depend on the speed of a disk. Without fsync each answer is written before.
        """
        if self.is_up(name):
            self.clients[name].config_set("appendfsync", "no")
        self._servers[name].kill()
        self._down.add(name)

    def bring_up(self, name: str) -> None:
        """Start the server with all its data."""
        if name in self._down:
            self._servers[name].start()
            self.clients[name].connection_pool.disconnect()
            self._down.discard(name)

    # --- contents

    def read(self, name: str) -> tuple[float, Contents]:
        """Return its clock, its lists and sorted sets, and the owners of locks."""
        reader = self._readers[name]
        try:
            reply: Any = reader.call("EVAL", _SNAPSHOT, 0)
        except RedisConnectionError:  # all connections were closed
            reader.close()
            reply = reader.call("EVAL", _SNAPSHOT, 0)
        return float(reply[0]), _contents(reply[1])

    def catch_up(self) -> None:
        """Wait until every sent command has run: a server reads all earlier commands before it answers."""
        for _, client in self.up():
            client.ping()

    def time(self, name: str) -> float:
        """Return its clock; the host's clock, which is the same, while it is down."""
        if not self.is_up(name):
            return time.time()
        seconds, micros = cast("tuple[int, int]", self.clients[name].time())
        return seconds + micros / 1e6

    def let_time_go_by(self, name: str, seconds: float, beating: list[str], *, end_blocked: bool) -> None:
        """Let time pass, in which these processes send heartbeats; long blocking calls end."""
        client = self.clients[name]
        client.eval(_LET_TIME_GO_BY, 0, str(seconds), *beating)
        for other in cast("list[dict[str, str]]", client.client_list()) if end_blocked else ():
            if "b" in other["flags"]:
                client.client_unblock(int(other["id"]))

    # --- operators, and other writers

    def break_key(self, client: Redis, key: str, *, on: bool) -> None:
        """Create a key of a wrong type where there is none, or remove it."""
        if on and not client.exists(key):
            client.set(key, _WRONG_VALUE)
        elif not on and client.type(key) == b"string":
            client.delete(key)

    def inject(self, client: Redis, key: str, data: bytes) -> None:
        """Write bytes into a list or a sorted set of the right type."""
        kind = client.type(key)
        if key in (keys.RETRY, keys.SCHEDULE):
            if kind in (b"none", b"zset"):
                client.zadd(key, {data: time.time() - 5})
        elif kind in (b"none", b"list"):
            client.lpush(key, data)

    def revive(self, client: Redis, key: str, which: int) -> None:
        """Retry a job as Sidekiq's pages do: out of the set, one retry less, into its queue. A full server gets space
        before.
        """
        members = cast("list[bytes]", client.zrange(key, 0, -1)) if client.type(key) == b"zset" else []
        jobs = [data for data in members if all(name in data for name in (b'"jid"', b'"queue"', b'"class"'))]
        if not jobs:
            return
        data = jobs[which % len(jobs)]
        fields = json.loads(data)
        if client.type(keys.queue(fields["queue"])) not in (b"none", b"list"):
            return
        if "retry_count" in fields:
            fields["retry_count"] -= 1
        client.config_set("maxmemory", 0)
        client.zrem(key, data)
        client.lpush(
            keys.queue(fields["queue"]), json.dumps(fields, separators=(",", ":")).replace("Infinity", "1e999")
        )

    def heal(self) -> None:
        """Repair every planned damage."""
        for name, client in self.clients.items():
            self.bring_up(name)
            client.config_set("maxmemory", 0)
            client.delete(keys.PAUSED, keys.FLAGS)
            for key in cast("list[bytes]", client.keys("*")):
                if client.type(key) == b"string" and client.get(key) == _WRONG_VALUE:
                    client.delete(key)

    def hasten(self) -> None:
        """Make every scheduled job and retry due."""
        for client in self.clients.values():
            for key in (keys.SCHEDULE, keys.RETRY):
                for member in cast("list[bytes]", client.zrange(key, 0, -1)):
                    client.zadd(key, {member: _DUE})


def _contents(reply: Iterable[Any]) -> Contents:
    found: Contents = []
    for key, members in reply:
        if key in _SCORED or key.startswith((b"aw:limit:", b"aw:paused_jobs:")):
            found.append((key, [(members[at], float(members[at + 1])) for at in range(0, len(members), 2)]))
        else:
            found.append((key, members))
    return found
