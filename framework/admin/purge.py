"""Drop held jobs by the fields of their payloads, such as their user or caller (GitLab's admin purge)."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from framework.admin.job_counts import OnProgress
from framework.admin.search import JobStore, list_held_stores, payload_of_member, scan_members
from framework.store.script import DROP_HELD
from framework.telemetry.counters import SKIPPED_JOBS, series_name
from framework.text import decode_escaped
from framework.types import Payload
from framework.wire import keys
from framework.wire.json import dumps, loads_object
from framework.wire.resources import JobResources, lock_of
from framework.wire.status_key import tracked_job


@dataclass(slots=True)
class PurgeResult:
    """The result of a purge; ``completed`` is true if every held job was examined before the deadline."""

    scanned: int = 0
    matched: int = 0
    dropped: int = 0
    completed: bool = True


def purge(
    client: "redis.Redis", wanted: Mapping[str, str], deadline: float, on_progress: OnProgress, *, dry_run: bool
) -> tuple[PurgeResult, set[str]]:
    """Drop every held job whose payload has all of these fields; return the result and the limits that had such jobs.

    It works page by page until ``deadline`` (monotonic clock); jobs that arrive meanwhile may be missed. A job that is
    released before its turn runs. The lock of a dropped job is released, and its status becomes ``discarded``. Raises
    redis errors; jobs dropped until then are gone.
    """
    result, limits = PurgeResult(), set[str]()
    needle = _needle(wanted)
    for place in list_held_stores(client):
        for page in scan_members(client, place.key, needle):
            if time.monotonic() >= deadline:
                result.completed = False
                return result, limits
            found = [member for member, _ in page if _matches(loads_object(payload_of_member(member)), wanted)]
            result.scanned += len(page)
            result.matched += len(found)
            on_progress(decode_escaped(place.key), result.scanned)
            if found and not dry_run:
                result.dropped += sum(_drop(client, place, found))
                limits |= {place.name} if place.kind == "waiting" else set()
    return result, limits


def _drop(client: "redis.Redis", store: JobStore, found: list[bytes]) -> Iterator[int]:
    calls: list[tuple[list[Any], list[Any]]] = []
    for member in found:
        payload = loads_object(payload_of_member(member))
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
    """Return the value as operators write it: a number as in JSON."""
    return value if isinstance(value, str) else dumps(value).decode()


def _needle(wanted: Mapping[str, str]) -> bytes | None:
    """Return the longest value that stands in a payload exactly as it is written: Redis filters by it."""
    plain = [value.encode() for value in wanted.values() if value.isascii() and value.isprintable()]
    # Some JSON writers escape these characters.
    plain = [value for value in plain if not set(value) & set(b"\"\\/<>&'")]
    return max(plain, key=len, default=None)
