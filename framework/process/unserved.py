"""Look again and again for queues that no process serves; decide when to warn of them, and when to take the warning back."""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from framework.route.topology import QueueLocation

FIRST_CHECK_S = 3.0
"""From the start of a process to its first look, and then to the second: processes that are started together serve by then."""

FIRST_CHECK_IN_GROUP_S = 10.0
"""The same for a process of a group, whose siblings may need some time for their own start."""

UNSERVED_PERIOD_S = 60.0
"""Pause between two looks while a queue is not served."""

SERVED_PERIOD_S = 600.0
"""Pause between two looks while every queue is served."""

REPEAT_S = 3600.0
"""After this time a warning that still holds is repeated."""


class UnservedCallbacks(NamedTuple):
    """What is called with the places that are unserved, and with those that are served again."""

    on_unserved: Callable[[frozenset[QueueLocation]], None]
    on_served: Callable[[frozenset[QueueLocation]], None]


# Decision 194: two looks, because the processes of a fleet start at the same time.
class UnservedWatch:
    """Warns of a place that two looks in a row found unserved, and says when a process serves it. For one thread.

    ``find`` returns the places that are unserved now; ``None`` where this process serves all there are, so that nothing is asked.
    """

    def __init__(
        self,
        find: Callable[[], frozenset[QueueLocation]] | None,
        callbacks: UnservedCallbacks,
        *,
        in_group: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find = find
        self._callbacks = callbacks
        self._clock = clock
        self._first_s = FIRST_CHECK_IN_GROUP_S if in_group else FIRST_CHECK_S
        self._checks = -1
        self._previous: frozenset[QueueLocation] = frozenset()
        self._warned: frozenset[QueueLocation] = frozenset()
        """The places of which a warning was given, and which no process serves yet."""
        self._warned_at = -math.inf

    def step(self) -> float:
        """Look, unless this is the first call, tell what there is to tell, and return the seconds until the next call."""
        self._checks += 1
        if self._find is None:
            return SERVED_PERIOD_S
        if self._checks == 0:
            return self._first_s
        missing = self._find()
        self._notify(missing & self._previous, missing)
        self._previous = missing
        if not missing:
            return SERVED_PERIOD_S
        return self._first_s if self._checks == 1 else UNSERVED_PERIOD_S

    def _notify(self, sure: frozenset[QueueLocation], missing: frozenset[QueueLocation]) -> None:
        served = self._warned - missing
        if served:
            self._callbacks.on_served(served)
        self._warned -= served
        now = self._clock()
        if sure - self._warned or (sure and now - self._warned_at >= REPEAT_S):
            self._callbacks.on_unserved(sure)
            self._warned, self._warned_at = self._warned | sure, now
