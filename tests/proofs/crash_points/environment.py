"""Two Redis servers, the configuration of a small installation on them, and the clocks: shared by the processes of a
case.

All of this uses connections of its own, which are no part of the test.
"""

import json
import math
import os
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from redis import Redis

from framework.all_settings import Settings, load
from framework.features.cron import keys as cron_keys
from framework.features.cron.entries import collect_entries
from framework.features.encryption.blob_store import FolderStore
from framework.features.encryption.offload import PayloadOffload
from framework.features.encryption.stored_blocks import StoredBlocks
from framework.features.flags.flag import Flag, pause_flag
from framework.features.flags.redis_flags import set_flag
from framework.fetch.deferred_blocks import next_blocks, unpack_deferred
from framework.process import worker_parts
from framework.push import client as push_client
from framework.settings.model import RoleSettings
from framework.shard import held_back
from framework.shard import shard as shard_module
from framework.shard.memory_report import MemoryPart, MemoryReport
from framework.shard.shard import Shard
from framework.store.connect import Endpoint, open_client
from framework.store.embedded import EmbeddedServer, endpoint_of
from framework.telemetry import logs
from framework.wire import keys
from framework.wire.resources import IDEMPOTENCY_KEY
from framework.wiring.client import connect
from tests.fork_server import import_everything
from tests.lua import SCRIPTS
from tests.proofs.crash_points.job_notes import JobNotes
from tests.proofs.crash_points.jobs import (
    MOST_TICKS,
    QUEUE,
    RETIRED,
    SAMPLE,
    SECOND,
    TickWorker,
    TrackedWorker,
    open_notes,
)
from tests.proofs.crash_points.wire import CONTROL
from tests.proofs.places import BLOCKS, END, place_of

SHARDS = ("main", SECOND)
FOREIGN = '"x_foreign":{"n":12345678901234567890123,"a":[],"f":1700000000.123456,"t":"\u00fc"}'.encode()
"""A field that the framework does not know, from another producer: it stays unchanged byte for byte."""

_LONG_AGO = 1_000_000_000
_SILENT_S = 60.0


class CaseEnvironment:
    """The environment, made once before any fork; ``settings`` are those of a process in production."""

    def __init__(self, folder: Path) -> None:
        # What a push and a process read again after some seconds would differ in a case that is slow: they know it for ever.
        held_back.READ_PERIOD_S = shard_module.MOVES_AGE_S = push_client.MOVES_AGE_S = math.inf
        held_back._RESERVE_S = math.inf
        worker_parts.ABSENT_PERIODS = math.inf
        self.blocks = StoredBlocks(PayloadOffload(FolderStore(folder / "payloads"), "file:///payloads", 1_000))
        BLOCKS.store = self.blocks
        self.servers = {name: EmbeddedServer(folder / f"redis-{name}") for name in SHARDS}
        for server in self.servers.values():
            server.start()
        config = folder / "config"
        config.mkdir(exist_ok=True)
        shards = {name: {"url": server.url} for name, server in self.servers.items()}
        (config / "redis.yml").write_text(json.dumps({"shards": shards}))
        (config / "routing.yml").write_text(json.dumps({"routing_rules": [["tags=away", SECOND, SECOND], ["*", None]]}))
        # The figures of Sidekiq's Metrics page depend on the duration of jobs, so their commands differ from run to
        # run.
        application = {"retired_workers": {RETIRED: "it went"}, "sidekiq_metrics": []}
        (config / "application.yml").write_text(json.dumps(application))
        (config / "schedule.yml").write_text(json.dumps({"schedule": _entries()}))
        self.settings: Settings = load({"FRAMEWORK_CONFIG_DIR": str(config), "FRAMEWORK_ENV": "production"})
        self.ticks = 0
        """How many entries have a due tick."""
        self.notes = JobNotes(folder / "notes")
        self.lines = os.open(folder / "lines.log", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        # redis-py reads the metadata of its package for each connection, which would be a third of a case.
        metadata.version = cache(metadata.version)
        # Each of thousands of forked processes would import the rooms that it uses: half of a case.
        import_everything()
        open_notes(self.notes)
        connect(self.settings)
        self.clients = self._everywhere = self._open(SHARDS)
        for client in self.clients.values():
            client.config_set("appendonly", "no")  # no case restarts a server

    def close(self) -> None:
        """Stop the servers."""
        for server in self.servers.values():
            server.stop()

    def share_limits(self) -> None:
        """Let limits hold on all shards together, in the processes of this case."""
        self.settings = self.settings.model_copy(update={"roles": RoleSettings(meta=SECOND)})

    def enter(self) -> None:
        """Give the forked process connections and a log of its own."""
        self.clients = self._open(self.clients)
        self.fill(above=None)  # as an operator does before a process recovers
        self.log = logs.open_server_log("warning", {"pid": os.getpid()}, self.lines)

    def leave(self) -> None:
        """End a forked process."""
        logs.close_server_log()

    def warnings(self) -> list[str]:
        """Return the warnings and errors that the processes of this case logged, as far as they lived to write them."""
        written = os.pread(self.lines, 1 << 20, 0).splitlines(keepends=True)
        lines = [
            json.loads(line) for line in written if line.endswith(b"\n")
        ]  # the last line of a killed process may be cut short
        return [
            f"{line['severity']} {line['message']} {line.get('exception.message', '')}"
            for line in lines
            if line["severity"] != "INFO"
        ]

    def shard(self, name: str) -> Shard:
        """Return a shard as a worker process opens it."""
        return Shard(name, endpoint_of(self.settings, name), role=f"worker:{os.getpid()}", block_store=self.blocks)

    # --- between the steps of a case

    def clear(self, shards: Sequence[str]) -> None:
        """Start a new case on these shards only."""
        self.clients = {name: self._everywhere[name] for name in shards}
        for client in self.clients.values():
            pipeline = client.pipeline(transaction=False)
            pipeline.config_set("maxmemory", 0)
            pipeline.flushall()
            for one in SCRIPTS.values():
                pipeline.script_load(one.source)
            pipeline.execute()
        self.notes.clear()
        os.ftruncate(self.lines, 0)

    def write(self, worker: str, serial: int, place: str, **fields: Any) -> bytes:
        """Write a job as another producer, long overdue where it waits for a time; return its bytes."""
        head = {"class": worker, "args": [serial, SAMPLE], "queue": QUEUE, "jid": f"{serial:024x}", "retry": True}
        payload = {**head, "created_at": 1700000000.123456, "enqueued_at": 1700000000.123456, **fields}
        data = json.dumps(payload, separators=(",", ":"))[:-1].encode() + b"," + FOREIGN + b"}"
        client = self.clients["main"]
        if place in (keys.SCHEDULE, keys.RETRY, keys.DEAD, keys.INTERRUPTED):
            client.zadd(place, {data: _LONG_AGO + serial})
        else:
            client.lpush(place, data)
        if place == keys.queue(QUEUE):
            client.sadd(keys.QUEUES, QUEUE)
        self.notes.note("accepted", serial, str(payload["jid"]))
        return data

    def lock(self, serial: int, **fields: Any) -> dict[str, Any]:
        """Lock the key of a job as its producer does; return the fields that the job carries for it."""
        key = keys.lock(str(serial))
        self.clients["main"].hset(key, mapping={"jid": f"{serial:024x}", **fields})
        self.clients["main"].pexpire(key, 600_000)
        return {IDEMPOTENCY_KEY: key}

    def fill(self, *, above: int | None) -> None:
        """Let the jobs of another class fill Redis: it has so many bytes more than ``maxmemory``; ``None``: it has room again."""
        client = self.clients["main"]
        if above is None:
            client.config_set("maxmemory", 0)
            return
        report = MemoryReport(2_000_000, 1_000_000, {}, [MemoryPart("Other", "queue", 1_000, 1_900_000)])
        client.set(keys.MEMORY, report.encode(), ex=300)
        client.config_set("maxmemory", int(cast("dict[str, int]", client.info("memory"))["used_memory"]) - above)

    def write_unreadable(self, serial: int, place: str) -> None:
        """Write bytes that no reader can decode."""
        self.clients["main"].lpush(place, b"\xff{%d" % serial)
        self.notes.note("accepted", serial)

    def make_ticks_due(self, count: int) -> None:
        """Let the last tick of so many entries be due, as if the process of each earlier tick had settled that one."""
        self.ticks = count
        entries = collect_entries(self.settings)
        for serial in range(1, MOST_TICKS + 1):
            entry = entries[f"tick_{serial}"]
            ticks, _ = entry.expression.latest_ticks(0, int(_seconds(self.clients["main"])), 2)
            state = f"{ticks[serial > count]} {entry.fingerprint} before"
            self.clients["main"].hset(cron_keys.cron_states("default"), entry.name, state)

    def forget_leaders(self) -> None:
        """Advance the clock until the lease of a leader has expired."""
        client = self.clients["main"]
        for key in cast("list[bytes]", client.keys(cron_keys.leader("*"))):
            client.delete(key)

    def pause(self, worker: str) -> None:
        """Pause a class as an operator does."""
        set_flag(self.clients["main"], Flag(pause_flag(worker), 100.0, "points"), None)

    def resume(self) -> None:
        """Resume every class."""
        self.clients["main"].delete(keys.FLAGS)

    def make_due(self) -> None:
        """Advance the clocks until every retry and scheduled job is due, and resume every class."""
        self.resume()
        for client in self.clients.values():
            # As the periodic work of a process does when they are due.
            for block in next_blocks(client, 0, 100):
                unpack_deferred(client, block)
            for key in (keys.RETRY, keys.SCHEDULE):
                members = cast("list[bytes]", client.zrange(key, 0, -1))
                if members:
                    client.zadd(key, {member: _LONG_AGO + n for n, member in enumerate(members)})

    def age(self, identities: Sequence[str]) -> None:
        """Advance the clocks until the leases of these processes have expired, and their blocking calls have ended."""
        for client in self.clients.values():
            now = _seconds(client)
            for identity in identities:
                heartbeat = client.zscore(keys.REGISTRY, identity)
                if heartbeat is None:
                    continue
                client.delete(keys.lease(identity))
                client.zadd(keys.REGISTRY, {identity: (now - _SILENT_S) * (-1 if heartbeat < 0 else 1)})
            client.delete(keys.PORTIONS_TURN)
            client.set(keys.STEADY_SINCE, f"{now - _SILENT_S:.6f}", px=5_000)

    # --- the state that checks read

    def left(self) -> bool:
        """Return whether a job waits, or is in a working list."""
        return any(
            place_of(key) not in (None, END) or key == keys.DEFERRED_PACKED.encode()
            for client in self.clients.values()
            for key in cast("list[bytes]", client.keys("*"))
        )

    def blocked_calls(self, shard: str) -> int:
        """Return how many blocking calls the server of a shard holds."""
        return sum("b" in one["flags"] for one in cast("list[dict[str, str]]", self.clients[shard].client_list()))

    def connected(self) -> bool:
        """Return whether a server still has a connection of a process: it may have commands of a dead process to run."""
        return any(
            one["name"] != CONTROL
            for client in self.clients.values()
            for one in cast("list[dict[str, str]]", client.client_list())
        )

    def registered(self) -> list[str]:
        """Return the registered processes."""
        return [
            name.decode()
            for client in self.clients.values()
            for name in cast("list[bytes]", client.zrange(keys.REGISTRY, 0, -1))
        ]

    def _open(self, shards: Iterable[str]) -> dict[str, Redis]:
        return {name: open_client(Endpoint(self.servers[name].url), name=CONTROL) for name in shards}


def _entries() -> dict[str, Any]:
    """Return entries with one tick a year, so that a case lasts from no tick to the next.

    The jobs of even entries have a lock, which would hide a second push; those of odd ones have none.
    """
    classes = [worker.declaration().wire_name for worker in (TickWorker, TrackedWorker)]
    return {
        f"tick_{serial}": {"cron": "@yearly", "class": classes[serial % 2], "args": [serial, SAMPLE], "missed": "all"}
        for serial in range(1, MOST_TICKS + 1)
    }


def _seconds(client: Redis) -> float:
    seconds, micros = cast("tuple[int, int]", client.time())
    return seconds + micros / 1e6
