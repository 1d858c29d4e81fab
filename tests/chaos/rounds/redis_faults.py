"""Define faults of a single Redis: it restarts, is killed, forgets, is full, refuses."""

import resource
import time
from contextlib import suppress

from redis import Redis
from redis.exceptions import RedisError

from tests.chaos.rounds.faults import REDIS, Fault, Injection, Steps, fault, lasting
from tests.chaos.rounds.round_shard import RoundShard
from tests.chaos.rounds.stores import SingleStore

_LONGEST_AWAY_S = 2.0
_REFUSING_S = 1.0
_MARK = "chaos:mark"
_ROOM_BYTES = 4_096
"""The bytes by which the append-only file may still grow on a full disk."""


def _single(round_shard: RoundShard) -> SingleStore:
    assert isinstance(round_shard.store, SingleStore), "this round has more than one server"  # noqa: S101
    return round_shard.store


def _client(round_shard: RoundShard) -> Redis:
    return round_shard.store.client


def _away(round_shard: RoundShard) -> Steps:
    """Stay away for a moment, then return."""
    try:
        yield from lasting(round_shard.rng.uniform(0.2, _LONGEST_AWAY_S))
    finally:
        _single(round_shard).server.start()


@fault("restart", REDIS)
def restart(round_shard: RoundShard, _: Injection) -> Steps:
    """Stop the server in order and start it again; its file is synced every second."""
    _single(round_shard).server.stop()
    yield from _away(round_shard)


@fault("restart, always", REDIS)
def restart_always(round_shard: RoundShard, _: Injection) -> Steps:
    """Restart it after a time in which each write was synced before its answer."""
    _client(round_shard).config_set("appendfsync", "always")
    yield from lasting(0.5)
    _single(round_shard).server.stop()
    yield from _away(round_shard)


@fault("kill -9", REDIS)
def kill_redis(round_shard: RoundShard, _: Injection) -> Steps:
    """Kill the server; every answered write is with the kernel and must not be lost.

    That is so without fsync: with `everysec` Redis holds back answered writes for up to 2 s while the disk is busy.
    """
    _client(round_shard).config_set("appendfsync", "no")
    _single(round_shard).server.kill()
    yield from _away(round_shard)


@fault("power cut", REDIS)
def power_cut(round_shard: RoundShard, injection: Injection) -> Steps:
    """Kill the server, and cut its file back to the synced part: up to a second of answers is forgotten."""
    store = _single(round_shard)
    marked_at = time.monotonic()
    try:
        with store.open_client() as marker:
            marker.set(_MARK, repr(marked_at))
            while not marker.execute_command("WAITAOF", 1, 0, 10)[0]:
                yield
        # From here on each answered write is in the file, which shows the forgotten ones: see `kill_redis`.
        _client(round_shard).config_set("appendfsync", "no")
        yield from lasting(round_shard.rng.uniform(0.1, 0.9))
        injection.at = time.monotonic()
        store.server.kill()
        removed = store.files.cut_back(repr(marked_at).encode())
        injection.forgotten, injection.forgotten_ends = removed.pushed, removed.ended
        injection.forgets = (marked_at, injection.at)
        yield from _away(round_shard)
    finally:
        # The round may be over before the cut comes: a mark that stays would be a key left.
        with suppress(RedisError):
            _client(round_shard).config_set("appendfsync", "everysec")
            _client(round_shard).delete(_MARK)


@fault("script flush", REDIS)
def script_flush(round_shard: RoundShard, _: Injection) -> Steps:
    """Flush all scripts."""
    _client(round_shard).script_flush()
    yield from ()


@fault("client kill", REDIS)
def client_kill(round_shard: RoundShard, _: Injection) -> Steps:
    """Close every connection."""
    _client(round_shard).execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    yield from ()


@fault("full memory", REDIS)
def full_memory(round_shard: RoundShard, _: Injection) -> Steps:
    """Set maxmemory: pushes are refused, jobs continue."""
    _client(round_shard).config_set("maxmemory", 1)
    try:
        yield from lasting(_REFUSING_S)
    finally:
        with suppress(RedisError):
            _client(round_shard).config_set("maxmemory", 0)


@fault("full disk", REDIS)
def full_disk(round_shard: RoundShard, _: Injection) -> Steps:
    """Limit the append-only file: Redis then refuses all writes (MISCONF) until there is space."""
    server = _single(round_shard).server
    pid = server.pid
    assert pid is not None, "the server runs"  # noqa: S101
    size = max(file.stat().st_size for file in _single(round_shard).files.paths)
    hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + _ROOM_BYTES, hard))
    try:
        yield from lasting(_REFUSING_S)
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
    while _client(round_shard).info("persistence")["aof_last_write_status"] != "ok":  # it tries again once a second
        yield


@fault("snapshot fails", REDIS)
def snapshot_fails(round_shard: RoundShard, _: Injection) -> Steps:
    """Block its snapshot by a folder of the same name: Redis then refuses all writes (MISCONF)."""
    client = _client(round_shard)
    obstacle = _single(round_shard).server.data_dir / "dump.rdb"
    obstacle.mkdir()
    client.config_set("save", "3600 1")
    try:
        client.bgsave()
        yield from lasting(_REFUSING_S)
    finally:
        obstacle.rmdir()
        client.config_set("save", "")


@fault("read-only", REDIS)
def read_only(round_shard: RoundShard, _: Injection) -> Steps:
    """Make it a replica of no master: writes are refused, blocking calls end (READONLY)."""
    client = _client(round_shard)
    client.replicaof("127.0.0.1", 1)
    try:
        yield from lasting(_REFUSING_S)
    finally:
        client.replicaof("NO", "ONE")


REDIS_FAULTS: tuple[Fault, ...] = (
    restart, restart_always, kill_redis, power_cut, script_flush, client_kill, full_memory, full_disk, snapshot_fails,
    read_only,
)  # fmt: skip
"""The faults of one server. Any server can have these: ``script_flush``, ``client_kill``, ``full_memory``."""
