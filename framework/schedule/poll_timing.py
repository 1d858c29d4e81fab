"""Decide when to check for due jobs: rarely enough for many idle processes, in time for each job.

One check is a ``ZCOUNT`` for jobs due before the next check. Only if there are any, the earliest due time is read, and the
poller returns at that time. A retry set that does not exist (``AbsentKeys``) is not checked until it does. Between two reads of
Redis's time this host's monotonic clock advances it. The estimate only says when to check: ``read_due.lua`` decides by the
server's clock at that moment.
"""

import random
from dataclasses import dataclass
from typing import Any

import redis

from framework.process_clock import process_clock
from framework.store.absent_keys import AbsentKeys
from framework.store.connect import epoch_s
from framework.timings import STANDARD, Timings
from framework.wire import keys

FLEET_SHARE = 0.8
"""Each of N processes checks every N * 0.8 periods on average, as in Sidekiq: all together check every 0.8 periods."""

RETRY_SET_PERIOD_FACTOR = 5
"""The retry set is checked every fifth period: a retry is due 15 s after its failure unless its class chose otherwise."""

MIN_SLEEP_S = 0.05
"""The shortest sleep between two pages: jobs due within it move together."""


@dataclass(slots=True)
class SetTiming:
    """Hold the timing of one sorted set: its period factor, its next check (monotonic clock) and its earliest due time."""

    source: str
    period_factor: int
    check_at: float = 0.0
    due_at: float | None = None
    """Seconds of Redis's clock; ``None`` if no job is due before the next check."""
    skipped: bool = False
    """Whether the last check was skipped, as the set did not exist."""


class PollTiming:
    """Decide when a job is due. For one thread."""

    def __init__(
        self,
        client: "redis.Redis",
        period_s: float,
        absent: AbsentKeys | None = None,
        *,
        timings: Timings = STANDARD,
    ) -> None:
        self.sets = (SetTiming(keys.RETRY, RETRY_SET_PERIOD_FACTOR), SetTiming(keys.SCHEDULE, 1))
        self._client = client
        self._period_s = period_s
        self._absent = absent or AbsentKeys()
        self._timings = timings
        self._processes = 1
        self._clock_offset_s = 0.0
        self._synced_at: float | None = None

    def sync(self) -> None:
        """Read the server's time and the number of processes, at most once per period. Raises redis errors."""
        if (
            self._synced_at is not None
            and process_clock.monotonic() - self._synced_at < self._timings.poll_sync_period_s
        ):
            return
        pipeline: Any = self._client.pipeline(transaction=False)
        pipeline.time()
        pipeline.zcard(keys.REGISTRY)
        # A check counts only due jobs, so that it cannot tell when the set has gone.
        pipeline.exists(keys.RETRY)
        now, processes, retries = pipeline.execute()
        self._absent.note(keys.RETRY, found=bool(retries))
        self._processes = max(1, processes)
        self.set_clock(epoch_s(now))
        self._synced_at = process_clock.monotonic()

    def reset(self) -> None:
        """Discard all knowledge after an error."""
        self._synced_at = None
        for timing in self.sets:
            timing.check_at, timing.due_at = 0.0, None

    def set_clock(self, redis_s: float) -> None:
        """Record that the server's clock is at ``redis_s`` now."""
        self._clock_offset_s = redis_s - process_clock.monotonic()

    def check(self, timing: SetTiming) -> None:
        """Check the set if its check is due. Raises redis errors."""
        now = process_clock.monotonic()
        absent = not self._absent.may_exist(timing.source)
        # A set that was absent and may exist now is checked at once: a job in it may be due already.
        if now < timing.check_at and (absent or not timing.skipped):
            return
        timing.skipped = absent
        pause_s = self._period() * timing.period_factor
        if absent:
            timing.check_at, timing.due_at = now + pause_s, None
            return
        # Look a tenth beyond the next check, which may be a little late.
        until = now + self._clock_offset_s + pause_s * 1.1
        count: Any = self._client.zcount(timing.source, "-inf", f"{until:.6f}")
        timing.due_at = None
        if count:
            head: Any = self._client.zrange(timing.source, 0, 0, withscores=True)
            timing.due_at = float(head[0][1]) if head else None
        timing.check_at = now + pause_s

    def is_due(self, timing: SetTiming) -> bool:
        """Return whether a job in the set should be due by now."""
        return timing.due_at is not None and timing.due_at <= process_clock.monotonic() + self._clock_offset_s

    def expect_retry(self) -> None:
        """Check the retry set next: a written retry may be due before its next check. Safe from any thread."""
        # First: otherwise the check could skip the set that this process has just written.
        self._absent.note(keys.RETRY, found=True)
        self.sets[0].check_at = 0.0

    def promoted(self, timing: SetTiming, *, more: bool) -> None:
        """Record a moved page; ``more`` if it was full and the rest is due too, otherwise the set is checked again."""
        if not more:
            timing.check_at, timing.due_at = process_clock.monotonic(), None

    def skip_for(self, timing: SetTiming, seconds: float) -> None:
        """Skip the set for ``seconds``."""
        timing.check_at, timing.due_at = process_clock.monotonic() + seconds, None

    def next_step_s(self) -> float:
        """Return the seconds until the next check or due job."""
        now = process_clock.monotonic()
        # All processes know the due time: a random delay lets one come first.
        spread_s = random.random() * min(0.5, 0.02 * self._processes)
        times = [timing.check_at for timing in self.sets]
        times += [timing.due_at - self._clock_offset_s + spread_s for timing in self.sets if timing.due_at is not None]
        return max(0.0, min(times) - now)

    @property
    def min_sleep_s(self) -> float:
        """Return the sleep after a page that was not full."""
        return min(1.0, MIN_SLEEP_S * self._processes)

    def _period(self) -> float:
        if self._processes == 1:
            return self._period_s
        longest = min(self._timings.longest_poll_period_s, FLEET_SHARE * self._processes * self._period_s)
        return longest * (0.5 + random.random())
