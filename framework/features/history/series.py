"""Read the runs of a shard by minute and by ten minutes, from the keys of Sidekiq's Metrics page: functions of its client."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import redis

from framework.execute.stats import BUCKETS_MS
from framework.store.hashes import read_hashes
from framework.text import decode_escaped
from framework.wire import keys

MINUTE_S, TEN_MINUTES_S, HOUR_S = 60, 600, 3_600
BUCKETS = len(BUCKETS_MS) + 1
"""The buckets of a histogram: the last one has the runs longer than all bounds."""

_AT_ONCE = 100
_WORDS = ("p", "f", "ms")


class Runs(NamedTuple):
    """The runs of a class that ended in some time, failed ones included."""

    processed: int = 0
    failed: int = 0
    seconds: float = 0.0
    """The duration of the runs that did not fail."""

    def plus(self, other: "Runs") -> "Runs":
        return Runs(self.processed + other.processed, self.failed + other.failed, self.seconds + other.seconds)


def read_runs(
    client: "redis.Redis", starts: Sequence[float], step_s: int, versions: Sequence[int], cls: str | None
) -> list[dict[str, Runs]]:
    """Return the runs by class in each period that begins at one of ``starts``. Raises redis errors.

    ``step_s`` is a minute or ten minutes; Sidekiq 7 has no keys of ten minutes, so its minutes are added up.
    """
    # Both versions have the same runs of our processes. Ruby's Sidekiq writes one of them.
    found = [_read_version(client, starts, step_s, version, cls) for version in versions]
    if len(found) < 2:
        return found[0] if found else [{} for _ in starts]
    return [_larger(first, second) for first, second in zip(*found, strict=True)]


def _larger(first: dict[str, Runs], second: dict[str, Runs]) -> dict[str, Runs]:
    return {name: max(first.get(name, Runs()), second.get(name, Runs())) for name in {**first, **second}}


def _read_version(
    client: "redis.Redis", starts: Sequence[float], step_s: int, version: int, cls: str | None
) -> list[dict[str, Runs]]:
    names = [name for start in starts for name in _keys_of_period(start, step_s, version)]
    fields = () if cls is None else [f"{cls}|{word}" for word in _WORDS]
    replies = [_runs_by_class(one.items()) for one in read_hashes(client, names, fields)]
    count = len(replies) // len(starts) if starts else 0
    return [_sum(replies[at * count : (at + 1) * count]) for at in range(len(starts))]


def _keys_of_period(start: float, step_s: int, version: int) -> list[str]:
    if step_s == TEN_MINUTES_S and version >= 8:
        return [keys.metrics(8, time.gmtime(start))[1][0]]
    minutes = range(step_s // MINUTE_S)
    return [keys.metrics(version, time.gmtime(start + MINUTE_S * one))[0][0] for one in minutes]


def _runs_by_class(fields: Iterable[tuple[bytes, bytes]]) -> dict[str, Runs]:
    counts: dict[str, dict[str, int]] = {}
    for field, value in fields:
        name, _, word = decode_escaped(field).rpartition("|")
        if name and value.isdigit() and len(value) < 19:
            counts.setdefault(name, {})[word] = int(value)
    return {name: Runs(one.get("p", 0), one.get("f", 0), one.get("ms", 0) / 1_000) for name, one in counts.items()}


def _sum(found: Sequence[dict[str, Runs]]) -> dict[str, Runs]:
    if len(found) == 1:
        return found[0]
    total: dict[str, Runs] = {}
    for one in found:
        for name, runs in one.items():
            total[name] = total.get(name, Runs()).plus(runs)
    return total


def read_durations(
    client: "redis.Redis", minutes: Sequence[float], versions: Sequence[int], names: Iterable[str]
) -> Mapping[str, list[int]]:
    """Return the histogram of the durations of each class, over these minutes. Raises redis errors.

    Sidekiq keeps the histograms of a minute for eight hours.
    """
    version = max(versions, default=8)
    return {
        name: _histogram(client, [keys.histogram(version, name, time.gmtime(at)) for at in minutes]) for name in names
    }


def _histogram(client: "redis.Redis", names: Sequence[str]) -> list[int]:
    total = [0] * BUCKETS
    for at in range(0, len(names), _AT_ONCE):
        # MGET answers nothing for a key of another type.
        reply: Any = client.mget(names[at : at + _AT_ONCE])
        for text in cast("list[bytes | None]", reply):
            for bucket in range(min(BUCKETS, len(text or b"") // 2)):
                total[bucket] += int.from_bytes((text or b"")[2 * bucket : 2 * bucket + 2], "big")
    return total
