"""Summarize the jobs of the schedule set that a policy deferred, and let them run sooner."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import redis

from framework.admin.explain_reader import deferrals_of
from framework.admin.pages import ranked_pages
from framework.admin.search import ScanPage, scan_members
from framework.admin.statistics import OnProgress
from framework.store.connect import server_time
from framework.store.steps import BoundedSteps
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import DEFERRED, DEFERRED_BY, clamp_time, timestamp
from framework.wire.json import loads_object

_CHANGED_AT_ONCE = (20, 1_000)
"""The fewest and the most jobs whose times one step changes."""

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

    def add(self, payload: Payload, due: float) -> None:
        self.jobs += 1
        self.max_deferrals = max(self.max_deferrals, deferrals_of(payload))
        self.next_due = due if self.jobs == 1 else min(self.next_due, due)
        created = timestamp(payload.get("created_at"))
        if created is not None:
            self.oldest = created if self.oldest is None else min(self.oldest, created)


def summarize_deferrals(client: "redis.Redis", on_progress: OnProgress) -> list[Deferral]:
    """Return the deferred jobs by class and reason, the oldest first. Reads the schedule set in pages. Raises redis errors."""
    found: dict[tuple[str, str], Deferral] = {}
    # Ranked pages cost Redis and this process less than a scan, and a job that moves meanwhile may be missed.
    for payload, _, due in _deferred_in(ranked_pages(client, keys.SCHEDULE), on_progress):
        name = str(payload.get("class", "")), str(payload.get(DEFERRED_BY, ""))
        found.setdefault(name, Deferral(*name)).add(payload, due)
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
    for payload, data, _ in _deferred_in(scan_members(client, keys.SCHEDULE, _NEEDLE), on_progress):
        if payload.get("class") == worker:
            page[data] = now + (moved + len(page)) / rate
        if len(page) >= steps.size or moved + len(page) == limit:
            moved, page = moved + _write_times(client, page, steps), {}
            if moved >= limit:
                return moved
    return moved + _write_times(client, page, steps)


def _write_times(client: "redis.Redis", times: dict[bytes, float], steps: BoundedSteps) -> int:
    if not times:
        return 0
    # XX: a job that is no longer in the set is not added again. LT: a time is only replaced by an earlier one.
    with steps.step(len(times)):
        moved: Any = client.zadd(keys.SCHEDULE, cast("Any", times), xx=True, lt=True, ch=True)
    return int(moved)


def _deferred_in(pages: Iterable[ScanPage], on_progress: OnProgress) -> Iterator[tuple[Payload, bytes, float]]:
    scanned = 0
    for page in pages:
        scanned += len(page)
        on_progress(keys.SCHEDULE, scanned)
        for data, due in page:
            if _NEEDLE in data and (payload := loads_object(data)).get(DEFERRED):
                yield payload, data, clamp_time(due)
