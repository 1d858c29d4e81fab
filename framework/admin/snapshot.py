"""What is true of one shard while a job of it is explained: read when it is first asked for, each thing once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import redis

from framework.admin.limits import LimitState, read_limits
from framework.admin.pauses import PauseSummary, read_pauses
from framework.admin.search import display_name, parse_object
from framework.admin.times import server_time
from framework.flags.flag import Flag
from framework.flags.redis_flags import read_flags
from framework.process.record import ProcessInfo, read_processes
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import clamp_time, timestamp


@dataclass(frozen=True, slots=True)
class ListOwner:
    """Who has a working list: how long its lease still holds, when it last beat, and since when it has run the job."""

    lease_s: float | None
    """``None``: the lease is gone, and with it the process."""
    silent_s: float | None
    """Seconds since its last beat; ``None`` when the registry does not know it."""
    running_since: float | None


class ShardSnapshot:
    """Every answer may raise redis errors."""

    def __init__(self, client: "redis.Redis", shard: str) -> None:
        self.client = client
        self.shard = shard

    @cached_property
    def now(self) -> float:
        """Seconds of the shard's clock, which decides."""
        return server_time(self.client)

    @cached_property
    def processes(self) -> list[ProcessInfo]:
        """Those that run: with a record, and of ours only who has a lease, as a record outlives a death by up to a minute."""
        seen = read_processes(self.client)
        pipeline: Any = self.client.pipeline(transaction=False)
        for one in seen:
            pipeline.zscore(keys.REGISTRY, one.identity)
            pipeline.exists(keys.lease(one.identity))
        replies = iter(pipeline.execute())
        return [one for one, beat, leased in zip(seen, replies, replies, strict=True) if beat is None or leased]

    @cached_property
    def paused_queues(self) -> frozenset[str]:
        """Sidekiq Pro's set."""
        return frozenset(display_name(name) for name in cast("set[bytes]", self.client.smembers(keys.PAUSED)))

    @cached_property
    def flags(self) -> Mapping[str, Flag]:
        """Those that operators have set and that hold, by name."""
        return {
            name: flag
            for name, flag in read_flags(self.client).items()
            if flag.expires_at is None or flag.expires_at > self.now
        }

    @cached_property
    def pauses(self) -> Mapping[str, PauseSummary]:
        """The classes that are paused, or have parked jobs."""
        return {pause.name: pause for pause in read_pauses(self.client) if pause.kind == "class"}

    def limit(self, name: str) -> LimitState:
        """What is known of one limit."""
        return read_limits(self.client, self.now, [name])[0]

    def slots_of_scope(self, base: str, scope: str) -> int:
        """How many slots of a limit a scope has."""
        held: Any = self.client.hget(keys.limit(base) + ":held", scope)
        return int(held) if held is not None and held.isdigit() else 0

    def processes_serving(self, queue: str) -> list[ProcessInfo]:
        """Who takes jobs from the queue."""
        return [seen for seen in self.processes if queue in seen.queues]

    def status(self, jid: str) -> str | None:
        """The state that is kept of a tracked job, with how long it is kept still."""
        pipeline: Any = self.client.pipeline()
        pipeline.get(keys.status(jid))
        pipeline.pttl(keys.status(jid))
        state, _ = pipeline.execute()
        return None if state is None else display_name(state)

    def owner(self, identity: str, jid: str) -> ListOwner:
        """What is known of a process that has the job."""
        pipeline: Any = self.client.pipeline()
        pipeline.pttl(keys.lease(identity))
        pipeline.zscore(keys.REGISTRY, identity)
        pipeline.hvals(keys.work(identity)[0])
        lease_ms, beat, work = pipeline.execute()
        running = [entry for entry in map(parse_object, work) if _jid_of(entry) == jid]
        return ListOwner(
            lease_ms / 1_000 if lease_ms > 0 else None,
            None if beat is None else self.now - abs(beat),
            timestamp(running[0].get("run_at")) if running else None,
        )

    def held_slots(self, bases: Sequence[str], members: Sequence[str]) -> Iterator[tuple[str, float]]:
        """The limits at which one of these has a slot, and the seconds until that is free whatever happens."""
        pipeline: Any = self.client.pipeline(transaction=False)
        for base in bases:
            pipeline.zmscore(keys.limit(base) + ":running", members)
        for base, scores in zip(bases, pipeline.execute(raise_on_error=False), strict=True):
            found = cast("list[float | None]", scores) if isinstance(scores, list) else []
            expiries = [expiry for expiry in found if expiry is not None]
            if expiries:
                yield base, clamp_time(max(expiries)) - self.now

    def lock(self, key: str) -> tuple[Mapping[str, str], float | None]:
        """The fields of a lock, none when it is gone, and the seconds until it runs out."""
        pipeline: Any = self.client.pipeline()
        pipeline.hgetall(key)
        pipeline.pttl(key)
        fields, left_ms = pipeline.execute()
        return {
            display_name(name): display_name(value) for name, value in fields.items()
        }, left_ms / 1_000 if left_ms > 0 else None


def _jid_of(entry: Payload) -> object:
    payload = entry.get("payload")
    job = parse_object(payload.encode()) if isinstance(payload, str) else payload
    return cast("Payload", job).get("jid") if isinstance(job, dict) else None
