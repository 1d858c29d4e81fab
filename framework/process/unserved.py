"""Check periodically for queues that no process serves; decide when to warn and when to report that they are served."""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from framework.route.topology import QueueLocation

FIRST_CHECK_S = 3.0
"""The time before the first check and before the second: processes that start together serve by then."""

FIRST_CHECK_IN_GROUP_S = 10.0
"""The same for a process of a group, whose siblings may need longer to start."""

UNSERVED_PERIOD_S = 60.0
"""The period of the check while a queue is not served."""

SERVED_PERIOD_S = 600.0
"""The period of the check while every queue is served."""

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find = find
        self._callbacks = callbacks
        self._clock = clock
        self._first_s = FIRST_CHECK_IN_GROUP_S if in_group else FIRST_CHECK_S
        self._checks = -1
        self._previous: frozenset[QueueLocation] = frozenset()
        self._warned: frozenset[QueueLocation] = frozenset()
        """The queues with a warning that still holds."""
        self._warned_at = -math.inf

    def step(self) -> float:
        """Check the queues, except in the first call, and return the seconds until the next call."""
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

    def _notify(self, confirmed: frozenset[QueueLocation], missing: frozenset[QueueLocation]) -> None:
        served = self._warned - missing
        if served:
            self._callbacks.on_served(served)
        self._warned -= served
        now = self._clock()
        if confirmed - self._warned or (confirmed and now - self._warned_at >= REPEAT_S):
            self._callbacks.on_unserved(confirmed)
            self._warned, self._warned_at = self._warned | confirmed, now
