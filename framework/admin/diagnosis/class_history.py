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
    first, second = rows[: len(minutes)], rows[len(minutes) :]
    return {name: _history(first, second, name, now) for name in names}


def _history(first: Sequence[_Row], second: Sequence[_Row], name: str, now: float) -> ClassHistory:
    # A process writes both versions, or one of them.
    rows = max(([_counts(row, name) for row in one] for one in (first, second)), key=lambda one: _sum(one).processed)
    elapsed = RECENT_MIN - 1 + now % _MINUTE_S / _MINUTE_S
    recent, base = _sum(rows[:RECENT_MIN]), _sum(rows[RECENT_MIN:])
    return ClassHistory(recent._replace(minutes=elapsed), base._replace(minutes=BASE_MIN), rows)


def _counts(row: _Row, name: str) -> RunCounts:
    processed, failed, milliseconds = (reply_number(row.get(f"{name}|{word}".encode())) for word in _WORDS)
    return RunCounts(processed, failed, milliseconds / 1_000, 1.0)


def _sum(rows: Sequence[RunCounts]) -> RunCounts:
    return RunCounts(
        sum(one.processed for one in rows), sum(one.failed for one in rows), sum(one.seconds for one in rows)
    )
