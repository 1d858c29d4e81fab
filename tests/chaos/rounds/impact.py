"""Measure the effect of injections at one shard on the other shard: throughput and waiting, during and outside of them."""

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.chaos.rounds.account import percentile
from tests.chaos.rounds.effects import BEGUN, ENDED, Effect
from tests.chaos.rounds.faults import Injection

PROMISED_THROUGHPUT, PROMISED_P99 = 0.95, 2.0
"""The throughput within 5 %, the p99 of push-to-start within twice that without injections (reference 3, every row)."""

FAR_OFF_THROUGHPUT, FAR_OFF_P99_S = 0.75, 1.0
"""The limits at which a round fails. All runs on one machine, so that starting processes takes time from all; a shard
that really waited for the other would stand still.
"""

_AFTERMATH_S = 0.5

Window = tuple[float, float]


@dataclass
class Impact:
    """Jobs per second and seconds of push-to-start (p99), during injections and outside; 0 where there was no such
    time.
    """

    rate_during: float
    rate_outside: float
    p99_during: float
    p99_outside: float

    @property
    def throughput(self) -> float:
        """Return the share of the throughput outside."""
        return self.rate_during / self.rate_outside if self.rate_outside else 1.0

    @property
    def slower(self) -> float:
        """Return the p99 as a multiple of that outside."""
        return self.p99_during / self.p99_outside if self.p99_outside else 1.0

    @property
    def near(self) -> bool:
        """Return whether the shard is far from standing still."""
        return self.throughput >= FAR_OFF_THROUGHPUT and self.p99_during <= FAR_OFF_P99_S


def windows(injections: Iterable[Injection], since: float, until: float) -> list[Window]:
    """Return the periods of injections, and shortly after, between the two times; without overlaps."""
    found: list[Window] = []
    for injection in sorted(injections, key=lambda injection: injection.at):
        begin, end = max(since, injection.at), min(until, max(injection.at, injection.until) + _AFTERMATH_S)
        if begin >= end:
            continue
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def impact(
    pushed_at: Sequence[float], effects: Iterable[Effect], injections: Iterable[Injection], since: float, until: float
) -> Impact:
    """Compare; only jobs pushed between the two times count for waiting."""
    during = windows(injections, since, until)
    starts = [begin for begin, _ in during]

    def in_fault(at: float) -> bool:
        index = bisect.bisect_right(starts, at) - 1
        return index >= 0 and at < during[index][1]

    ended, begun = [0, 0], set[int]()
    waited: tuple[list[float], list[float]] = ([], [])
    for effect in sorted(effects, key=lambda effect: effect.at):
        if effect.kind == ENDED and since <= effect.at < until:
            ended[in_fault(effect.at)] += 1
        elif effect.kind == BEGUN and effect.serial not in begun and effect.serial < len(pushed_at):
            begun.add(effect.serial)
            pushed = pushed_at[effect.serial]
            if since <= pushed < until:
                waited[in_fault(pushed)].append(effect.at - pushed)
    spent = sum(end - begin for begin, end in during)
    outside = until - since - spent
    return Impact(
        rate_during=ended[True] / spent if spent else 0.0,
        rate_outside=ended[False] / outside if outside > 0 else 0.0,
        p99_during=percentile(waited[True], 0.99),
        p99_outside=percentile(waited[False], 0.99),
    )
