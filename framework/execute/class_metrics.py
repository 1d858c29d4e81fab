"""Count runs and their durations by class and thread, in the buckets of Sidekiq's Metrics page."""

from bisect import bisect_right
from collections.abc import Iterable

BUCKETS_MS = (
    *(20, 30, 45, 65, 100, 150, 225, 335, 500, 750, 1_100, 1_700, 2_500, 3_800, 5_750, 8_500, 13_000, 20_000, 30_000),
    *(45_000, 65_000, 100_000, 150_000, 225_000, 335_000),
)
"""The upper bounds of the buckets (Sidekiq's); longer runs have one bucket more."""

_BOUNDS_S = tuple(bound / 1000 for bound in BUCKETS_MS)


class ClassMetrics:
    """The counts of one class in one thread since the process started; only that thread writes."""

    __slots__ = ("buckets", "failed", "processed", "seconds")

    def __init__(self) -> None:
        self.processed = 0
        self.failed = 0
        self.seconds = 0.0
        """Total duration of the runs that did not fail; a failed run says nothing about the duration of the class."""
        self.buckets = [0] * (len(BUCKETS_MS) + 1)

    def record_run(self, seconds: float) -> None:
        """Count a run that did not fail."""
        self.processed += 1
        self.seconds += seconds
        self.buckets[bisect_right(_BOUNDS_S, seconds)] += 1

    def record_failure(self) -> None:
        """Count a failed run."""
        self.processed += 1
        self.failed += 1

    def merge(self, other: "ClassMetrics") -> None:
        """Add the counts of ``other``; a write of its thread meanwhile may be included or not."""
        self.processed += other.processed
        self.failed += other.failed
        self.seconds += other.seconds
        self.buckets = [mine + added for mine, added in zip(self.buckets, other.buckets, strict=True)]


def sum_by_class(tables: Iterable[dict[str, ClassMetrics]]) -> dict[str, ClassMetrics]:
    """Return the sums over all threads, by class."""
    sums: dict[str, ClassMetrics] = {}
    for table in tables:
        # `dict.copy` is one step for the interpreter, so a thread that adds a class meanwhile cannot break the loop.
        for name, metrics in table.copy().items():
            sums.setdefault(name, ClassMetrics()).merge(metrics)
    return sums
