"""Read held jobs, and drop them by the fields of their payloads, such as their user or caller (GitLab's admin purge)."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import redis

from framework.admin.held_jobs import HeldKind
from framework.admin.job_counts import OnProgress
from framework.admin.job_filter import JobFilter
from framework.admin.job_record import JobRecord
from framework.admin.search import JobStore, list_held_stores, payload_of_member, scan_members
from framework.execute.slots import assign_free_slots
from framework.settings.size_limit import SizeLimitSettings
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.store.script import DROP_HELD
from framework.telemetry.counters import SKIPPED_JOBS, series_name
from framework.text import decode_escaped
from framework.types import JobState
from framework.wire import keys
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

    def __init__(self, shard: str, store: JobStore, member: bytes, score: float, sizes: SizeLimitSettings) -> None:
        super().__init__(shard, payload_of_member(member), sizes)
        self.kind: HeldKind = "paused" if store.kind == "paused" else "waiting"
        self.held_by = store.name
        self.since = clamp_time(score)
        self.member = member


def held_records(
    shard: Shard, wanted: JobFilter, sizes: SizeLimitSettings, on_progress: OnProgress
) -> Iterator[tuple[JobStore, int, list[HeldRecord]]]:
    """Yield the matching jobs of each page of the places of held jobs, with the number that Redis sent. Raises redis errors."""
    now = server_time(shard.client)
    scanned = 0
    for store in list_held_stores(shard.client):
        for page in scan_members(shard.client, store.key, wanted.needle):
            records = [HeldRecord(shard.name, store, member, score, sizes) for member, score in page]
            scanned += len(page)
            on_progress(decode_escaped(store.key), scanned)
            yield store, len(page), [one for one in records if wanted.matches(one, one.since, now)]


def purge(
    shard: Shard,
    wanted: JobFilter,
    sizes: SizeLimitSettings,
    deadline: float,
    on_progress: OnProgress,
    *,
    dry_run: bool,
    end: HeldEnd = DROPPED,
) -> PurgeResult:
    """Drop every held job that matches; the limits of these jobs then give their free slots to others.

    It works page by page until ``deadline`` (monotonic clock); jobs that arrive meanwhile may be missed. A job that is
    released before its turn runs. The lock of a dropped job is released, and its status becomes ``discarded``. Raises
    redis errors; jobs dropped until then are gone. ``end`` is the state and the counter of the dropped jobs.
    """
    result, limits = PurgeResult(), set[str]()
    for store, scanned, found in held_records(shard, wanted, sizes, on_progress):
        if time.monotonic() >= deadline:
            result.completed = False
            break
        result.scanned += scanned
        result.matched += len(found)
        if found and not dry_run:
            result.dropped += sum(_drop(shard.client, store, found, end))
            limits |= {store.name} if store.kind == "waiting" else set()
    for name in sorted(limits):
        assign_free_slots(shard.client, name)
    return result


def _drop(client: "redis.Redis", store: JobStore, found: list[HeldRecord], end: HeldEnd) -> Iterator[int]:
    calls: list[tuple[list[Any], list[Any]]] = []
    for one in found:
        payload = one.payload
        held, track = (
            JobResources(lock_of(payload), awaited=awaited_job_of(payload), end_word="removed"),
            tracked_job(payload),
        )
        resources = "" if held.lock is None and held.awaited is None else held.on_end()
        series = series_name(end.counter, {"worker": str(payload.get("class")), **end.labels})
        places: list[Any] = [store.key, keys.COUNTERS]
        state: Sequence[Any] = ("", 0)
        if track is not None:
            places.append(keys.status(track.jid))
            state = (end.state, track.ttl_s)
        calls.append((places, [one.member, resources, *state, series]))
    for reply in DROP_HELD.each(client, calls):
        if isinstance(reply, Exception):
            raise reply
        yield int(reply)
