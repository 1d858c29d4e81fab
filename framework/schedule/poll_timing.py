"""When to look for due jobs: seldom enough for an idle fleet, in time for each job.

Looking is one ``ZCOUNT`` that asks whether anything will be due before the next look. Only then is the earliest due time read,
and the poller comes back at that moment. Redis's clock is carried forward by ours between two questions for the time; it only
says when to ask: ``read_due.lua`` decides by the server's clock at that moment.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis

from framework.wire import keys

FLEET_SHARE = 0.8
"""Each of N processes looks every N * 0.8 periods on average, as in Sidekiq: somebody looks every 0.8."""

MAX_PERIOD_S = 10.0
"""However many they are: the survivors of a large fleet must not wait for the dead."""

SYNC_S = 30.0
"""How often the server's time and the number of processes are asked for."""

RETRY_SET_PERIOD_FACTOR = 5
"""The retry set is looked at every fifth time: a retry is due 15 s after its failure unless its class chose otherwise."""

MIN_SLEEP_S = 0.05
"""Between two promotions of a trickle: jobs due within it move together."""


@dataclass(slots=True)
class SetTiming:
    """One sorted set: how far ahead a look at it reaches, when the next is (our monotonic clock), and its earliest due time."""

    source: str
    period_factor: int
    check_at: float = 0.0
    due_at: float | None = None
    """Seconds of Redis's clock; ``None``: nothing is due before the next look."""


class PollTiming:
    """Knows when something is due. For one thread."""

    def __init__(
        self,
        client: "redis.Redis",
        period_s: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        random_fraction: Callable[[], float] = random.random,
    ) -> None:
        self.sets = (SetTiming(keys.RETRY, RETRY_SET_PERIOD_FACTOR), SetTiming(keys.SCHEDULE, 1))
        self._client = client
        self._period_s = period_s
        self._monotonic = monotonic
        self._random_fraction = random_fraction
        self._processes = 1
        self._clock_offset_s = 0.0
        self._synced_at: float | None = None

    def sync(self) -> None:
        """Ask for the server's time and the size of the fleet, if that was long ago. Raises redis errors."""
        if self._synced_at is not None and self._monotonic() - self._synced_at < SYNC_S:
            return
        pipeline: Any = self._client.pipeline(transaction=False)
        pipeline.time()
        pipeline.zcard(keys.REGISTRY)
        (seconds, microseconds), processes = pipeline.execute()
        self._processes = max(1, processes)
        self.set_clock(seconds + microseconds / 1e6)
        self._synced_at = self._monotonic()

    def reset(self) -> None:
        """Something failed: ask for everything anew."""
        self._synced_at = None
        for watch in self.sets:
            watch.check_at, watch.due_at = 0.0, None

    def set_clock(self, redis_s: float) -> None:
        """The server's clock says ``redis_s`` now."""
        self._clock_offset_s = redis_s - self._monotonic()

    def check(self, timing: SetTiming) -> None:
        """Look at the set if it is time. Raises redis errors."""
        now = self._monotonic()
        if now < timing.check_at:
            return
        pause_s = self._period() * timing.period_factor
        # A tenth further than the next look, which may be a little late.
        until = now + self._clock_offset_s + pause_s * 1.1
        count: Any = self._client.zcount(timing.source, "-inf", f"{until:.6f}")
        timing.due_at = None
        if count:
            head: Any = self._client.zrange(timing.source, 0, 0, withscores=True)
            timing.due_at = float(head[0][1]) if head else None
        timing.check_at = now + pause_s

    def is_due(self, timing: SetTiming) -> bool:
        """Whether something in the set should be due by now."""
        return timing.due_at is not None and timing.due_at <= self._monotonic() + self._clock_offset_s

    def expect_retry(self) -> None:
        """A retry was written that may be due before the next look at its set. Safe from any thread."""
        self.sets[0].check_at = 0.0

    def promoted(self, timing: SetTiming, *, more: bool) -> None:
        """A page of the set was moved; ``more``: it was full, and the rest is due too. Otherwise it is looked at again."""
        if not more:
            timing.check_at, timing.due_at = self._monotonic(), None

    def skip_for(self, timing: SetTiming, seconds: float) -> None:
        """Leave the set alone for so long."""
        timing.check_at, timing.due_at = self._monotonic() + seconds, None

    def next_step_s(self) -> float:
        """Return the seconds until there is something to do."""
        now = self._monotonic()
        spread_s = self._random_fraction() * min(
            0.5, 0.02 * self._processes
        )  # of all who know the moment, one comes first
        times = [watch.check_at for watch in self.sets]
        times += [watch.due_at - self._clock_offset_s + spread_s for watch in self.sets if watch.due_at is not None]
        return max(0.0, min(times) - now)

    @property
    def min_sleep_s(self) -> float:
        """Return the pause after a page that was not full."""
        return min(1.0, MIN_SLEEP_S * self._processes)

    def _period(self) -> float:
        if self._processes == 1:
            return self._period_s
        longest = min(MAX_PERIOD_S, FLEET_SHARE * self._processes * self._period_s)
        return longest * (0.5 + self._random_fraction())
