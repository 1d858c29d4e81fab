"""Dropping parked jobs by what their payloads say of themselves: whose they are, where they came from (GitLab's admin purge)."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from framework.admin.search import (
    JobStore,
    OnProgress,
    display_name,
    list_held_stores,
    parse_object,
    payload_of_member,
    scan_members,
)
from framework.policies.defer.flags import SKIPPED_JOBS
from framework.store.script import DROP_HELD
from framework.telemetry.counters import series_name
from framework.types import Payload
from framework.wire import keys
from framework.wire.json import dumps
from framework.wire.resources import JobResources, lock_of
from framework.wire.status_key import tracked_job


@dataclass(slots=True)
class PurgeResult:
    """What came of it: ``completed`` says that every parked job was looked at before the time was up."""

    scanned: int = 0
    matched: int = 0
    dropped: int = 0
    completed: bool = True


def purge(
    client: "redis.Redis", wanted: Mapping[str, str], deadline: float, on_progress: OnProgress, *, dry_run: bool
) -> tuple[PurgeResult, set[str]]:
    """Drop every parked job whose payload has all of these fields; return what came of it, and the limits that had some.

    Page by page until ``deadline`` (of the monotonic clock); what comes meanwhile may be left. A job that is handed over while
    it is judged runs. Its lock goes with it, and its state says ``discarded``. Raises redis errors: what was dropped is.
    """
    done, limits = PurgeResult(), set[str]()
    needle = _needle(wanted)
    for place in list_held_stores(client):
        for page in scan_members(client, place.key, needle):
            if time.monotonic() >= deadline:
                done.completed = False
                return done, limits
            found = [member for member, _ in page if _matches(parse_object(payload_of_member(member)), wanted)]
            done.scanned += len(page)
            done.matched += len(found)
            on_progress(display_name(place.key), done.scanned)
            if found and not dry_run:
                done.dropped += sum(_drop(client, place, found))
                limits |= {place.name} if place.kind == "waiting" else set()
    return done, limits


def _drop(client: "redis.Redis", store: JobStore, found: list[bytes]) -> Iterator[int]:
    calls: list[tuple[list[Any], list[Any]]] = []
    for member in found:
        payload = parse_object(payload_of_member(member))
        lock, track = lock_of(payload), tracked_job(payload)
        series = series_name(
            SKIPPED_JOBS, {"worker": str(payload.get("class")), "action": "dropped", "reason": "operator"}
        )
        places: list[Any] = [store.key, keys.COUNTERS]
        state: Sequence[Any] = ("", 0)
        if track is not None:
            places.append(keys.status(track.jid))
            state = ("discarded", track.ttl_s)
        calls.append((places, [member, "" if lock is None else JobResources(lock).on_end(), *state, series]))
    for reply in DROP_HELD.each(client, calls):
        if isinstance(reply, Exception):
            raise reply
        yield int(reply)


def _matches(payload: Payload, wanted: Mapping[str, str]) -> bool:
    return all(name in payload and _as_text(payload[name]) == value for name, value in wanted.items())


def _as_text(value: object) -> str:
    """A number is asked for as it is written."""
    return value if isinstance(value, str) else dumps(value).decode()


def _needle(wanted: Mapping[str, str]) -> bytes | None:
    """The longest of the values, when it stands in a payload as it is asked for: Redis picks by it."""
    plain = [value.encode() for value in wanted.values() if value.isascii() and value.isprintable()]
    plain = [value for value in plain if not set(value) & set(b"\"\\/<>&'")]  # some writers escape these
    return max(plain, key=len, default=None)
