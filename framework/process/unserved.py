"""Look again and again for queues that no process serves; decide when to warn of them, and when to take the warning back."""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from framework.route.places import Place

FIRST_S = 3.0
"""From the start of a process to its first look, and then to the second: processes that are started together serve by then."""

FIRST_IN_GROUP_S = 10.0
"""The same for a process of a group, whose siblings may need some time for their own start."""

SOON_S = 60.0
"""Pause between two looks while a queue is not served."""

LATER_S = 600.0
"""Pause between two looks while every queue is served."""

AGAIN_S = 3600.0
"""After this time a warning that still holds is repeated."""


class Served(NamedTuple):
    """What is called with the places that are unserved, and with those that are served again."""

    lost: Callable[[frozenset[Place]], None]
    found: Callable[[frozenset[Place]], None]


class UnservedWatch:
    """Warns of a place that two looks in a row found unserved, and says when a process serves it. For one thread.

    ``find`` returns the places that are unserved now; ``None`` where this process serves all there are, so that nothing is asked.
    """

    def __init__(
        self,
        find: Callable[[], frozenset[Place]] | None,
        told: Served,
        *,
        in_group: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find = find
        self._told = told
        self._clock = clock
        self._first_s = FIRST_IN_GROUP_S if in_group else FIRST_S
        self._looks = -1
        self._before: frozenset[Place] = frozenset()
        self._open: frozenset[Place] = frozenset()
        """The places of which a warning was given, and which no process serves yet."""
        self._told_at = -math.inf

    def step(self) -> float:
        """Look, unless this is the first call, tell what there is to tell, and return the seconds until the next call."""
        self._looks += 1
        if self._find is None:
            return LATER_S
        if self._looks == 0:
            return self._first_s
        missing = self._find()
        self._tell(missing & self._before, missing)
        self._before = missing
        if not missing:
            return LATER_S
        return self._first_s if self._looks == 1 else SOON_S

    def _tell(self, sure: frozenset[Place], missing: frozenset[Place]) -> None:
        served = self._open - missing
        if served:
            self._told.found(served)
        self._open -= served
        now = self._clock()
        if sure - self._open or (sure and now - self._told_at >= AGAIN_S):
            self._told.lost(sure)
            self._open, self._told_at = self._open | sure, now
