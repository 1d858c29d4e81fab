"""Read the runs of classes by minute, from the keys of Sidekiq's Metrics page."""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import redis

from framework.admin.explain_class import RunCounts
from framework.admin.statistics import reply_number
from framework.store.hashes import read_hashes
from framework.wire import keys

RECENT_MIN = 3
"""The minutes whose runs count as those of now: the one that has begun, and two before."""

BASE_MIN = 60
"""The minutes before them, whose runs show what is usual."""

_WORDS = ("p", "f", "ms")

_Row: TypeAlias = Mapping[bytes, bytes]
"""The counts of a minute."""
_MINUTE_S = 60.0


class ClassHistory(NamedTuple):
    """The runs of a class in the last minutes, those of the hour before, and by minute, the newest first."""

    recent: RunCounts = RunCounts()
    base: RunCounts = RunCounts()
    minutes: Sequence[RunCounts] = ()

    @property
    def mean_s(self) -> float | None:
        """The mean duration of a run, of the last minutes if any has ended."""
        return self.recent.mean_s or self.base.mean_s

    @property
    def base_per_s(self) -> float:
        """The runs per second in the minutes of the hour before in which any ended."""
        busy = [one for one in self.minutes[RECENT_MIN:] if one.processed]
        return sum(one.processed for one in busy) / (len(busy) * _MINUTE_S) if busy else 0.0


def read_histories(client: "redis.Redis", names: Sequence[str], now: float) -> Mapping[str, ClassHistory]:
    """Return the runs of these classes by class, from the hashes of each minute and each version of Sidekiq. Raises redis errors."""
    if not names:
        return {}
    minutes = [time.gmtime(now - _MINUTE_S * back) for back in range(RECENT_MIN + BASE_MIN)]
    fields = [f"{name}|{word}" for name in names for word in _WORDS]
    names_of_hashes = [keys.metrics(version, at)[0][0] for version in (7, 8) for at in minutes]
    rows = read_hashes(client, names_of_hashes, fields)
    # Fifty classes and an hour are twenty thousand values: each is read once.
    first, second = (_by_class(part) for part in (rows[: len(minutes)], rows[len(minutes) :]))
    none: dict[int, RunCounts] = {}
    return {name: _history(first.get(name, none), second.get(name, none), len(minutes), now) for name in names}


def _by_class(rows: Sequence[_Row]) -> dict[str, dict[int, RunCounts]]:
    """Return the counts of each minute in which a class has any."""
    counts: dict[str, dict[int, list[int]]] = {}
    for at, row in enumerate(rows):
        for field, value in row.items():
            name, _, word = field.decode().rpartition("|")
            counts.setdefault(name, {}).setdefault(at, [0, 0, 0])[_WORDS.index(word)] = reply_number(value)
    return {
        name: {at: RunCounts(done, failed, ms / 1_000, 1.0) for at, (done, failed, ms) in by_minute.items()}
        for name, by_minute in counts.items()
    }


def _history(first: Mapping[int, RunCounts], second: Mapping[int, RunCounts], count: int, now: float) -> ClassHistory:
    # A process writes both versions, or one of them.
    larger = max((first, second), key=lambda one: sum(each.processed for each in one.values()))
    none = RunCounts(minutes=1.0)
    rows = [larger.get(at, none) for at in range(count)]
    elapsed = RECENT_MIN - 1 + now % _MINUTE_S / _MINUTE_S
    recent, base = _sum(rows[:RECENT_MIN]), _sum(rows[RECENT_MIN:])
    return ClassHistory(recent._replace(minutes=elapsed), base._replace(minutes=BASE_MIN), rows)


def _sum(rows: Sequence[RunCounts]) -> RunCounts:
    return RunCounts(
        sum(one.processed for one in rows), sum(one.failed for one in rows), sum(one.seconds for one in rows)
    )
