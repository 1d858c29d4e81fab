"""Recover every job after all processes have died, with the real parts in this process: reaper, poller, fetch.

Clocks are moved instead of waited for: by their keys in Redis, which the parts read.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from redis import Redis

from framework.features.deduplication.push import Deduplicator
from framework.features.pause.admission import resume
from framework.fetch.blocks import unpack
from framework.fetch.deferred_blocks import next_blocks, unpack_deferred
from framework.fetch.pipeline import FetchCall
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.status_writer import StatusWriter
from framework.push.argument_checks import SizeLimiter, SizeLimits
from framework.recover.reaper import FailureDetector, Reaper, mark_dead
from framework.route.router import Router
from framework.schedule.cross_shard import CrossShardTransfer
from framework.schedule.due_job_planner import DestinationResolver, DueJobPlanner
from framework.schedule.poller import Poller, PollTiming
from framework.shard.shard import Shard
from framework.store.connect import COMMAND_TIMEOUT_S, Endpoint
from framework.store.script import HEARTBEAT, RELEASE_WAITING
from framework.timings import STANDARD
from framework.wire import keys
from framework.wire.keys import SetLimits
from tests.proofs.places import jid_of, jobs_in, place_of

_IDENTITY = "recoverer:1:0"
_SHARD = "main"
_LONG_AGO_S = 600.0
_BATCH = 32


class Recoverer:
    """One process that finds a Redis after all processes have died. ``unexpected`` lists the events that should not occur."""

    def __init__(self, url: str) -> None:
        self.unexpected: list[str] = []
        self._shard = Shard(_SHARD, Endpoint(url), role="recovery")
        self.client: Redis = self._shard.client

    def settle(self, *, seen_dying: bool) -> None:
        """Reclaim the jobs of dead processes, enqueue every scheduled job, and release held jobs: all jobs then wait in
        queues, or are at rest.

        A parent has seen the dead processes die (``seen_dying``), or their leases have expired.
        """
        self._mark_all_dead(seen_dying=seen_dying)
        while blocks := next_blocks(self.client, 0, 100):
            for block in blocks:
                unpack_deferred(self.client, block)
        # Every member of a set is due, whatever the clock says.
        for source in (keys.SCHEDULE, keys.RETRY):
            for member in cast("list[bytes]", self.client.zrange(source, 0, -1)):
                self.client.zadd(source, {member: 1})
        poller = self._poller()
        while poller.poll():
            pass
        self._release_held()

    def drain(self) -> "Counter[bytes]":
        """Fetch and acknowledge by the real script until the queues are empty; return the number of runs of each job."""
        self._renew_lease()
        ran: Counter[bytes] = Counter()
        call = FetchCall(self.client, _IDENTITY, read_timeout_s=COMMAND_TIMEOUT_S, lease_ms=STANDARD.lease_ms)
        names = [key.decode().removeprefix("queue:") for key in self.places() if place_of(key) == "waiting"]
        ended: list[UnitOfWork] = []
        while names:
            call.send(ended, [(name, _BATCH) for name in names], _BATCH, 0.0)
            reply = call.read()
            ended = reply.units
            ran.update(jid_of(unit.data) for unit in ended)
            for queue, block in reply.blocks:
                unpack(self.client, queue, block)
            if not (ended or reply.blocks):
                break
        call.close()
        return ran

    def places(self) -> dict[bytes, list[bytes]]:
        """Return every non-empty place, with its payloads."""
        found: dict[bytes, list[bytes]] = {}
        for key in sorted(cast("list[bytes]", self.client.keys())):
            kind = place_of(key)
            if kind in ("waiting", "working"):
                elements = cast("list[bytes]", self.client.lrange(cast("Any", key), 0, -1))
                found[key] = [job for element in elements for job in jobs_in(element)]
            elif kind:
                found[key] = cast("list[bytes]", self.client.zrange(cast("Any", key), 0, -1))
        return found

    def counts(self) -> "Counter[bytes]":
        """Return the number of jobs in each place."""
        return Counter({key: len(payloads) for key, payloads in self.places().items()})

    def jids(self) -> "Counter[bytes]":
        """Return how often each job is in any place."""
        return Counter(jid_of(payload) for payloads in self.places().values() for payload in payloads)

    def close(self) -> None:
        """Close the connections."""
        self._shard.close()

    def _mark_all_dead(self, *, seen_dying: bool) -> None:
        now = self.client.time()[0]
        registered = cast("list[bytes]", self.client.zrange(keys.REGISTRY, 0, -1))
        for identity in (member.decode() for member in registered):
            if seen_dying:
                mark_dead(self.client, identity)
            else:
                self.client.delete(keys.lease(identity))
                self.client.zadd(keys.REGISTRY, {identity: now - _LONG_AGO_S})
        if not seen_dying:
            self.client.set(keys.STEADY_SINCE, now - _LONG_AGO_S, px=STANDARD.lease_ms)
        grace = FailureDetector(STANDARD.lease_s, STANDARD.heartbeat_period_s)
        grace.record_heartbeat(float(now), lease_held=False)
        reaper = Reaper(self.client, lambda _: None, grace, SetLimits())
        while reaper.sweep():
            pass

    def _release_held(self) -> None:
        """Release the held jobs: no limit applies, and no class is paused."""
        self.client.delete(keys.FLAGS)
        for worker in cast("set[bytes]", self.client.smembers(keys.PAUSED_CLASSES)):
            resume(self.client, worker.decode(), b"", class_known=True)
        for base in cast("set[bytes]", self.client.smembers(keys.LIMITS_WAITING)):
            while RELEASE_WAITING(self.client, [base.decode()], ["0", "0", _BATCH, 60])[0]:
                pass

    def _renew_lease(self) -> None:
        places = [keys.lease(_IDENTITY), keys.REGISTRY, keys.process(_IDENTITY), keys.STEADY_SINCE]
        HEARTBEAT(self.client, places, [_IDENTITY, STANDARD.lease_ms, _BATCH, STANDARD.lease_ms])

    def _poller(self) -> Poller:
        events: Any = _Events(self.unexpected)
        crossings = CrossShardTransfer(self.client, _SHARD, {_SHARD: self._shard}, events)
        preparation = DueJobPlanner(
            events,
            DestinationResolver(Router([], [_SHARD]), _SHARD),
            crossings,
            StatusWriter(self._shard, lambda *facts: self.unexpected.append(f"state missed: {facts}")),
            limiter=SizeLimiter(SizeLimits(), None),
            locks=Deduplicator(),
        )
        return Poller(self.client, events, preparation, crossings, PollTiming(self.client, 1.0), SetLimits())


class _Events:
    """Records the events of the poller: none of them is expected."""

    def __init__(self, unexpected: list[str]) -> None:
        self._unexpected = unexpected

    def __getattr__(self, name: str) -> Any:
        return lambda *facts: self._unexpected.append(f"{name}: {facts}")


@contextmanager
def recoverer(url: str) -> Iterator[Recoverer]:
    """Yield a recoverer whose connections are closed at the end of the block."""
    made = Recoverer(url)
    try:
        yield made
    finally:
        made.close()
