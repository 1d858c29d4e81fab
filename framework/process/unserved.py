"""Check periodically for queues that no process serves; decide when to warn and when to report that they are served."""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from framework.route.topology import QueueLocation
from framework.timings import STANDARD, Timings

REPEAT_S = 3600.0
"""The period at which a warning that still holds is repeated."""


class UnservedCallbacks(NamedTuple):
    """Called with the queues that no process serves, and with those that a process serves again."""

    on_unserved: Callable[[frozenset[QueueLocation]], None]
    on_served: Callable[[frozenset[QueueLocation]], None]


# Decision 194: two looks, because the processes of a fleet start at the same time.
class UnservedWatch:
    """Warn of a queue that two checks in a row found unserved, and report when it is served. Use it from one thread.

    ``find`` returns the queues that are unserved now; it is ``None`` where this process serves all of them.
    """

    def __init__(
        self,
        find: Callable[[], frozenset[QueueLocation]] | None,
        callbacks: UnservedCallbacks,
        *,
        in_group: bool = False,
        timings: Timings = STANDARD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find = find
        self._callbacks = callbacks
        self._clock = clock
        self._timings = timings
        self._first_s = timings.first_unserved_check_in_group_s if in_group else timings.first_unserved_check_s
        self._checks = -1
        self._previous: frozenset[QueueLocation] = frozenset()
        self._warned: frozenset[QueueLocation] = frozenset()
        """The queues with a warning that still holds."""
        self._warned_at = -math.inf

    def step(self) -> float:
        """Check the queues, except in the first call, and return the seconds until the next call."""
        self._checks += 1
        if self._find is None:
            return self._timings.served_check_period_s
        if self._checks == 0:
            return self._first_s
        missing = self._find()
        self._notify(missing & self._previous, missing)
        self._previous = missing
        if not missing:
            return self._timings.served_check_period_s
        return self._first_s if self._checks == 1 else self._timings.unserved_check_period_s

    def _notify(self, confirmed: frozenset[QueueLocation], missing: frozenset[QueueLocation]) -> None:
        served = self._warned - missing
        if served:
            self._callbacks.on_served(served)
        self._warned -= served
        now = self._clock()
        if confirmed - self._warned or (confirmed and now - self._warned_at >= REPEAT_S):
            self._callbacks.on_unserved(confirmed)
            self._warned, self._warned_at = self._warned | confirmed, now
