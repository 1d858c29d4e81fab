"""Say of each shard whether it answers, and how full it is: a dead shard costs the others nothing."""

import time
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError, ResponseError

from framework.admin.access import chosen_shards
from framework.async_twin import async_twin
from framework.shard.redis_errors import unavailable_error
from framework.shard.shard import Shard
from framework.shard.shards import ANSWER_WITHIN_S, answering


@dataclass(frozen=True, slots=True)
class ShardHealth:
    """The state of a shard. The figures are ``None`` if it does not answer, or if the user may not call INFO."""

    shard: str
    endpoint: str
    error: str = ""
    """Why it does not answer; empty for a shard that does."""
    answer_s: float | None = None
    """How long it took to answer, in seconds."""
    server: str = ""
    """``redis``, or the name of a server that speaks as it does: ``valkey``."""
    version: str = ""
    uptime_s: int | None = None
    memory: int | None = None
    """The memory that Redis uses, in bytes."""
    maxmemory: int | None = None
    """Its limit; 0 is none."""
    policy: str = ""
    clients: int | None = None
    commands_per_s: float | None = None
    role: str = ""
    """``master`` or ``slave``, as Redis says."""
    persistence_error: str = ""
    """The kind of the last write to the disk that failed: ``aof`` or ``rdb``."""

    @property
    def answers(self) -> bool:
        return not self.error


def shard_health(shard: str | None = None, *, within_s: float = ANSWER_WITHIN_S) -> list[ShardHealth]:
    """Return the state of the shard, or of all shards, by name. No shard is waited for longer than ``within_s`` to answer.

    Raises:
        UnknownShardError: the configuration has no such shard.
    """
    found = [
        _read(one) if late is None else ShardHealth(one.name, str(one.endpoint), str(late))
        for one, late in answering(chosen_shards(shard), within_s)
    ]
    return sorted(found, key=lambda one: one.shard)


ashard_health = async_twin(shard_health)


def _read(shard: Shard) -> ShardHealth:
    try:
        return read_health(shard)
    except (RedisError, OSError) as error:
        return ShardHealth(shard.name, str(shard.endpoint), str(unavailable_error(shard.name, shard.endpoint, error)))


def read_health(shard: Shard) -> ShardHealth:
    """Return the state of a shard that answers, in two round trips. Raises redis errors."""
    began = time.monotonic()
    shard.client.time()
    took = time.monotonic() - began
    info = _info(shard)
    failed = [
        name
        for name, field in (("aof", "aof_last_write_status"), ("rdb", "rdb_last_bgsave_status"))
        if info.get(field, "ok") != "ok"
    ]
    return ShardHealth(
        shard.name,
        str(shard.endpoint),
        answer_s=took,
        server=str(info.get("server_name", "redis" if info else "")),
        version=str(info.get("valkey_version") or info.get("redis_version") or ""),
        uptime_s=info.get("uptime_in_seconds"),
        memory=info.get("used_memory"),
        maxmemory=info.get("maxmemory"),
        policy=str(info.get("maxmemory_policy", "")),
        clients=info.get("connected_clients"),
        commands_per_s=info.get("instantaneous_ops_per_sec"),
        role=str(info.get("role", "")),
        persistence_error=", ".join(failed),
    )


def _info(shard: Shard) -> dict[str, Any]:
    try:
        found: dict[str, Any] = shard.client.info()
        return found
    # A user without the right to INFO.
    except ResponseError:
        return {}
