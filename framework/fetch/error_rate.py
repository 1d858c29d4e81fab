"""Limit the rate of the framework's own errors in fetching: each is logged and tried again; a repeated one ends the process."""

import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TypeAlias

MAX_ERRORS = 10
WINDOW_S = 10.0
"""``MAX_ERRORS`` errors of one type at one location within so many seconds: another try would not help."""

_MAX_LOCATIONS = 100

_Location: TypeAlias = tuple[type[BaseException], str, int]


class ErrorRateLimit:
    """Count errors by type and location, and report each with its count. For one thread at a time."""

    def __init__(self, on_error: Callable[[Exception, int], None]) -> None:
        self._on_error = on_error
        self._seen: dict[_Location, deque[float]] = {}

    def record(self, error: Exception) -> None:
        """Report an error; raise it if it is the ``MAX_ERRORS``-th within ``WINDOW_S``, which ends its thread and the process."""
        location = (type(error), *_raised_at(error.__traceback__))
        # A process that runs for months must not collect locations without end.
        if location not in self._seen and len(self._seen) >= _MAX_LOCATIONS:
            self._seen.clear()
        times = self._seen.setdefault(location, deque(maxlen=MAX_ERRORS))
        now = time.monotonic()
        times.append(now)
        self._on_error(error, sum(now - at <= WINDOW_S for at in times))
        if len(times) == MAX_ERRORS and now - times[0] <= WINDOW_S:
            raise error


def _raised_at(trace: TracebackType | None) -> tuple[str, int]:
    """Return the file and line of the innermost frame."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (trace.tb_frame.f_code.co_filename, trace.tb_lineno) if trace is not None else ("", 0)
