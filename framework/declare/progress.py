"""Count the items of an iterating job: ``self.progress``."""

import time
from datetime import timedelta
from typing import Literal, TypeAlias

from framework.typeguards import short_repr

StopReason: TypeAlias = Literal["cancelled", "stop", "max_runtime", "lost"]
"""Why a run ends before the last item. ``stop``: the process is quiet or stops; ``lost``: another process owns the job."""

_MAX_COUNT = (1 << 63) - 1


class JobProgress:
    """How far a job is. The framework adds 1 to ``done`` after each item, unless the job has changed it meanwhile."""

    __slots__ = ("_began", "_done", "_earlier_s", "_total")

    def __init__(self, done: int = 0, total: int | None = None, earlier_s: float = 0.0) -> None:
        self._done = done
        self._total = total
        self._earlier_s = earlier_s
        self._began = time.monotonic()

    @property
    def done(self) -> int:
        """The number of finished items, over all runs. A job whose items are batches may add the size of each batch."""
        return self._done

    @done.setter
    def done(self, count: int) -> None:
        self._done = _checked(count, "done")

    @property
    def total(self) -> int | None:
        """The number of all items; None if it is unknown. Set it in ``build_enumerator`` or ``on_start``."""
        return self._total

    @total.setter
    def total(self, count: int | None) -> None:
        self._total = None if count is None else _checked(count, "total")

    @property
    def runtime_s(self) -> float:
        """The seconds of all runs: waits between runs do not count."""
        return self._earlier_s + time.monotonic() - self._began

    @property
    def rate(self) -> float | None:
        """Items per second of run time; None before the first."""
        return self._done / self.runtime_s if self._done and self.runtime_s else None

    @property
    def eta(self) -> timedelta | None:
        """The run time until the last item; None if it cannot be estimated."""
        rate = self.rate
        if rate is None or self._total is None:
            return None
        return timedelta(seconds=min(max(0, self._total - self._done) / rate, 1e9))


def _checked(count: int, name: str) -> int:
    if type(count) is not int or not 0 <= count <= _MAX_COUNT:
        raise ValueError(f"progress.{name} = {short_repr(count)}: give a whole number from 0")
    return count
