"""Carry out a long operation in steps: each holds Redis briefly, and all together take a share of its time."""

import math
import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import redis

from framework.wire import keys

STEP_S = 0.002
"""The time that a step aims at, beyond that of the smallest one: the time for which its caller waits, of which Redis needs a part."""

_LONGEST_FIXED_S = 0.01
"""The most that counts as the time of any step, however few jobs it has. The first step may have met a busy machine."""

_SHORTEST_S = 0.000_02
"""The shortest time of a call: two clocks are compared."""

SHARE = 0.2
"""The share of Redis's time that the moves of jobs take, if no rate is given."""

UNPACED = math.inf
"""The rate of a scan, and of an operator in a hurry: no wait between steps."""

_FOR_SIZE, _FOR_PACE = 4, 16
"""The steps of which the cheapest says how many jobs the next one has, and how long to wait before it."""


def share_of_process(client: "redis.Redis") -> float:
    """Return the share of one worker process, where each process of the shard may move the same jobs. Raises redis errors."""
    processes: Any = client.zcard(keys.REGISTRY)
    return SHARE / max(1, int(processes))


class BoundedSteps:
    """Choose the size of each step by the time of those before, and wait between them.

    The least time per job of the last steps counts: a busy machine adds to the others, and Redis is idle meanwhile. So large jobs
    make the steps smaller after four steps. The wait follows after sixteen: each of four takes several times as long as Redis needs
    where other programs use the processors. The time that the caller needs between two steps counts as a wait.

    A way of a few milliseconds, or a disk for which each write waits (``appendfsync always``), makes all steps longer, and small ones
    do not help: the size follows what a step takes beyond the fastest one of the smallest size.
    """

    def __init__(self, smallest: int, largest: int, *, rate: float | None = None, share: float = SHARE) -> None:
        """``rate`` is in jobs per second, in place of the ``share`` of Redis's time; ``UNPACED`` for no wait."""
        if rate is not None:
            # At a low rate a large step would be a burst.
            largest = int(max(1, min(largest, rate / 10)))
        self._smallest, self._largest = min(smallest, largest), largest
        self._rate, self._share = rate, share
        self._next_at = 0.0
        self._costs_s = deque[float](maxlen=_FOR_PACE)
        self._growths_s = deque[float](maxlen=_FOR_SIZE)
        self._fixed_s = 0.0
        self.size = self._smallest
        """The number of jobs, or of other things, for the next step."""

    @property
    def wait_s(self) -> float:
        """The time until the next step begins."""
        return max(0.0, self._next_at - time.monotonic())

    @contextmanager
    def step(self, jobs: int = 0) -> Generator[int]:
        """Wait for the time of the step, and yield its size; the block is one call of Redis. A failed step counts as well.

        ``jobs`` is the number of jobs of the step, where it is not ``size``.
        """
        if (left_s := self.wait_s) > 0:
            time.sleep(left_s)
        size, began, own_s = jobs or self.size, time.monotonic(), time.thread_time()
        try:
            yield size
        finally:
            ended = time.monotonic()
            # The processor time of this thread, which writes the call and reads the reply, is not Redis's.
            self._note(size, ended, ended - began - (time.thread_time() - own_s))

    def _note(self, size: int, ended: float, waited_s: float) -> None:
        self._costs_s.append(max(_SHORTEST_S, waited_s) / size)
        if size == self._smallest:
            self._fixed_s = min(waited_s, self._fixed_s or _LONGEST_FIXED_S)
        self._growths_s.append(max(_SHORTEST_S, waited_s - self._fixed_s) / size)
        redis_s = min(self._costs_s) * size
        self._next_at = ended - redis_s + (redis_s / self._share if self._rate is None else size / self._rate)
        self.size = max(self._smallest, min(self._largest, self.size * 2, round(STEP_S / min(self._growths_s))))
