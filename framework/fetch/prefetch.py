"""How many jobs to fetch: the free slots, and what the process will have finished before it can ask again."""

AHEAD_S = 0.005
"""Jobs are fetched for this long ahead, at the speed at which jobs have been ending: slow jobs are never fetched ahead."""

AHEAD_JOBS = 96
AHEAD_BYTES = 1_000_000
"""Most jobs and bytes ahead: bounds what a death gives back and what waits behind a job that turns out slow."""

QUICK_PER_S = 10_000.0
"""From so many jobs a second on, one thread that goes on is faster than several that take turns."""

_WINDOW_S = 0.002
_FIRST_BYTES = 1_000.0


class Prefetch:
    """An average of speed and size. Not safe to share: whoever holds the exchange tells and asks."""

    def __init__(self) -> None:
        self._per_second = 0.0
        self._bytes = _FIRST_BYTES
        self._since = 0.0
        self._ended = 0

    @property
    def quick(self) -> bool:
        """Whether jobs end so fast that another thread would only be in the way."""
        return self._per_second > QUICK_PER_S

    def ended(self, jobs: int, now: float) -> None:
        """So many more jobs have ended by ``now``, in seconds of a steady clock."""
        self._ended += jobs
        span = now - self._since
        if span < _WINDOW_S:
            return
        self._per_second += 0.5 * (self._ended / span - self._per_second)
        self._ended, self._since = 0, now

    def arrived(self, sizes: list[int]) -> None:
        """Payloads of these sizes in bytes have been fetched; a large one counts at once, small ones little by little."""
        for size in sizes:
            self._bytes = float(size) if size > self._bytes else self._bytes + 0.02 * (size - self._bytes)

    def wanted(self, free: int, buffered: int) -> int:
        """How many to ask for, with ``free`` slots and ``buffered`` jobs at hand."""
        ahead = min(AHEAD_JOBS, int(self._per_second * AHEAD_S), int(AHEAD_BYTES / self._bytes))
        return max(0, free + ahead - buffered)
