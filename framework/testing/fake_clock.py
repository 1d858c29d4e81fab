"""Give tests a clock of their own: it decides which jobs are due."""

import time
from datetime import UTC, datetime, timedelta

from framework.errors import ModeError


class FakeClock:
    """Count the time of a fake. With ``now`` it stands still until it is moved; without, it goes with the host's clock.

    ``now`` is an aware datetime or epoch seconds. Code of a job that reads the host's clock is not affected.
    """

    def __init__(self, now: datetime | float | None = None) -> None:
        self.frozen = now is not None
        """Whether only the test moves the clock. Otherwise ``drain`` moves it to the next job that is due."""
        self._offset_s = 0.0
        self._now = 0.0 if now is None else epoch_seconds(now)

    def __call__(self) -> float:
        """Return the time in epoch seconds."""
        return self._now if self.frozen else time.time() + self._offset_s

    def to_host(self, at: float) -> float:
        """Return the time of the host's clock that is as far away as ``at`` is by this one."""
        return at - self() + host_time()

    @property
    def now(self) -> datetime:
        """Return the time as an aware datetime, in UTC."""
        return datetime.fromtimestamp(self(), UTC)

    def advance(self, by: timedelta | float) -> None:
        """Move the clock forward, by a timedelta or seconds.

        Raises:
            ModeError: the clock would go back.
        """
        seconds = by.total_seconds() if isinstance(by, timedelta) else float(by)
        if not seconds >= 0:
            raise ModeError(f"a clock cannot go back: advance({by!r}). Use a new fake() with an earlier clock.")
        if self.frozen:
            self._now += seconds
        else:
            self._offset_s += seconds

    def move_to(self, when: datetime | float) -> None:
        """Move the clock forward to ``when``; a clock that is there already stays.

        Raises:
            ModeError: ``when`` is a datetime without a time zone.
        """
        self.advance(max(0.0, epoch_seconds(when) - self()))


def epoch_seconds(when: datetime | float) -> float:
    """Return a time as epoch seconds. Raises ModeError for a datetime without a time zone."""
    if not isinstance(when, datetime):
        return float(when)
    if when.utcoffset() is None:
        raise ModeError(f"{when!r} has no time zone: use datetime(..., tzinfo=UTC).")
    return when.timestamp()


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
