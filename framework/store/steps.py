"""Carry out a long operation in steps: each holds Redis briefly, and all together take a share of its time."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

STEP_S = 0.002
"""The time that a step aims at: the time for which its caller waits, of which Redis needs a part."""

SHARE = 0.2
"""The share of Redis's time that the moves of jobs take, if no rate is given."""

READ_SHARE = 0.6
"""The share that a scan takes: its reader waits for it, and it ends."""

UNPACED = math.inf
"""The rate of an operator in a hurry: no wait between steps."""


class BoundedSteps:
    """Choose the size of each step by the time of the one before, and wait between them.

    A step that takes longer than ``STEP_S`` halves the size of the next, or more; a much shorter one doubles it. So a slow machine,
    large jobs and other callers make the steps smaller. The time that the caller needs between two steps counts as a wait.
    """

    def __init__(self, smallest: int, largest: int, *, rate: float | None = None, share: float = SHARE) -> None:
        """``rate`` is in jobs per second, in place of the ``share`` of Redis's time; ``UNPACED`` for no wait."""
        if rate is not None:
            # At a low rate a large step would be a burst.
            largest = int(max(1, min(largest, rate / 10)))
        self._smallest, self._largest = min(smallest, largest), largest
        self._rate, self._share = rate, share
        self._next_at = 0.0
        self.size = self._smallest
        """The number of jobs, or of other things, for the next step."""

    @contextmanager
    def step(self) -> Iterator[int]:
        """Wait for the time of the step, and yield its size; the block is one call of Redis. A failed step counts as well."""
        left = self._next_at - time.monotonic()
        if left > 0:
            time.sleep(left)
        size, began, own_s = self.size, time.monotonic(), time.thread_time()
        try:
            yield size
        finally:
            ended = time.monotonic()
            # The processor time of this thread, which writes the call and reads the reply, is not Redis's.
            self._note(size, ended, max(0.0, ended - began - (time.thread_time() - own_s)))

    def _note(self, size: int, ended: float, took_s: float) -> None:
        self._next_at = ended - took_s + (took_s / self._share if self._rate is None else size / self._rate)
        if took_s > STEP_S:
            self.size = max(self._smallest, int(size * min(0.5, STEP_S / took_s)))
        elif took_s < STEP_S / 2:
            self.size = min(self._largest, size * 2)
