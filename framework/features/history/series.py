"""Read the runs of a shard by minute and by ten minutes, from the keys of Sidekiq's Metrics page: functions of its client."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from typing import Any, Generic, NamedTuple, TypeVar, cast

import redis

from framework.execute.stats import BUCKETS_MS
from framework.store.hashes import read_hashes
from framework.text import decode_escaped
from framework.wire import keys

T = TypeVar("T")

MINUTE_S, TEN_MINUTES_S, HOUR_S, DAY_S = 60, 600, 3_600, 86_400
SETTLED_S = 120
"""After this time, every process has written its runs of a period."""

BUCKETS = len(BUCKETS_MS) + 1
"""The buckets of a histogram: the last one has the runs longer than all bounds."""

_AT_ONCE = 100
_WORDS = ("p", "f", "ms")
_MOST_DIGITS = 19
_KEPT_AT_ONCE = 24
"""The periods of a step: with few classes a read of eight hours is two steps, of four commands each."""
_MOST_KEPT = 4_000
"""The periods of three days on nine shards."""


class Runs(NamedTuple):
    """The runs of a class that ended in some time, failed ones included."""

    processed: int = 0
    failed: int = 0
    seconds: float = 0.0
    """The duration of the runs that did not fail."""

    def plus(self, other: "Runs") -> "Runs":
        return Runs(self.processed + other.processed, self.failed + other.failed, self.seconds + other.seconds)


def sum_of(runs: Iterable[Runs]) -> Runs:
    """Return the sum of the runs of several periods, classes or shards."""
    return Runs(*map(sum, zip(*runs, strict=True)))


def read_runs(
    client: "redis.Redis", starts: Sequence[float], step_s: int, versions: Sequence[int], cls: str | None
) -> list[dict[str, Runs]]:
    """Return the runs by class in each period that begins at one of ``starts``. Raises redis errors.

    ``step_s`` is a minute or ten minutes; Sidekiq 7 has no keys of ten minutes, so its minutes are added up.
    """
    # Both versions have the same runs of our processes. Ruby's Sidekiq writes one of them.
    found = [_read_version(client, starts, step_s, version, cls) for version in versions]
    return [reduce(_larger, both) for both in zip(*found, strict=True)] or [{} for _ in starts]


def _larger(first: dict[str, Runs], second: dict[str, Runs]) -> dict[str, Runs]:
    """Return the larger one of the runs of each class."""
    both = {name: max(first[name], second[name]) for name in first.keys() & second.keys()}
    return {**first, **second, **both}


def _read_version(
    client: "redis.Redis", starts: Sequence[float], step_s: int, version: int, cls: str | None
) -> list[dict[str, Runs]]:
    names = [name for start in starts for name in _keys_of_period(start, step_s, version)]
    fields = () if cls is None else [f"{cls}|{word}" for word in _WORDS]
    found = [counts_of(one) if one else {} for one in read_hashes(client, names, fields)]
    count = len(names) // max(1, len(starts))
    return [_runs_by_class(found[at : at + count]) for at in range(0, len(found), count)]


def _keys_of_period(start: float, step_s: int, version: int) -> list[str]:
    if step_s == TEN_MINUTES_S and version >= 8:
        return [keys.metrics(8, time.gmtime(start))[1][0]]
    minutes = range(step_s // MINUTE_S)
    return [keys.metrics(version, time.gmtime(start + MINUTE_S * one))[0][0] for one in minutes]


def counts_of(fields: dict[bytes, bytes]) -> dict[bytes, int]:
    """Return the fields that are counts: any program may have written the others."""
    values = fields.values()
    # A day of a hundred classes is tens of thousands of values: none is looked at alone if all are counts.
    if not b"".join(values).isdigit() or max(map(len, values)) >= _MOST_DIGITS or b"" in values:
        fields = {name: value for name, value in fields.items() if value.isdigit() and len(value) < _MOST_DIGITS}
    return dict(zip(fields, map(int, fields.values()), strict=True))


def _runs_by_class(hashes: Sequence[dict[bytes, int]]) -> dict[str, Runs]:
    """Return the runs by class, of all these hashes together."""
    filled = [one for one in hashes if one]
    # No Counter: its ``update`` adds, and this one replaces.
    total = filled[0] if len(filled) == 1 else dict[bytes, int]()
    for one in filled if len(filled) > 1 else ():
        total.update({name: total.get(name, 0) + count for name, count in one.items()})
    columns: dict[str, list[int]] = {}
    for field, count in total.items():
        name, place = _class_of_field(field)
        if place >= 0:
            columns.setdefault(name, [0, 0, 0])[place] = count
    return {name: Runs(processed, failed, ms / 1_000) for name, (processed, failed, ms) in columns.items()}


@lru_cache(maxsize=10_000)
def _class_of_field(field: bytes) -> tuple[str, int]:
    """Return the class, and the place of the word in ``_WORDS``; -1 for another field."""
    name, _, word = decode_escaped(field).rpartition("|")
    return name, _WORDS.index(word) if name and word in _WORDS else -1


def by_class(periods: Sequence[Mapping[str, Runs]]) -> dict[str, list[Runs]]:
    """Return the runs of each class: a list with one entry for each period."""
    none = Runs()
    # In the order of the periods.
    names = dict.fromkeys(name for one in periods for name in one)
    return {name: [one.get(name, none) for one in periods] for name in names}


def unwritten_pieces(starts: Sequence[float], until: float | None, now: float) -> list[float]:
    """Return the beginnings of the ten minutes of these periods that Redis has, and the database of tasks does not.

    ``until`` is the end of what the database has; without it, the first period is the first one that Redis has whole.
    """
    oldest = now - keys.METRICS_LONG_S
    whole = next(start for start in starts if start > oldest)
    first = whole if until is None else max(until, oldest // TEN_MINUTES_S * TEN_MINUTES_S + TEN_MINUTES_S, starts[0])
    return [float(at) for at in range(int(first), int(now) + 1, TEN_MINUTES_S)]


class KeptPeriods(Generic[T]):
    """The runs of periods that have ended, which no process changes any more: each is read once.

    A read ends after some processor time, and the next one goes on. Any thread may use it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[object, ...], T] = {}

    def read(
        self,
        key: tuple[object, ...],
        starts: Sequence[float],
        settled_before: float,
        most_s: float,
        read: Callable[[Sequence[float]], Sequence[T]],
    ) -> list[T | None]:
        """Return the runs of each period; ``None`` for one that was not read yet. The newest ones are read first.

        ``key`` names the shard and what is read; a period that begins before ``settled_before`` is kept. ``most_s`` is the processor
        time. Raises what ``read`` raises.
        """
        with self._lock:
            found = {start: self._found.get((*key, start)) for start in starts}
        missing = [start for start in reversed(starts) if found[start] is None]
        ends = time.thread_time() + most_s
        for at in range(0, len(missing), _KEPT_AT_ONCE):
            if at and time.thread_time() >= ends:
                break
            part = missing[at : at + _KEPT_AT_ONCE]
            found.update(zip(part, read(part), strict=True))
        with self._lock:
            for start in missing:
                runs = found[start]
                if runs is not None and start < settled_before:
                    self._found[*key, start] = runs
            while len(self._found) > _MOST_KEPT:
                del self._found[next(iter(self._found))]
        return [found[start] for start in starts]


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
