"""Tell the time of the host, also where a test has frozen it."""

import time


class HostTime:
    """The time of the host in epoch seconds, by a clock that neither freezegun nor time-machine stops."""

    def __init__(self) -> None:
        self._offset_s = time.time() - _clock()

    def set(self, now: float) -> None:
        """Note the time that a server on this host has told."""
        self._offset_s = now - _clock()

    def __call__(self) -> float:
        """Return the time."""
        return _clock() + self._offset_s


def _clock() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


host_time = HostTime()
