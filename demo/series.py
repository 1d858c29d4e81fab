"""Compute the data of the charts: the run in slices of time, and measured seconds in columns."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, inf, log
from typing import Final

from demo.activity import Activity, Samples

_MOST_SLICES: Final = 48
_WIDTHS_S: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
_EDGES_S: Final = (0.0, *(step * 10**decade / 10_000 for decade in range(9) for step in (1, 2, 5)), inf)
_FEWEST_BINS: Final = 7


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """A part of the run, and how many runs each process finished in it."""

    start_s: float
    width_s: float
    counts: tuple[int, ...]

    @property
    def done(self) -> int:
        return sum(self.counts)

    @property
    def rate(self) -> float:
        return self.done / self.width_s


@dataclass(frozen=True, slots=True)
class Bin:
    """A column of a histogram: values from ``low_s`` on and below ``high_s``."""

    low_s: float
    high_s: float
    count: int


def time_slices(activity: Activity) -> list[TimeSlice]:
    """Return the run in at most 48 slices of a round width."""
    span = activity.span_s
    width = next((width for width in _WIDTHS_S if span < width * _MOST_SLICES), span / _MOST_SLICES + 1)
    counts = [[0] * len(activity.processes) for _ in range(floor(span / width) + 1)]
    for at, place in activity.ends:
        counts[floor(at / width)][place] += 1
    return [TimeSlice(place * width, width, tuple(row)) for place, row in enumerate(counts)]


def histogram(samples: Samples) -> list[Bin]:
    """Return columns with edges at 1, 2 and 5 of each decade; empty ones only between others, or where there are few."""
    counts = [0] * (len(_EDGES_S) - 1)
    for value in samples.values:
        counts[bisect_right(_EDGES_S, value, hi=len(counts)) - 1] += 1
    filled = [place for place, count in enumerate(counts) if count]
    if not filled:
        return []
    first, last = filled[0], filled[-1]
    while last - first + 1 < _FEWEST_BINS:
        first, last = max(0, first - 1), min(len(counts) - 1, last + 1)
    return [Bin(_EDGES_S[place], _EDGES_S[place + 1], counts[place]) for place in range(first, last + 1)]


def place_of(value: float, bins: Sequence[Bin]) -> float:
    """Return the position of ``value`` on the axis of ``bins``, from 0 to 1."""
    for place, one in enumerate(bins):
        if value < one.high_s:
            inside = log(value / one.low_s) / log(one.high_s / one.low_s) if one.low_s and one.high_s < inf else 0.5
            return (place + inside) / len(bins)
    return 1.0


def mean_rate(slices: Sequence[TimeSlice]) -> float:
    """Return the jobs done per second, from the first slice with one to the last; 0 when there is none."""
    busy = [place for place, part in enumerate(slices) if part.done]
    if not busy:
        return 0.0
    return sum(part.done for part in slices) / ((busy[-1] - busy[0] + 1) * slices[0].width_s)


def round_steps(most: float, count: int, least: float = 0.0) -> list[float]:
    """Return at most ``count`` multiples of 1, 2 or 5 times a power of ten, ``least`` apart, none above ``most``."""
    if most <= 0:
        return []
    steps = (step * 10.0**power for power in range(-4, 12) for step in (1, 2, 5) if step * 10.0**power >= least)
    step = next(step for step in steps if most / step < count + 1)
    return [step * number for number in range(1, floor(most / step) + 1)]
