"""Write delayed jobs. A delay counts by Redis's clock; a host with a wrong clock gets a warning."""

import time
from collections.abc import Callable, Sequence

from framework.declare.request import DueTime
from framework.errors import ShardUnavailableError
from framework.process_clock import process_clock
from framework.shard.shard import Shard
from framework.telemetry.logs import LogRateLimit
from framework.wire.status_key import StatusCommand

SKEW_S = 2.0
"""The clock difference between a host and Redis from which a warning is logged."""

# Seconds between two warnings about one shard.
_LOG_INTERVAL_S = 3_600.0
# Seconds between two clock checks of pushes whose due time does not need Redis's clock.
_CLOCK_CHECK_PERIOD_S = 60.0


class ScheduleWriter:
    """Write jobs to the schedule set. Shared between threads."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S, monotonic)
        self._clock_check_limit = LogRateLimit(_CLOCK_CHECK_PERIOD_S, monotonic)

    def write(self, shard: Shard, payload: bytes, due: DueTime, statuses: Sequence[StatusCommand]) -> None:
        """Put one job into the shard's schedule set, with its status if it is tracked. Raises ShardUnavailableError."""
        if due.delay_s is not None:
            began = process_clock.now()
            self._warn_if_skewed(shard, began, shard.schedule_in(due.delay_s, payload, statuses))
            return
        self.check_clock(shard)
        shard.schedule_one(due.at, payload, statuses)

    def first_due_at(self, shard: Shard, due: DueTime) -> float:
        """Return the due time of a bulk's first job by Redis's clock.

        Redis's time is read once per bulk, so that the jobs keep their spacing.

        Raises:
            ShardUnavailableError: the shard did not answer.
        """
        if due.delay_s is None:
            self.check_clock(shard)
            return due.at
        began = process_clock.now()
        now = shard.time()
        self._warn_if_skewed(shard, began, now)
        return now + due.delay_s

    def check_clock(self, shard: Shard) -> None:
        """Compare the clocks, at a limited rate: a push for a time (``perform_at``) relies on the clock of its host."""
        if not self._clock_check_limit.hit(shard.name):
            return
        began = process_clock.now()
        try:
            now = shard.time()
        except ShardUnavailableError:
            # The push itself raises this error.
            return
        self._warn_if_skewed(shard, began, now)

    def _warn_if_skewed(self, shard: Shard, began: float, now: float) -> None:
        # Redis answered between the two readings of the host's clock: only a time outside of that interval is skew.
        skew_s = max(0.0, began - now) + min(0.0, process_clock.now() - now)
        if abs(skew_s) < SKEW_S:
            return
        side = "ahead of" if skew_s > 0 else "behind"
        self._log_limit.warning(
            shard.name,
            f"this host's clock is {abs(skew_s):,.1f} s {side} the clock of the shard's Redis. Delays count by Redis's "
            "clock, but the times of perform_at and in payloads are wrong. Synchronize this host's clock.",
            "clock.skew",
            shard=shard.name,
            skew_s=round(skew_s, 3),
        )
