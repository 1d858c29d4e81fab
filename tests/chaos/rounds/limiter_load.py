"""Add jobs within window, bucket, leaky and points limiters to a round; then check that no limit was exceeded, and no job was lost.

A job records the time before it asks its limiter, and the time after it was admitted: the limiter admitted it in between. Only
spans that lie wholly within some time are counted for that time. So a slow machine, which makes spans longer, breaks no promise.
"""

import random
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from framework import ApplicationWorker
from tests.chaos.rounds.account import Account, account
from tests.chaos.rounds.effects import ASKED, BEGUN, Effect
from tests.chaos.rounds.faults import Injection
from tests.chaos.rounds.jobs import (
    LEAKY_SIZE,
    PACE_S,
    PACED,
    POINTS_CAPACITY,
    POINTS_USED,
    WINDOW_LIMIT,
    BucketWorker,
    LeakyWorker,
    PointsWorker,
    WindowWorker,
)
from tests.chaos.rounds.producer import AcceptedPushes

_BURST, _BURST_PERIOD_S = 6, 3.0
"""Twice as many jobs at once as a limiter admits: some are scheduled again."""
_CLOCKS_S = 0.01
"""How far the two clocks of the machine may drift apart in a round, and how exactly a limiter counts."""
_MOST_OF_A_KIND = 10_000_000


class AdmittedBlock(NamedTuple):
    """One admitted block: its limiter admitted it at some time between the two (monotonic seconds)."""

    asked: float
    admitted: float


class Paced(NamedTuple):
    """The results of the jobs of one limiter."""

    kind: str
    account: Account
    takes: int
    limit: float
    """The limit, in calls or points."""
    most: float
    """The most that was surely used of it at a time."""

    @property
    def over(self) -> bool:
        """Whether the limit was exceeded."""
        return self.most > self.limit + 1e-6


Judge: TypeAlias = Callable[[Sequence[AdmittedBlock]], float]
"""Returns the most that takes have surely used of a limit."""


@dataclass
class LimiterLoad:
    """``step`` is called often during the round. ``accepted`` gets the serials of all accepted jobs."""

    seconds: float
    rng: random.Random
    accepted: list[int]
    _times: dict[str, AcceptedPushes] = field(default_factory=dict[str, AcceptedPushes])
    _started: float = 0.0
    _pushed_at: float = 0.0

    def __post_init__(self) -> None:
        self._times = {kind: AcceptedPushes([], []) for kind in _LIMITERS}

    def begin(self, now: float) -> None:
        """Start with the round."""
        self._started = now

    def step(self, now: float) -> None:
        """Push a burst of jobs for each limiter, if it is time."""
        if now - self._started > self.seconds or now - self._pushed_at < _BURST_PERIOD_S:
            return
        self._pushed_at = now
        for kind, one in _LIMITERS.items():
            for _ in range(_BURST):
                self._push(kind, one.worker)

    def _push(self, kind: str, worker: type[ApplicationWorker]) -> None:
        begun = time.monotonic()
        times: Any = self._times[kind]
        serial = PACED[kind] + len(times.begun_at)
        worker.perform_async(serial, round(self.rng.uniform(20, 60), 1))
        times.begun_at.append(begun)
        times.answered_at.append(time.monotonic())
        self.accepted.append(serial)

    def found(self, aside: Sequence[Effect], injections: Sequence[Injection]) -> list[Paced]:
        """Check the records, given the injections at processes."""
        results: list[Paced] = []
        for kind, one in _LIMITERS.items():
            base = PACED[kind]
            own = [it._replace(serial=it.serial - base) for it in aside if 0 <= it.serial - base < _MOST_OF_A_KIND]
            takes = takes_of(own)
            done = account(self._times[kind], own, injections, Counter())
            results.append(Paced(kind, done, len(takes), one.limit, one.judge(takes)))
        return results


def takes_of(effects: Iterable[Effect]) -> list[AdmittedBlock]:
    """Return the admitted blocks of all jobs, in the order in which they asked."""
    asked: dict[tuple[int, int], float] = {}
    found: list[AdmittedBlock] = []
    for effect in sorted(effects, key=lambda effect: effect.at):
        job = (effect.serial, effect.pid)
        if effect.kind == ASKED:
            asked[job] = effect.at
        elif effect.kind == BEGUN:
            found.append(AdmittedBlock(asked.pop(job), effect.at))
    return sorted(found)


def most_in_a_window(takes: Sequence[AdmittedBlock], span_s: float = PACE_S) -> float:
    """Return the most takes that surely lie within some time of this length."""
    return max(
        (
            sum(first.asked <= one.asked and one.admitted < first.asked + span_s - _CLOCKS_S for one in takes)
            for first in takes
        ),
        default=0,
    )


def most_in_an_interval(takes: Sequence[AdmittedBlock], span_s: float = PACE_S, ahead_s: float | None = None) -> float:
    """Return the most takes that surely lie within one interval of the clock, such as a whole second.

    ``ahead_s`` is the time of day minus the monotonic time.
    """
    ahead_s = time.time() - time.monotonic() if ahead_s is None else ahead_s
    counts = Counter(
        int((one.asked + ahead_s - _CLOCKS_S) // span_s)
        for one in takes
        if (one.asked + ahead_s - _CLOCKS_S) // span_s == (one.admitted + ahead_s + _CLOCKS_S) // span_s
    )
    return max(counts.values(), default=0)


def highest_level(takes: Sequence[AdmittedBlock], amount: float, rate: float) -> float:
    """Return the highest level that takes of ``amount`` have surely reached, from which ``rate`` drains each second."""
    highest = 0.0
    for place, first in enumerate(takes):
        admitted: list[float] = []
        for one in takes[place:]:
            insort(admitted, one.admitted)
        for count, until in enumerate(admitted, 1):
            highest = max(highest, count * amount - rate * (until - first.asked + _CLOCKS_S))
    return highest


class _Limiter(NamedTuple):
    worker: type[ApplicationWorker]
    limit: float
    judge: Judge


_LIMITERS: Mapping[str, _Limiter] = {
    "window": _Limiter(WindowWorker, WINDOW_LIMIT, most_in_a_window),
    "bucket": _Limiter(BucketWorker, WINDOW_LIMIT, most_in_an_interval),
    "leaky": _Limiter(LeakyWorker, LEAKY_SIZE, lambda takes: highest_level(takes, 1, LEAKY_SIZE / PACE_S)),
    "points": _Limiter(
        PointsWorker, POINTS_CAPACITY, lambda takes: highest_level(takes, POINTS_USED, POINTS_CAPACITY / PACE_S)
    ),
}
