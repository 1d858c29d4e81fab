"""Summarize the jobs of the schedule set that a policy deferred, and let them run sooner."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import redis

from framework.admin.explain_reader import deferrals_of
from framework.admin.pages import ranked_data
from framework.admin.search import scan_members
from framework.admin.statistics import OnProgress
from framework.fetch.deferred_blocks import blocks_of, move_times
from framework.store.connect import server_time
from framework.store.steps import BoundedSteps
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import DEFERRED, DEFERRED_BY, clamp_time, timestamp
from framework.wire.json import loads_object

_CHANGED_AT_ONCE = (20, 300)
"""The fewest and the most jobs whose times one step changes: a job takes 11 us of Redis."""

_NEEDLE = b'"%s":' % DEFERRED.encode()


@dataclass(slots=True)
class Deferral:
    """The jobs of one class that were deferred for one reason; times are epoch seconds."""

    worker: str
    by: str
    jobs: int = 0
    max_deferrals: int = 0
    """The highest number of deferrals of one job."""
    next_due: float = 0.0
    oldest: float | None = None
    """When the oldest of the jobs was pushed."""

    def add(self, payload: Payload) -> None:
        self.jobs += 1
        self.max_deferrals = max(self.max_deferrals, deferrals_of(payload))
        created: object = payload.get("created_at")
        # Most are younger than the oldest one, and need no check.
        if self.oldest is not None and type(created) is float and created >= self.oldest:
            return
        created = timestamp(created)
        if created is not None:
            self.oldest = created if self.oldest is None else min(self.oldest, created)


def summarize_deferrals(client: "redis.Redis", on_progress: OnProgress) -> list[Deferral]:
    """Return the deferred jobs by class and reason, the oldest first. Reads the schedule set in pages. Raises redis errors."""
    found: dict[tuple[str, str], Deferral] = {}
    # Ranked pages cost Redis and this process less than a scan, and a job that moves meanwhile may be missed.
    pages = itertools.chain(ranked_data(client, keys.SCHEDULE), ranked_data(client, keys.DEFERRED_PACKED))
    for payload, data in _deferred_in(pages, on_progress):
        name = str(payload.get("class", "")), str(payload.get(DEFERRED_BY, ""))
        one = found.get(name)
        if one is None:
            # In each of both places the next one to be due comes first.
            one = found[name] = Deferral(*name, next_due=_due(client, data, *name))
        one.add(payload)
    return sorted(found.values(), key=lambda deferral: (deferral.oldest or 0.0, deferral.worker))


def run_sooner(client: "redis.Redis", worker: str, limit: int, rate: float, on_progress: OnProgress) -> int:
    """Make up to ``limit`` deferred jobs of a class due from now on, ``rate`` per second; return how many.

    A job keeps its place in the set, and only its time changes: a job that is due sooner, or that a poller has taken
    meanwhile, is left alone. Raises redis errors; the jobs changed until then stay changed.
    """
    # At a rate: a deferred backlog that became due at once was an incident at GitLab (June 2023).
    now = server_time(client)
    moved = 0
    steps = BoundedSteps(*_CHANGED_AT_ONCE)
    page: dict[bytes, float] = {}
    pages = ([data for data, _ in page] for page in scan_members(client, keys.SCHEDULE, _NEEDLE))
    for payload, data in _deferred_in(pages, on_progress):
        if payload.get("class") == worker:
            page[data] = now + (moved + len(page)) / rate
        if len(page) >= steps.size or moved + len(page) == limit:
            moved, page = moved + _write_times(client, page, steps), {}
            if moved >= limit:
                return moved
    moved += _write_times(client, page, steps)
    return moved + _run_blocks_sooner(client, worker, limit - moved, now + moved / rate, rate)


def _run_blocks_sooner(client: "redis.Redis", worker: str, limit: int, start: float, rate: float) -> int:
    """Make jobs in blocks (``fetch/deferred_blocks.py``) due from ``start`` on; return how many: at least ``limit``, if there are."""
    moved = 0
    for block in blocks_of(client, worker):
        if moved >= limit:
            break
        moved += block.jobs * move_times(client, {block.name: start + moved / rate}, sooner=True)
    return moved


def _write_times(client: "redis.Redis", times: dict[bytes, float], steps: BoundedSteps) -> int:
    if not times:
        return 0
    # XX: a job that is no longer in the set is not added again. LT: a time is only replaced by an earlier one.
    with steps.step(len(times)):
        moved: Any = client.zadd(keys.SCHEDULE, cast("Any", times), xx=True, lt=True, ch=True)
    return int(moved)


def _due(client: "redis.Redis", member: bytes, worker: str, by: str) -> float:
    """Return when the next job of a kind is due: the first in the schedule set, or of a block; now, if all have left both."""
    score: Any = client.zscore(keys.SCHEDULE, member)
    found = [] if score is None else [clamp_time(score)]
    found += [clamp_time(one.due) for one in blocks_of(client, worker, by)[:1]]
    return min(found) if found else server_time(client)


def _deferred_in(pages: Iterable[Sequence[bytes]], on_progress: OnProgress) -> Iterator[tuple[Payload, bytes]]:
    scanned = 0
    for page in pages:
        scanned += len(page)
        on_progress(keys.SCHEDULE, scanned)
        for data in page:
            if _NEEDLE in data and (payload := loads_object(data)).get(DEFERRED):
                yield payload, data
