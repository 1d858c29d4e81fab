"""Count the held jobs of each limit and pause, and warn of those that wait too long.

One process of each shard checks and warns.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import redis
from redis.exceptions import OutOfMemoryError, ResponseError

from framework.fetch.held_blocks import packed_held
from framework.store.connect import server_time
from framework.text import decode_escaped
from framework.wire import keys
from framework.wire.job import clamp_time

CHECK_PERIOD_S = 300.0
"""The period of the check, which one process of the shard makes; a warning that still holds is repeated as often."""

ALERT_COUNT = 100_000
"""From this number of held jobs on, a warning is due however young they are: GitLab once needed two days for ten million."""

HeldKind: TypeAlias = Literal["waiting", "paused"]


class HeldJobsKey(NamedTuple):
    """One key with held jobs: those of the limit ``name``, or of the paused class ``name``."""

    kind: HeldKind
    name: str
    key: bytes


class HeldJobs(NamedTuple):
    """The held jobs of one limit or class: their number, the number of keys (one per scope), and since when (epoch seconds)."""

    kind: HeldKind
    name: str
    jobs: int
    scopes: int
    since: float


OnHeldTooLong: TypeAlias = Callable[[HeldKind, str, int, float], None]
"""Receives the kind and the name of the held jobs, their number, and the age of the oldest in seconds."""


class HeldJobsAlert:
    """Report held jobs that are older than ``max_age_s``, or too many. Use it from one thread."""

    def __init__(self, client: "redis.Redis", on_held_too_long: OnHeldTooLong, max_age_s: float) -> None:
        self._client = client
        self._on_held_too_long = on_held_too_long
        self._max_age_s = max_age_s
        self._checked_at = -math.inf

    def check(self) -> None:
        """Check the held jobs unless another process has done so within the period. Raises redis errors.

        A process that does not check sends one command a minute.
        """
        checked_at = time.monotonic()
        if checked_at - self._checked_at < CHECK_PERIOD_S / 5:
            return
        self._checked_at = checked_at
        if not self._claim_check():
            return
        now = server_time(self._client)
        for held in measure_held(self._client, held_keys(self._client)):
            oldest_s = now - held.since
            if oldest_s > self._max_age_s or held.jobs > ALERT_COUNT:
                self._on_held_too_long(held.kind, held.name, held.jobs, oldest_s)

    def _claim_check(self) -> bool:
        """Claim the check of this period; return whether this process makes it.

        On a full server, which refuses the claim, every process checks: held jobs are the likely cause.
        """
        try:
            return bool(self._client.set(keys.HELD_ALERT, 1, nx=True, px=int(CHECK_PERIOD_S * 1_000)))
        except OutOfMemoryError:
            return True


def held_keys(client: "redis.Redis") -> list[HeldJobsKey]:
    """Return the keys with held jobs that the indexes name, in two round trips. Raises redis errors."""
    pipeline: Any = client.pipeline(transaction=False)
    pipeline.smembers(keys.LIMITS_WAITING)
    pipeline.smembers(keys.PAUSED_CLASSES)
    bases, classes = pipeline.execute()
    # A member is the name of a key: no other program may choose the keys that are read here.
    ordered: list[bytes] = sorted(base for base in bases if base.startswith(keys.limit("").encode()))
    for base in ordered:
        pipeline.zrange(base + b":turns", 0, -1)
        pipeline.smembers(base + b":full")
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    found = [
        HeldJobsKey("waiting", _limit_name(base), base + b":waiting:" + scope)
        for index, base in enumerate(ordered)
        for scope in sorted({*_names(replies[2 * index]), *_names(replies[2 * index + 1])})
    ]
    paused = sorted(decode_escaped(name) for name in classes)
    return [*found, *(HeldJobsKey("paused", name, keys.paused_jobs(name).encode()) for name in paused)]


def measure_held(client: "redis.Redis", held_keys: Iterable[HeldJobsKey]) -> list[HeldJobs]:
    """Return the held jobs of these keys by limit or class, the oldest first, in two round trips. Raises redis errors."""
    keys_read = list(held_keys)
    pipeline: Any = client.pipeline(transaction=False)
    for held_key in keys_read:
        pipeline.zcard(held_key.key)
        pipeline.zrange(held_key.key, 0, 0, withscores=True)
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    packed: Mapping[bytes, int] = packed_held(client) if keys_read else {}
    found: dict[tuple[HeldKind, str], HeldJobs] = {}
    for index, (kind, name, key) in enumerate(keys_read):
        jobs, first = replies[2 * index], replies[2 * index + 1]
        # A key of another type, or a set that has been emptied meanwhile.
        if isinstance(jobs, ResponseError) or not first:
            continue
        before = found.get((kind, name), HeldJobs(kind, name, 0, 0, math.inf))
        since = min(before.since, clamp_time(first[0][1]))
        found[kind, name] = before._replace(
            jobs=before.jobs + jobs + packed.get(key, 0), scopes=before.scopes + 1, since=since
        )
    return sorted(found.values(), key=lambda held: held.since)


def _limit_name(base: bytes) -> str:
    return decode_escaped(base).removeprefix(keys.limit(""))


def _names(reply: Any) -> Iterable[bytes]:
    return () if isinstance(reply, ResponseError) else cast("Iterable[bytes]", reply)
