"""Errors of the framework's own in the exchange: each is logged and tried again, and one that keeps coming back ends the process."""

import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TypeAlias

MOST = 10
WITHIN_S = 10.0
"""So many errors of the same type at the same place in so long are no accident: a try more would change nothing."""

_MANY_PLACES = 100

_Place: TypeAlias = tuple[type[BaseException], str, int]


class Faults:
    """Counts by type and place. For one thread at a time: the holder of the exchange. ``tell`` hears of each with its count."""

    def __init__(self, tell: Callable[[Exception, int], None]) -> None:
        self._tell = tell
        self._seen: dict[_Place, deque[float]] = {}

    def note(self, error: Exception) -> None:
        """Tell of an error. Raises it when it has come ``MOST`` times within ``WITHIN_S``: that ends its thread and the process."""
        place = (type(error), *_raised_at(error.__traceback__))
        if place not in self._seen and len(self._seen) >= _MANY_PLACES:
            self._seen.clear()
        times = self._seen.setdefault(place, deque(maxlen=MOST))
        now = time.monotonic()
        times.append(now)
        self._tell(error, sum(now - at <= WITHIN_S for at in times))
        if len(times) == MOST and now - times[0] <= WITHIN_S:
            raise error


def _raised_at(trace: TracebackType | None) -> tuple[str, int]:
    """Return the file and line in which it was raised."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (trace.tb_frame.f_code.co_filename, trace.tb_lineno) if trace is not None else ("", 0)
