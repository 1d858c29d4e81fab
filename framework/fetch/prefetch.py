"""Decide how many jobs to fetch: the free capacity, plus the jobs that will end before the next fetch."""

AHEAD_S = 0.005
"""Jobs are fetched ahead for so long, at the rate at which jobs end: slow jobs are never fetched ahead."""

AHEAD_JOBS = 96
AHEAD_BYTES = 1_000_000
"""Most jobs and bytes ahead: a bound on what a death returns, and on what waits behind a slow job."""

QUICK_PER_S = 10_000.0
"""Above so many jobs a second, one thread is faster than several that compete for the interpreter's lock."""

# The rate is measured over at least so long, since jobs are acknowledged in batches.
_WINDOW_S = 0.002
# The size of a payload that is assumed until the first one arrives.
_FIRST_BYTES = 1_000.0


class Prefetch:
    """Moving averages of job rate and payload size. For the holder of the pipeline's lock."""

    def __init__(self) -> None:
        self._per_second = 0.0
        self._bytes = _FIRST_BYTES
        self._since = 0.0
        self._ended = 0

    @property
    def quick(self) -> bool:
        """Whether jobs end so fast that another thread would slow them down."""
        return self._per_second > QUICK_PER_S

    @property
    def ahead(self) -> int:
        """How many jobs end within ``AHEAD_S``."""
        return int(self._per_second * AHEAD_S)

    def ended(self, jobs: int, now: float) -> None:
        """Count ``jobs`` more that have ended by ``now``, in seconds of a steady clock."""
        self._ended += jobs
        span = now - self._since
        if span < _WINDOW_S:
            return
        self._per_second += 0.5 * (self._ended / span - self._per_second)
        self._ended, self._since = 0, now

    def arrived(self, sizes: list[int]) -> None:
        """Record the sizes in bytes of fetched payloads; a large one counts at once, small ones lower the average slowly."""
        for size in sizes:
            self._bytes = float(size) if size > self._bytes else self._bytes + 0.02 * (size - self._bytes)

    def wanted(self, free: int, buffered: int) -> int:
        """Return how many jobs to fetch, with a capacity of ``free`` jobs and ``buffered`` jobs already fetched."""
        ahead = min(AHEAD_JOBS, self.ahead, int(AHEAD_BYTES / self._bytes))
        return max(0, free + ahead - buffered)
