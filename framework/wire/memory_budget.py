"""Limit the memory that the large payloads of one process take together; a job without room waits for others to end.

At a crash: the budget belongs to this process. If it dies while a job waits for its share, the job is in the working list, from
which another process takes it.
"""

import threading
from collections import deque
from collections.abc import Callable

DECODING_BUDGET = 256_000_000
"""The default budget in bytes."""

# Seconds between two checks whether the process stops.
_STOP_CHECK_S = 0.1


# Decision 170: first come, first served, so that small requests do not pass a large one for ever.
class MemoryBudget:
    """Grant bytes first come, first served, so that small requests never starve a large one. Shared between threads.

    A caller releases its share before it acquires a larger one. No caller holds a share while waiting, so no two wait for each
    other. A request above the capacity gets the whole capacity.
    """

    def __init__(self, capacity: int = DECODING_BUDGET) -> None:
        self._capacity = capacity
        self._used = 0
        self._waiters: deque[object] = deque()
        self._changed = threading.Condition()

    def acquire(self, amount: int, stopping: Callable[[], bool]) -> int | None:
        """Wait for a share and return its size, or ``None`` if the process stops meanwhile."""
        share = min(amount, self._capacity)
        turn = object()
        with self._changed:
            self._waiters.append(turn)
            try:
                while self._waiters[0] is not turn or self._used + share > self._capacity:
                    if stopping():
                        return None
                    self._changed.wait(_STOP_CHECK_S)
                self._used += share
                return share
            finally:
                self._waiters.remove(turn)
                self._changed.notify_all()

    def try_acquire(self, amount: int) -> int | None:
        """Return the share if it is free and no other caller waits, else ``None``."""
        share = min(amount, self._capacity)
        with self._changed:
            if self._waiters or self._used + share > self._capacity:
                return None
            self._used += share
            return share

    def release(self, share: int) -> None:
        """Release a share."""
        with self._changed:
            self._used -= share
            self._changed.notify_all()
