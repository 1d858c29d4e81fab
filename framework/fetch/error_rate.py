"""Errors of the framework's own in the exchange: each is logged and tried again, and one that keeps coming back ends the process."""

import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TypeAlias

MAX_ERRORS = 10
WINDOW_S = 10.0
"""So many errors of the same type at the same place in so long are no accident: a try more would change nothing."""

_MAX_LOCATIONS = 100

_Location: TypeAlias = tuple[type[BaseException], str, int]


class ErrorRateLimit:
    """Counts by type and place. For one thread at a time: the holder of the exchange. ``tell`` hears of each with its count."""

    def __init__(self, on_error: Callable[[Exception, int], None]) -> None:
        self._on_error = on_error
        self._seen: dict[_Location, deque[float]] = {}

    def record(self, error: Exception) -> None:
        """Tell of an error. Raises it when it has come ``MOST`` times within ``WINDOW_S``: that ends its thread and the process."""
        place = (type(error), *_raised_at(error.__traceback__))
        if place not in self._seen and len(self._seen) >= _MAX_LOCATIONS:
            self._seen.clear()
        times = self._seen.setdefault(place, deque(maxlen=MAX_ERRORS))
        now = time.monotonic()
        times.append(now)
        self._on_error(error, sum(now - at <= WINDOW_S for at in times))
        if len(times) == MAX_ERRORS and now - times[0] <= WINDOW_S:
            raise error


def _raised_at(trace: TracebackType | None) -> tuple[str, int]:
    """Return the file and line in which it was raised."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (trace.tb_frame.f_code.co_filename, trace.tb_lineno) if trace is not None else ("", 0)
