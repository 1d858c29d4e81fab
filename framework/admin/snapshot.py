"""Read facts about one shard for explanations: each on first use, and only once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar, cast

import redis
from redis.exceptions import ResponseError

from framework.admin.pause_log import PauseRecord, pauses_of_queues, read_pause_log
from framework.feature import Late
from framework.process.record import ProcessInfo, read_processes, recorded_payload
from framework.store.connect import server_time
from framework.text import decode_escaped
from framework.wire import keys
from framework.wire.iteration_state import read_iteration
from framework.wire.job import timestamp
from framework.wire.json import loads_object
from framework.wire.keys import split_owner

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ListOwner:
    """The process that has a job: its lease, its last heartbeat, and since when it runs the job."""

    lease_s: float | None
    """``None`` for an expired lease: the process is dead, or it is one of Sidekiq's, which have none."""
    silent_s: float | None
    """Seconds since the last heartbeat; ``None`` if the process is not registered and has no record."""
    running_since: float | None


class ShardSnapshot:
    """Cache the facts about one shard. Every method may raise redis errors."""

    def __init__(
        self, client: "redis.Redis", shard: str, assumed: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """``assumed`` has what counts instead of what is in force: by the name of a feature, and then by name."""
        self.client = client
        self.shard = shard
        self.assumed: Mapping[str, Mapping[str, Any]] = assumed or {}
        self._facts: dict[Late[Any], Any] = {}

    def fact(self, kind: "Late[Callable[[ShardSnapshot], T]]") -> T:
        """Return what this function of a feature reads from the shard: it is called once."""
        if kind not in self._facts:
            self._facts[kind] = kind.load()(self)
        return cast("T", self._facts[kind])

    @cached_property
    def now(self) -> float:
        """The time of the shard's clock, which decides what is due."""
        return server_time(self.client)

    @cached_property
    def processes(self) -> list[ProcessInfo]:
        """The live processes. One with a record but without a lease is dead: a record outlives its process by up to a minute."""
        seen = read_processes(self.client)
        pipeline: Any = self.client.pipeline(transaction=False)
        for one in seen:
            pipeline.zscore(keys.REGISTRY, one.identity)
            pipeline.exists(keys.lease(one.identity))
        replies = iter(pipeline.execute())
        return [one for one, beat, leased in zip(seen, replies, replies, strict=True) if beat is None or leased]

    @cached_property
    def paused_queues(self) -> frozenset[str]:
        """The paused queues (Sidekiq Pro's set)."""
        return frozenset(decode_escaped(name) for name in cast("set[bytes]", self.client.smembers(keys.PAUSED)))

    @cached_property
    def queue_pauses(self) -> Mapping[str, PauseRecord]:
        """The pauses of queues that an operator of this framework ordered, by queue."""
        return pauses_of_queues(read_pause_log(self.client))

    def processes_serving(self, queue: str) -> list[ProcessInfo]:
        """Return the processes that fetch from the queue."""
        return [seen for seen in self.processes if queue in seen.queues]

    def status(self, jid: str) -> str | None:
        """Return the status of a tracked job, ``None`` without one."""
        pipeline: Any = self.client.pipeline()
        pipeline.get(keys.status(jid))
        pipeline.pttl(keys.status(jid))
        state, _ = pipeline.execute()
        return None if state is None else decode_escaped(state)

    def cancelled_since(self, name: str) -> float | None:
        """Return when the job or batch with this id was cancelled, ``None`` if it was not."""
        try:
            return self.client.zscore(keys.CANCELLED, name)
        except ResponseError:
            return None

    def marked_by_ruby_since(self, jid: str) -> float | None:
        """Return when Sidekiq's ``cancel!`` marked a job, which ``framework.cancel`` does too; ``None`` for a job without a mark."""
        try:
            state = read_iteration(cast("dict[bytes, bytes]", self.client.hgetall(keys.iteration(jid))))
        except ResponseError:
            return None
        return None if state is None else state.cancelled_at

    def owner(self, owner: str, jid: str) -> ListOwner:
        """Return the state of the process whose working list or record has the job."""
        identity, _ = split_owner(owner)
        pipeline: Any = self.client.pipeline()
        pipeline.pttl(keys.lease(identity))
        pipeline.zscore(keys.REGISTRY, identity)
        pipeline.hget(identity, "beat")
        for key in keys.work(identity):
            pipeline.hvals(key)
        replies: list[Any] = pipeline.execute()
        lease_ms, beat, written_at = replies[:3]
        work: list[list[bytes]] = replies[3:]
        if beat is None and written_at is not None:
            beat = timestamp(decode_escaped(written_at))
        running = [
            entry
            for entry in map(loads_object, chain(*work))
            if loads_object(recorded_payload(entry)).get("jid") == jid
        ]
        return ListOwner(
            lease_ms / 1_000 if lease_ms > 0 else None,
            None if beat is None else self.now - abs(beat),
            timestamp(running[0].get("run_at")) if running else None,
        )
