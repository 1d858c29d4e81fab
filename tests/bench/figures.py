"""Combine the numbers of several runs: medians with their range."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Series:
    """The values of one figure in all repetitions."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("a series of no values has no median")

    @property
    def median(self) -> float:
        return float(median(self.values))

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` (0 to 1) of the values do not exceed."""
    if not values:
        raise ValueError("no values, so no percentile")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def shown(value: float) -> str:
    """Return a figure with its significant digits."""
    if abs(value) >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
