"""The memory that large payloads of one process may take together: one that finds too little left waits for others to end.

Crash story: the budget is this process's own; a death in a wait leaves the job in the working list, whence another takes it.
"""

import threading
from collections import deque
from collections.abc import Callable

DECODING_BUDGET = 256_000_000
"""Bytes, where no setting says otherwise."""

_STOP_CHECK_S = 0.1  # between two looks whether the process stops


# Decision 170: first come, first served, so that small requests do not pass a large one for ever.
class MemoryBudget:
    """Hands out bytes, first come first served, so that a large request is not passed by small ones for ever. Shared between threads.

    A caller that has a share gives it back before it asks for a larger one: nothing is held while waiting, so no two wait for
    each other. What is larger than all there is gets all there is.
    """

    def __init__(self, capacity: int = DECODING_BUDGET) -> None:
        self._capacity = capacity
        self._used = 0
        self._waiters: deque[object] = deque()
        self._changed = threading.Condition()

    def acquire(self, amount: int, stopping: Callable[[], bool]) -> int | None:
        """Wait for one's turn and for the bytes; return the share to give back, ``None`` when the process stops meanwhile."""
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
        """The memory is free again."""
        with self._changed:
            self._used -= share
            self._changed.notify_all()
