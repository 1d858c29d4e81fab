"""Dropping parked jobs by what their payloads say of themselves: whose they are, where they came from (GitLab's admin purge)."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from framework.admin.search import Place, Tell, members, parked_places, payload_of, read_object, text
from framework.policies.defer.flags import SKIPPED
from framework.store.script import DISCARD
from framework.telemetry.counters import series_name
from framework.types import Payload
from framework.wire import keys
from framework.wire.holds import Holds, lock_of
from framework.wire.json import dumps
from framework.wire.status import tracked


@dataclass(slots=True)
class Purge:
    """What came of it: ``completed`` says that every parked job was looked at before the time was up."""

    looked: int = 0
    matching: int = 0
    dropped: int = 0
    completed: bool = True


def purge(
    client: "redis.Redis", wanted: Mapping[str, str], deadline: float, tell: Tell, *, dry_run: bool
) -> tuple[Purge, set[str]]:
    """Drop every parked job whose payload has all of these fields; return what came of it, and the limits that had some.

    Page by page until ``deadline`` (of the monotonic clock); what comes meanwhile may be left. A job that is handed over while
    it is judged runs. Its lock goes with it, and its state says ``discarded``. Raises redis errors: what was dropped is.
    """
    done, limits = Purge(), set[str]()
    needle = _needle(wanted)
    for place in parked_places(client):
        for page in members(client, place.key, needle):
            if time.monotonic() >= deadline:
                done.completed = False
                return done, limits
            found = [member for member, _ in page if _matches(read_object(payload_of(member)), wanted)]
            done.looked += len(page)
            done.matching += len(found)
            tell(text(place.key), done.looked)
            if found and not dry_run:
                done.dropped += sum(_drop(client, place, found))
                limits |= {place.name} if place.kind == "waiting" else set()
    return done, limits


def _drop(client: "redis.Redis", place: Place, found: list[bytes]) -> Iterator[int]:
    calls: list[tuple[list[Any], list[Any]]] = []
    for member in found:
        payload = read_object(payload_of(member))
        lock, track = lock_of(payload), tracked(payload)
        series = series_name(SKIPPED, {"worker": str(payload.get("class")), "action": "dropped", "reason": "operator"})
        places: list[Any] = [place.key, keys.COUNTERS]
        state: Sequence[Any] = ("", 0)
        if track is not None:
            places.append(keys.status(track.jid))
            state = ("discarded", track.kept_s)
        calls.append((places, [member, "" if lock is None else Holds(lock).ended(), *state, series]))
    for reply in DISCARD.each(client, calls):
        if isinstance(reply, Exception):
            raise reply
        yield int(reply)


def _matches(payload: Payload, wanted: Mapping[str, str]) -> bool:
    return all(name in payload and _said(payload[name]) == value for name, value in wanted.items())


def _said(value: object) -> str:
    """A number is asked for as it is written."""
    return value if isinstance(value, str) else dumps(value).decode()


def _needle(wanted: Mapping[str, str]) -> bytes | None:
    """The longest of the values, when it stands in a payload as it is asked for: Redis picks by it."""
    plain = [value.encode() for value in wanted.values() if value.isascii() and value.isprintable()]
    plain = [value for value in plain if not set(value) & set(b"\"\\/<>&'")]  # some writers escape these
    return max(plain, key=len, default=None)
