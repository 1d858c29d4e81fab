"""How long jobs ran, by class: counted per thread, in the buckets of Sidekiq's Metrics page."""

from bisect import bisect_right
from collections.abc import Iterable

BUCKETS_MS = (
    *(20, 30, 45, 65, 100, 150, 225, 335, 500, 750, 1_100, 1_700, 2_500, 3_800, 5_750, 8_500, 13_000, 20_000, 30_000),
    *(45_000, 65_000, 100_000, 150_000, 225_000, 335_000),
)
"""Where the buckets end (Sidekiq's bounds); what takes longer has one more."""

_BOUNDS_S = tuple(bound / 1000 for bound in BUCKETS_MS)


class ClassMetrics:
    """One class in one thread, since the process started; only that thread writes."""

    __slots__ = ("buckets", "failed", "processed", "seconds")

    def __init__(self) -> None:
        self.processed = 0
        self.failed = 0
        self.seconds = 0.0
        """Of runs that did not fail: how long those take that do says nothing of the class."""
        self.buckets = [0] * (len(BUCKETS_MS) + 1)

    def record_run(self, seconds: float) -> None:
        """A run has come to an end that is no failure."""
        self.processed += 1
        self.seconds += seconds
        self.buckets[bisect_right(_BOUNDS_S, seconds)] += 1

    def record_failure(self) -> None:
        """A run has failed."""
        self.processed += 1
        self.failed += 1

    def merge(self, other: "ClassMetrics") -> None:
        """Add up; what the other's thread writes meanwhile may be in or not."""
        self.processed += other.processed
        self.failed += other.failed
        self.seconds += other.seconds
        self.buckets = [ours + theirs for ours, theirs in zip(self.buckets, other.buckets, strict=True)]


def sum_by_class(tables: Iterable[dict[str, ClassMetrics]]) -> dict[str, ClassMetrics]:
    """Return the sums by class over the threads."""
    sums: dict[str, ClassMetrics] = {}
    for table in tables:
        # A copy is made in one step, whatever the thread adds meanwhile.
        for name, measure in table.copy().items():
            sums.setdefault(name, ClassMetrics()).merge(measure)
    return sums
