"""Read what the Redis of each shard says about itself: its version, its memory, its clients."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from framework.admin.access import Answers, ask
from framework.async_twin import async_twin
from framework.shard.shard import Shard


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The Redis of a shard."""

    name: str
    """``redis``, or the name of a server that speaks as it does: ``valkey``."""
    version: str
    uptime_s: int
    clients: int
    used_bytes: int
    max_bytes: int
    """The setting ``maxmemory``; 0 for no limit."""


def servers(shard: str | None = None) -> Answers[ServerFacts]:
    """Return the facts of each shard's Redis.

    Raises:
        ShardUnavailableError: no shard answers.
        UnknownShardError: the configuration has no such shard.
    """
    return ask(shard, read_server)


aservers = async_twin(servers)


def read_server(shard: Shard) -> ServerFacts:
    """Return the facts of one shard's Redis, with one INFO. Raises redis errors."""
    info: Any = shard.client.info()
    return ServerFacts(
        name=str(info.get("server_name", "redis")),
        version=str(info.get("valkey_version") or info.get("redis_version", "")),
        uptime_s=_number(info, "uptime_in_seconds"),
        clients=_number(info, "connected_clients"),
        used_bytes=_number(info, "used_memory"),
        max_bytes=_number(info, "maxmemory"),
    )


def _number(info: Mapping[str, Any], name: str) -> int:
    found = info.get(name)
    return found if isinstance(found, int) else 0
