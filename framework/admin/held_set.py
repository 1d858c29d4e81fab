"""Read held jobs, and drop them by the fields of their payloads, such as their user or caller (GitLab's admin purge)."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, Unpack, cast

import redis

from framework.admin import port
from framework.admin.access import (
    TIME_LIMIT_S,
    Listing,
    collect,
    deadline_of,
    iterate,
    raise_first,
    run_on_each,
    sum_of,
)
from framework.admin.audit import audited
from framework.admin.entries import next_slice
from framework.admin.held_jobs import HeldKind, held_keys, measure_held
from framework.admin.job_record import JobCriteria, JobFilter, JobQuota, JobRecord, job_filter
from framework.admin.pages import ranked_members
from framework.admin.search import JobStore, ScanPage, list_held_stores, payload_of_member
from framework.admin.statistics import OnProgress, ignore_progress
from framework.async_twin import async_items, async_twin
from framework.errors import ShardUnavailableError
from framework.execute.admission import assign_free_slots
from framework.fetch.held_blocks import expand_member, unpack_held
from framework.settings.model import SizeLimitSettings
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.store.script import DROP_HELD
from framework.store.steps import BoundedSteps
from framework.telemetry.counters import series_name
from framework.telemetry.job_events import SKIPPED_JOBS
from framework.text import decode_escaped
from framework.types import Jid, JobState, Payload
from framework.wire import keys
from framework.wire.blocks import is_block
from framework.wire.job import clamp_time
from framework.wire.resources import JobResources, lock_of
from framework.wire.status_key import tracked_job
from framework.wire.waiters import awaited_job_of


@dataclass(slots=True)
class PurgeResult:
    """The result of a purge; ``completed`` is true if every held job was examined before the deadline."""

    scanned: int = 0
    matched: int = 0
    dropped: int = 0
    completed: bool = True


class HeldEnd(NamedTuple):
    """The state of held jobs that are dropped, and their counter with its labels."""

    state: JobState
    counter: str
    labels: Mapping[str, str]


DROPPED = HeldEnd("discarded", SKIPPED_JOBS, {"action": "dropped", "reason": "operator"})
"""An operator drops them."""


class HeldRecord(JobRecord):
    """A job that a limit or a pause holds: ``held_by`` is the limit or the class, ``since`` the start in epoch seconds."""

    def __init__(
        self,
        shard: str,
        store: JobStore,
        member: bytes,
        score: float,
        sizes: SizeLimitSettings,
        block: bytes | None = None,
    ) -> None:
        super().__init__(shard, payload_of_member(member), sizes)
        self.kind: HeldKind = "paused" if store.kind == "paused" else "waiting"
        self.held_by = store.name
        self.since = clamp_time(score)
        self.member = member
        self.block = block
        """The block (``wire/blocks.py``) that the job was read from, ``None`` for none."""


def held_records(
    shard: Shard, wanted: JobFilter, sizes: SizeLimitSettings, on_progress: OnProgress
) -> Iterator[tuple[JobStore, int, list[HeldRecord]]]:
    """Yield the matching jobs of each page of the places of held jobs, with the number that Redis sent. Raises redis errors."""
    now = server_time(shard.client)
    scanned = 0
    for store in list_held_stores(shard.client):
        # In their order: Redis reads and removes neighbours in half the time.
        for page in ranked_members(shard.client, store.key):
            for block, members in _by_block(shard.client, page):
                scanned += len(members)
                yield store, len(members), list(_matching(shard.name, store, members, block, wanted, sizes, now))
            on_progress(decode_escaped(store.key), scanned)


def _by_block(client: "redis.Redis", page: ScanPage) -> Iterator[tuple[bytes | None, ScanPage]]:
    """Yield the jobs of a page of members: first those that are in no block, then those of each block."""
    yield None, [one for one in page if not is_block(one[0])]
    for member, score in page:
        if is_block(member):
            yield member, cast("ScanPage", expand_member(client, member, score))


def _matching(
    shard: str,
    store: JobStore,
    members: ScanPage,
    block: bytes | None,
    wanted: JobFilter,
    sizes: SizeLimitSettings,
    now: float,
) -> Iterator[HeldRecord]:
    needle = wanted.needle or b""
    for member, score in members:
        if needle in member:
            record = HeldRecord(shard, store, member, score, sizes, block)
            if wanted.matches(record, record.since, now):
                yield record


def purge(
    shard: Shard,
    wanted: JobFilter,
    sizes: SizeLimitSettings,
    deadline: float,
    on_progress: OnProgress,
    *,
    quota: JobQuota,
    dry_run: bool,
    end: HeldEnd = DROPPED,
    rate: float | None = None,
) -> PurgeResult:
    """Drop every held job that matches, as many as the quota has; the limits of these jobs then give their free slots to others.

    It works page by page until ``deadline`` (monotonic clock); jobs that arrive meanwhile may be missed. A job that is
    released before its turn runs. The lock of a dropped job is released, and its status becomes ``discarded``. Raises
    redis errors; jobs dropped until then are gone. ``end`` is the state and the counter of the dropped jobs, ``rate`` that of
    ``BoundedSteps``.
    """
    result, limits = PurgeResult(), set[str]()
    steps = BoundedSteps(*_DROPPED_AT_ONCE, rate=rate)
    for store, scanned, matching in held_records(shard, wanted, sizes, on_progress):
        if time.monotonic() >= deadline:
            result.completed = False
            break
        found = list(quota.of(matching))
        result.scanned += scanned
        result.matched += len(found)
        if found and not dry_run:
            # The jobs of a page are all in one block, or in none.
            if found[0].block is not None:
                unpack_held(shard.client, store.key, found[0].block)
            start = 0
            while start < len(found):
                part = next_slice(found, start, steps.size, _size_of)
                start += len(part)
                result.dropped += _drop(shard.client, store, part, end, steps)
            limits |= {store.name} if store.kind == "waiting" else set()
        if quota.is_used_up:
            break
    for name in sorted(limits):
        assign_free_slots(shard.client, name, rate)
    return result


_DROPPED_AT_ONCE = (10, 500)
"""The fewest and the most jobs of one step."""


def _drop(
    client: "redis.Redis", store: JobStore, found: Sequence[HeldRecord], end: HeldEnd, steps: BoundedSteps
) -> int:
    """Drop the jobs in one atomic step; return how many were still there."""
    workers: dict[str, int] = {}
    jobs: list[Any] = []
    for one in found:
        worker = str(one.payload.get("class"))
        jobs += one.member, _holds(one.payload, end.state), workers.setdefault(worker, len(workers) + 1)
    series = [series_name(end.counter, {"worker": worker, **end.labels}) for worker in workers]
    with steps.step(len(found)):
        reply: Any = DROP_HELD(client, [store.key, keys.COUNTERS], [len(series), *series, *jobs])
    return int(reply)


def _size_of(one: HeldRecord) -> int:
    return len(one.member)


def _holds(payload: Payload, state: JobState) -> str:
    """Return the resources of a held job, as the argument of the script: its lock, its status, what waits for its end."""
    held, track = (
        JobResources(lock_of(payload), awaited=awaited_job_of(payload), end_word="removed"),
        tracked_job(payload),
    )
    if held.lock is None and held.awaited is None and track is None:
        return ""
    return held.on_end(None if track is None else track.command(state))


class HeldPlace(NamedTuple):
    """The held jobs of a limit (``waiting``) or a class (``paused``); ``since`` is that of the oldest, in epoch seconds."""

    shard: str
    kind: HeldKind
    name: str
    jobs: int
    since: float


@dataclass(slots=True)
class DropResult:
    """The result of ``delete`` of held jobs; ``completed`` is true if every held job was examined."""

    matched: int = 0
    done: int = 0
    scanned: int = 0
    completed: bool = True
    unanswered: dict[str, ShardUnavailableError] = field(default_factory=dict[str, ShardUnavailableError])


class MatchingHeldJobs:
    """The held jobs that match a filter: loop over them, count them, or delete them. An end of a limit or a pause releases them."""

    def __init__(self, shard: str | None, wanted: JobFilter) -> None:
        self._shard = shard
        self._wanted = wanted

    def __iter__(self) -> Iterator[HeldRecord]:
        """Yield the jobs, place by place. Raises ShardUnavailableError after the last one if a shard did not answer."""
        return JobQuota(self._wanted).of(iterate(self._shard, lambda home: _records(home, self._wanted)))

    def __aiter__(self) -> AsyncIterator[HeldRecord]:
        """Yield as a loop without ``async``, without blocking the event loop."""
        return async_items(self)

    def count(self) -> int:
        """Return the number of jobs.

        Raises:
            ShardUnavailableError: a shard does not answer, so the number would be incomplete.
        """
        quota = JobQuota(self._wanted)
        return sum_of(self._shard, lambda home: sum(1 for _ in quota.of(_records(home, self._wanted))))

    def delete(self, *, time_limit: timedelta | float | None = TIME_LIMIT_S) -> DropResult:
        """Delete the jobs: they never run. When the time limit ends the call, call it again.

        Raises:
            ReadOnlyError: inside of a ``read_only`` block.
        """
        deadline = deadline_of(time_limit)
        quota, sizes = JobQuota(self._wanted), port.current().settings.size_limit

        def step(home: Shard) -> PurgeResult:
            return purge(home, self._wanted, sizes, deadline, ignore_progress, quota=quota, dry_run=False)

        what = {"jobs": self._wanted or "all"}
        act = audited(f"{type(self).__name__}.delete", step, what, lambda one: one.dropped)
        answers = run_on_each(self._shard, act)
        done = answers.by_shard.values()
        return DropResult(
            sum(one.matched for one in done),
            sum(one.dropped for one in done),
            sum(one.scanned for one in done),
            not answers.unanswered and all(one.completed for one in done),
            answers.unanswered,
        )

    acount = async_twin(count)
    adelete = async_twin(delete)


class HeldSet(MatchingHeldJobs):
    """All held jobs of one shard or all."""

    def __init__(self, shard: str | None = None) -> None:
        super().__init__(shard, JobFilter())

    @property
    def size(self) -> int:
        """The number of held jobs.

        Raises:
            ShardUnavailableError: a shard does not answer, so the number would be incomplete.
        """
        places = self.places()
        raise_first(places.unanswered)
        return sum(place.jobs for place in places)

    async def asize(self) -> int:
        """Return ``size`` without blocking the event loop, with its errors."""
        return await asyncio.to_thread(lambda: self.size)

    def places(self) -> Listing[HeldPlace]:
        """Return the limits and classes with held jobs, on each shard the one with the oldest job first.

        Raises:
            ShardUnavailableError: no shard answers.
        """
        return collect(self._shard, _places)

    def indexed_places(self) -> Listing[HeldPlace]:
        """Return the places that the indexes name, in a few round trips, for a view that repeats. ``places`` scans the names of
        all keys, so it also finds a place that is missing in the index.

        Raises:
            ShardUnavailableError: no shard answers.
        """
        return collect(self._shard, _indexed_places)

    def find(self, jid: Jid) -> HeldRecord | None:
        """Return the job with this id, ``None`` if no limit or pause holds it.

        Raises:
            ShardUnavailableError: no shard that answers has it, and one does not answer.
        """
        wanted = JobFilter(text=jid)
        found = collect(self._shard, lambda home: (one for one in _records(home, wanted) if one.jid == jid))
        if not found:
            raise_first(found.unanswered)
        return found[0] if found else None

    def where(self, **criteria: Unpack[JobCriteria]) -> MatchingHeldJobs:
        """Return the jobs that match every criterion, as ``JobSet.where``.

        Raises:
            TypeError, ValueError: a criterion is unknown, empty, or of a wrong type.
        """
        return MatchingHeldJobs(self._shard, job_filter(**criteria))

    aplaces = async_twin(places)
    aindexed_places = async_twin(indexed_places)
    afind = async_twin(find)


def held(shard: str | None = None) -> HeldSet:
    """Return the jobs that wait at a limit, or for the end of a pause of their class."""
    return HeldSet(shard)


def _records(home: Shard, wanted: JobFilter) -> Iterator[HeldRecord]:
    sizes = port.current().settings.size_limit
    for _, _, found in held_records(home, wanted, sizes, ignore_progress):
        yield from found


def _places(home: Shard) -> Iterator[HeldPlace]:
    stores = list_held_stores(home.client)
    for one in measure_held(home.client, [store.as_held_jobs() for store in stores]):
        yield HeldPlace(home.name, one.kind, one.name, one.jobs, one.since)


def _indexed_places(home: Shard) -> Iterator[HeldPlace]:
    for one in measure_held(home.client, held_keys(home.client)):
        yield HeldPlace(home.name, one.kind, one.name, one.jobs, one.since)
