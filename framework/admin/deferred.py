"""Jobs of the schedule set that a policy has put off: how many of which class and why, and setting them forward."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import redis

from framework.admin.search import Tell, members, read_object
from framework.admin.times import clock
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import DEFERRED, DEFERRED_BY, DEFERRED_COUNT, moment, timestamp, whole_number

_STEP = 500
_MOST = 1_000_000

_MARK = b'"%s":' % DEFERRED.encode()


@dataclass(slots=True)
class Deferral:
    """The jobs of one class that were put off for one reason; times are epoch seconds."""

    worker: str
    by: str
    jobs: int = 0
    most: int = 0
    """How often the one was put off that was put off most often."""
    next_due: float = 0.0
    oldest: float | None = None
    """When the first of them was pushed."""

    def add(self, payload: Payload, due: float) -> None:
        """One more of them."""
        self.jobs += 1
        self.most = max(self.most, deferrals_of(payload))
        self.next_due = due if self.jobs == 1 else min(self.next_due, due)
        created = timestamp(payload.get("created_at"))
        if created is not None:
            self.oldest = created if self.oldest is None else min(self.oldest, created)


def deferrals_of(payload: Payload) -> int:
    """Return how often a put-off job was, as far as anybody counts."""
    return min(max(whole_number(payload.get(DEFERRED_COUNT)) or 1, 1), _MOST)


def deferrals(client: "redis.Redis", tell: Tell) -> list[Deferral]:
    """Return what is put off by class and reason, the oldest first. Goes through the schedule set in pages. Raises redis errors."""
    found: dict[tuple[str, str], Deferral] = {}
    for payload, _, due in _deferred(client, tell):
        name = str(payload.get("class", "")), str(payload.get(DEFERRED_BY, ""))
        found.setdefault(name, Deferral(*name)).add(payload, due)
    return sorted(found.values(), key=lambda deferral: (deferral.oldest or 0.0, deferral.worker))


def set_forward(client: "redis.Redis", worker: str, most: int, rate: float, tell: Tell) -> int:
    """Make at most so many put-off jobs of a class due from now on, ``rate`` of them a second; return how many are.

    Each keeps its place, so that it is due then or now at any moment: one that is due sooner is left alone, and so is one that
    somebody has taken meanwhile. Raises redis errors: what was set forward is.
    """
    now = clock(client)
    moved = 0
    page: dict[bytes, float] = {}
    for payload, data, _ in _deferred(client, tell):
        if payload.get("class") == worker:
            page[data] = now + (moved + len(page)) / rate
        if len(page) == _STEP or moved + len(page) == most:
            moved, page = moved + _write(client, page), {}
            if moved >= most:
                return moved
    return moved + _write(client, page)


def _write(client: "redis.Redis", times: dict[bytes, float]) -> int:
    if not times:
        return 0
    # XX: it may have become due and be gone. LT: it may be due sooner.
    moved: Any = client.zadd(keys.SCHEDULE, cast("Any", times), xx=True, lt=True, ch=True)
    return int(moved)


def _deferred(client: "redis.Redis", tell: Tell) -> Iterator[tuple[Payload, bytes, float]]:
    looked = 0
    for page in members(client, keys.SCHEDULE, _MARK):
        looked += len(page)
        tell(keys.SCHEDULE, looked)
        for data, due in page:
            payload = read_object(data)
            if payload.get(DEFERRED):
                yield payload, data, moment(due)
