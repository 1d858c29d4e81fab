"""Jobs that wait behind a limit or a pause: how many, since when; and one voice of the fleet that tells when it is too long."""

import math
import time
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, cast

import redis
from redis.exceptions import OutOfMemoryError, ResponseError

from framework.wire import keys
from framework.wire.job import clamp_time

CHECK_PERIOD_S = 300.0
"""So often does one process of the fleet look; what goes on is told as often."""

ALERT_COUNT = 100_000
"""So many waiting jobs of one class are told of however young they are: GitLab once took two days over ten million."""

HeldKind: TypeAlias = Literal["waiting", "paused"]


class HeldJobsKey(NamedTuple):
    """One key with parked jobs: they wait behind the limit ``name``, or behind the pause of the class ``name``."""

    kind: HeldKind
    name: str
    key: bytes


class HeldJobs(NamedTuple):
    """The parked jobs of one limit or class: how many, in how many keys (one per scope), the oldest's begin (epoch seconds)."""

    kind: HeldKind
    name: str
    jobs: int
    scopes: int
    since: float


class HeldJobsEvents(Protocol):
    """Who is told."""

    def held_too_long(self, held: HeldJobs, oldest_s: float) -> None:
        """Nobody has released these."""


class HeldJobsAlert:
    """Tells of what waits for longer than ``most_s``, or is too much. For one thread of each process; one of all of them looks."""

    def __init__(self, client: "redis.Redis", events: HeldJobsEvents, max_age_s: float) -> None:
        self._client = client
        self._events = events
        self._max_age_s = max_age_s
        self._checked_at = -math.inf

    def check(self) -> None:
        """Look, if nobody has for some minutes. Costs one command a minute, else. Raises redis errors."""
        now = time.monotonic()
        if now - self._checked_at < CHECK_PERIOD_S / 5:
            return
        self._checked_at = now
        if not self._claim_check():
            return
        seconds, microseconds = self._client.time()
        for parked in measure_held(self._client, held_keys(self._client)):
            oldest_s = seconds + microseconds / 1_000_000 - parked.since
            if oldest_s > self._max_age_s or parked.jobs > ALERT_COUNT:
                self._events.held_too_long(parked, oldest_s)

    def _claim_check(self) -> bool:
        """Whether nobody has looked for some minutes. On a full server each process is told so: that is when it matters."""
        try:
            return bool(self._client.set(keys.HELD_ALERT, 1, nx=True, px=int(CHECK_PERIOD_S * 1_000)))
        except OutOfMemoryError:
            return True


def held_keys(client: "redis.Redis") -> list[HeldJobsKey]:
    """Return the keys with parked jobs that the indexes name: two round trips. Raises redis errors."""
    pipeline: Any = client.pipeline(transaction=False)
    pipeline.smembers(keys.LIMITS_WAITING)
    pipeline.smembers(keys.PAUSED_CLASSES)
    bases, classes = pipeline.execute()
    ordered: list[bytes] = sorted(bases)
    for base in ordered:
        pipeline.zrange(base + b":turns", 0, -1)
        pipeline.smembers(base + b":full")
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    found = [
        HeldJobsKey("waiting", _limit_name(base), base + b":waiting:" + scope)
        for index, base in enumerate(ordered)
        for scope in sorted({*_names(replies[2 * index]), *_names(replies[2 * index + 1])})
    ]
    paused = sorted(name.decode(errors="backslashreplace") for name in classes)
    return [*found, *(HeldJobsKey("paused", name, keys.paused_jobs(name).encode()) for name in paused)]


def measure_held(client: "redis.Redis", places: Iterable[HeldJobsKey]) -> list[HeldJobs]:
    """Return what there is in these keys by limit or class, the oldest first: one round trip. Raises redis errors."""
    asked = list(places)
    pipeline: Any = client.pipeline(transaction=False)
    for place in asked:
        pipeline.zcard(place.key)
        pipeline.zrange(place.key, 0, 0, withscores=True)
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    found: dict[tuple[HeldKind, str], HeldJobs] = {}
    for index, place in enumerate(asked):
        jobs, first = replies[2 * index], replies[2 * index + 1]
        if isinstance(jobs, ResponseError) or not first:  # of another type, or all gone meanwhile
            continue
        before = found.get((place.kind, place.name), HeldJobs(place.kind, place.name, 0, 0, math.inf))
        since = min(before.since, clamp_time(first[0][1]))
        found[place.kind, place.name] = before._replace(jobs=before.jobs + jobs, scopes=before.scopes + 1, since=since)
    return sorted(found.values(), key=lambda parked: parked.since)


def _limit_name(base: bytes) -> str:
    return base.decode(errors="backslashreplace").removeprefix(keys.limit(""))


def _names(reply: Any) -> Iterable[bytes]:
    return () if isinstance(reply, ResponseError) else cast("Iterable[bytes]", reply)
