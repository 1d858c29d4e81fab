"""Taking back what dead processes held, and what a live process lost sight of.

A process is dead when its lease is gone: asked inside the script that moves each job. A supervisor that has seen its
child die removes the lease at once; the processes that know the classes do the taking back.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import redis

from framework.declare import registry
from framework.errors import PayloadError
from framework.fetch.custody import Custody
from framework.fetch.fetcher import LEASE_MS, requeue
from framework.fetch.parking import PARK_S, REPLY_MARGIN_S
from framework.fetch.unit_of_work import UnitOfWork
from framework.store.script import FORGET, RECLAIM
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import Job, decode, whole_number
from framework.wire.json import dumps

FORGET_AFTER_S = LEASE_MS // 1000 + 2 * int(PARK_S + REPLY_MARGIN_S)
"""Seconds since the last beat after which no parked call of a dead process can be alive."""

MAX_INTERRUPTIONS = 3
"""Recoveries of one job before it is quarantined, unless its class says otherwise (GitLab's default)."""

_PAGE = 200


@dataclass(frozen=True, slots=True)
class Recovered:
    """One job taken back: where it went and how often it has been interrupted."""

    owner: str
    job: Job
    destination: str

    @property
    def quarantined(self) -> bool:
        """Whether it was interrupted too often and will not run again by itself."""
        return self.destination == keys.INTERRUPTED


class Reaper:
    """Looks after the working lists of one shard. Any number may run at once, in any process."""

    def __init__(self, client: "redis.Redis", on_recovered: Callable[[Recovered], None]) -> None:
        self._client = client
        self._on_recovered = on_recovered

    def sweep(self, own: str = "") -> int:
        """Take back the jobs of every process without a lease, except ``own``; return their number. Raises redis errors."""
        members = cast("list[bytes]", self._client.zrange(keys.REGISTRY, 0, -1))  # pyright: ignore[reportUnknownMemberType]
        return sum(
            self.reclaim(name)
            for name in (member.decode(errors="backslashreplace") for member in members)
            if name != own
        )

    def reclaim(self, identity: str) -> int:
        """Take back everything in one working list unless its owner has a lease; forget the owner when that is safe."""
        if self._client.exists(keys.lease(identity)):
            return 0
        moved = 0
        while page := self._page(identity):
            results = [self._reclaim_one(identity, data) for data in page]
            moved += results.count(1)
            if -1 in results or not any(results):
                break  # it lives, or others are at the same work
        FORGET(
            self._client,
            [keys.lease(identity), keys.working(identity), keys.REGISTRY],
            [identity, FORGET_AFTER_S],
        )
        return moved

    def _page(self, identity: str) -> list[bytes]:
        # The head is the youngest; each goes to the right end in turn, so the oldest ends up next to run.
        return cast("list[bytes]", self._client.lrange(keys.working(identity), 0, _PAGE - 1))

    def _reclaim_one(self, identity: str, data: bytes) -> int:
        fate = _fate(data)
        moved: Any = RECLAIM(
            self._client,
            [keys.lease(identity), keys.working(identity), fate.key, keys.QUEUES],
            [data, fate.data, "queue" if fate.queue else "set", fate.queue],
        )
        if moved == 1:
            self._on_recovered(Recovered(identity, Job(fate.payload), fate.key))
        return int(moved)


@dataclass(frozen=True, slots=True)
class _Fate:
    key: str
    queue: str
    data: bytes
    payload: Payload


def _fate(data: bytes) -> _Fate:
    """Decide before anything is removed: back to its queue, quarantined after too many deaths, or dead if unreadable."""
    try:
        payload = decode(data)
        queue = payload.get("queue")
        if not isinstance(queue, str) or not queue:
            raise PayloadError("it names no queue")
        payload["interrupted_count"] = count = (whole_number(payload.get("interrupted_count")) or 0) + 1
        changed = dumps(payload)
    except PayloadError:
        return _Fate(keys.DEAD, "", data, {})
    limit = _max_interruptions(payload)
    if 0 <= limit < count:
        return _Fate(keys.INTERRUPTED, "", changed, payload)
    return _Fate(keys.queue(queue), queue, changed, payload)


def _max_interruptions(payload: Payload) -> int:
    worker = registry.find(str(payload.get("class")))
    return MAX_INTERRUPTIONS if worker is None else worker.declaration().max_retries_after_interruption


class Reconciler:
    """Finds jobs that are in our own working list but not in our memory: a fetch whose reply was lost.

    Only what two looks in a row did not know is given back: a reply may be on its way during the first.
    """

    def __init__(self, client: "redis.Redis", identity: str, custody: Custody) -> None:
        self._client = client
        self._identity = identity
        self._custody = custody
        self._suspects: set[bytes] = set()

    def look(self) -> int:
        """Compare once; return how many jobs were given back. Raises redis errors."""
        known = self._custody.known()  # before the list is read: what is fetched in between is at worst a suspect
        listed = cast("list[bytes]", self._client.lrange(keys.working(self._identity), 0, -1))
        unknown = {data for data in listed if data not in known}
        lost = unknown & self._suspects
        self._suspects = unknown - lost
        readable = [(UnitOfWork(queue, data), data) for data in lost if (queue := _queue_of(data))]
        return requeue(self._client, self._identity, readable)


def _queue_of(data: bytes) -> str:
    try:
        queue = decode(data).get("queue")
    except PayloadError:
        return ""
    return queue if isinstance(queue, str) else ""


def retire(client: "redis.Redis", identity: str) -> None:
    """A process is known to be dead (its parent saw it die): remove its lease, so that the next sweep takes its jobs back."""
    client.delete(keys.lease(identity), identity, *keys.work(identity))
    client.srem(keys.PROCESSES, identity)


def draw_pause(period_s: float) -> float:
    """Return ``period_s`` give or take a fifth, so that a fleet started at once does not sweep at once."""
    return period_s * (0.8 + 0.4 * secrets.randbelow(1000) / 1000)
