"""Turn the reply of INFO into figures: memory, evictions, clients, role, persistence, and whether the server takes writes."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias, get_args

from framework.admin.figures import Figure, number

ShardState: TypeAlias = Literal["closed", "open", "oom", "readonly", "misconf", "loading"]
"""Whether a shard takes jobs: ``closed`` for yes, as its circuit breaker says it; ``open`` if it does not answer."""

_PREFIX = "application_worker_redis_"
_NUMBERS = {
    "used_memory": "used_memory_bytes",
    "maxmemory": "max_memory_bytes",
    "used_memory_rss": "resident_memory_bytes",
    "connected_clients": "connected_clients",
    "maxclients": "max_clients",
    "blocked_clients": "blocked_clients",
    "connected_slaves": "replicas",
    "uptime_in_seconds": "uptime_seconds",
    "evicted_keys": "evicted_keys_total",
    "rejected_connections": "rejected_connections_total",
    "total_commands_processed": "commands_total",
}


def read_server_figures(info: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield the figures of the server that INFO has; those of other servers may lack some."""
    yield from state_figures(state_of(info))
    for name, short in _NUMBERS.items():
        if name in info:
            yield Figure(_PREFIX + short, {}, number(info[name]))
    # One thread of Redis runs all commands: its processor is the ceiling of a shard.
    main = [info[name] for name in ("used_cpu_user_main_thread", "used_cpu_sys_main_thread") if name in info]
    if main:
        yield Figure(f"{_PREFIX}main_thread_cpu_seconds_total", {}, sum(map(number, main)))
    if "role" in info:
        for role in ("master", "slave"):
            yield Figure(f"{_PREFIX}role", {"role": role}, int(info["role"] == role))
    if "maxmemory_policy" in info:
        yield Figure(f"{_PREFIX}noeviction", {}, int(info["maxmemory_policy"] == "noeviction"))
    if "aof_enabled" in info:
        yield Figure(f"{_PREFIX}aof_enabled", {}, number(info["aof_enabled"]))
    if "rdb_last_bgsave_status" in info:
        yield Figure(f"{_PREFIX}persistence_ok", {}, int(not _fails_to_persist(info)))


def state_figures(state: ShardState) -> Iterator[Figure]:
    """Yield one figure for each state: 1 for this one."""
    for one in get_args(ShardState):
        yield Figure("application_worker_shard_state", {"state": one}, int(one == state))


def state_of(info: Mapping[str, Any]) -> ShardState:
    """Return the state of a server that answers."""
    limit = number(info.get("maxmemory"))
    if info.get("loading") == 1:
        return "loading"
    if info.get("role") == "slave":
        return "readonly"
    if limit and info.get("maxmemory_policy") == "noeviction" and number(info.get("used_memory")) >= limit:
        return "oom"
    return "misconf" if _fails_to_persist(info) else "closed"


def _fails_to_persist(info: Mapping[str, Any]) -> bool:
    words = (info.get("rdb_last_bgsave_status"), info.get("aof_last_write_status") if info.get("aof_enabled") else None)
    return any(word not in (None, "ok") for word in words)
