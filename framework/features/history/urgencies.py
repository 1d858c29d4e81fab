"""Read the runs of a shard by urgency: how many kept the targets, and how long their jobs waited. Functions of its client."""

import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import redis

from framework.execute.job_log import TARGETS
from framework.features.history.series import MINUTE_S, TEN_MINUTES_S, counts_of
from framework.store.hashes import read_hashes
from framework.types import Urgency
from framework.wire import keys
from framework.wire.urgency_counts import (
    CLASS_COUNT_BITS,
    CLASS_COUNTS,
    FAILED,
    PROCESSED,
    SLOW,
    SLOW_AT,
    SUCCEEDED_AT,
    UNTIMED,
    WAIT_BOUNDS_S,
    WAITED_MS,
    WAITS,
)

_WORDS = (PROCESSED, FAILED, SLOW, UNTIMED, WAITED_MS, *WAITS)
_FIELDS: Mapping[bytes, tuple[Urgency, int]] = {
    f"{urgency}|{word}".encode(): (urgency, at) for urgency in TARGETS for at, word in enumerate(_WORDS)
}


class UrgencyRuns(NamedTuple):
    """The runs of the classes of one urgency that ended in some time: the counts of ``wire/urgency_counts.py``."""

    processed: int = 0
    failed: int = 0
    slow: int = 0
    untimed: int = 0
    waited_ms: int = 0
    waits: tuple[int, ...] = (0,) * len(WAITS)

    @property
    def timed(self) -> int:
        """The runs of which it is known how long their jobs waited."""
        # A run may be counted in the next minute than its wait.
        return max(0, self.processed - self.untimed, sum(self.waits))

    @property
    def mean_wait_s(self) -> float | None:
        return self.waited_ms / 1_000 / self.timed if self.timed else None

    @property
    def execution_apdex(self) -> float | None:
        """The share of the runs that did not fail and lasted less than the target (GitLab's)."""
        succeeded = self.processed - self.failed
        return max(0, succeeded - self.slow) / succeeded if succeeded > 0 else None

    def late(self, urgency: Urgency) -> int:
        """Return the runs whose jobs waited as long as the target of the urgency, or longer."""
        target_s = TARGETS[urgency][0]
        return 0 if target_s is None else sum(self.waits[bisect_right(WAIT_BOUNDS_S, target_s) - 1 :])

    def queueing_apdex(self, urgency: Urgency) -> float | None:
        """Return the share of the runs whose jobs waited less than the target; ``None`` without a run or a target."""
        if not self.timed or TARGETS[urgency][0] is None:
            return None
        return (self.timed - self.late(urgency)) / self.timed

    def wait_of(self, share: float) -> float | None:
        """Return the bound in seconds below which this share of the jobs waited; the last bound also for longer waits."""
        if not self.timed:
            return None
        reached = accumulate((self.timed - sum(self.waits), *self.waits))
        bounds = zip(reached, (*WAIT_BOUNDS_S, WAIT_BOUNDS_S[-1]), strict=True)
        return next(bound for count, bound in bounds if count >= share * self.timed)


def urgency_runs(fields: Iterable[Any]) -> UrgencyRuns:
    """Return the runs with these fields, as JSON has them: the waits are a list."""
    *counts, waits = fields
    return UrgencyRuns._make((*counts, tuple(waits)))


def sum_urgencies(periods: Iterable[Mapping[Urgency, UrgencyRuns]]) -> dict[Urgency, UrgencyRuns]:
    """Return the sums by urgency, of all urgencies."""
    listed = list(periods)
    return {urgency: _sum([one[urgency] for one in listed if urgency in one]) for urgency in TARGETS}


def _sum(runs: Sequence[UrgencyRuns]) -> UrgencyRuns:
    if len(runs) < 2:
        return runs[0] if runs else UrgencyRuns()
    *counts, waits = zip(*runs, strict=True)
    return urgency_runs([*map(sum, counts), list(map(sum, zip(*waits, strict=True)))])


def read_urgencies(client: "redis.Redis", starts: Sequence[float], step_s: int) -> list[dict[Urgency, UrgencyRuns]]:
    """Return the runs by urgency in each period that begins at one of ``starts``: a minute, or ten minutes. Raises redis errors."""
    place = 0 if step_s == MINUTE_S else 1
    names = [keys.urgencies(time.gmtime(start))[place][0] for start in starts]
    return [_runs_by_urgency(counts_of(one)) if one else {} for one in read_hashes(client, names)]


def read_class_waits(client: "redis.Redis", name: str, first: float, now: float) -> list[int]:
    """Return the counts of ``keys.class_waits`` of a class, from the ten minutes of ``first`` on. Raises redis errors."""
    starts = range(int(first // TEN_MINUTES_S) * TEN_MINUTES_S, int(now) + 1, TEN_MINUTES_S)
    size = CLASS_COUNT_BITS // 8
    total = [0] * CLASS_COUNTS
    # MGET answers nothing for a key of another type.
    reply: Any = client.mget([keys.class_waits(name, time.gmtime(start)) for start in starts])
    for text in reply:
        for place in range(min(CLASS_COUNTS, len(text or b"") // size)):
            total[place] += int.from_bytes(text[size * place : size * (place + 1)], "big")
    return total


def runs_of_class(counts: Sequence[int]) -> UrgencyRuns:
    """Return the runs of a class with these counts, as those of an urgency; the milliseconds of waiting are not known."""
    timed = sum(counts[:SUCCEEDED_AT])
    return UrgencyRuns(timed, timed - counts[SUCCEEDED_AT], counts[SLOW_AT], waits=tuple(counts[1:SUCCEEDED_AT]))


def _runs_by_urgency(counts: Mapping[bytes, int]) -> dict[Urgency, UrgencyRuns]:
    columns: dict[Urgency, list[int]] = {}
    for field, count in counts.items():
        found = _FIELDS.get(field)
        if found is not None:
            columns.setdefault(found[0], [0] * len(_WORDS))[found[1]] = count
    return {urgency: urgency_runs([*one[: -len(WAITS)], one[-len(WAITS) :]]) for urgency, one in columns.items()}
