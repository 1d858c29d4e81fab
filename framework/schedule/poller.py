"""Move due jobs of one shard from the retry and schedule sets to their queues.

Redis's clock decides what is due. The client middlewares run again for every moved job (Sidekiq's contract), then one
script moves it. Only the poller whose ZREM removes the member moves it, so any number of pollers may compete, and a death
before the script leaves the job where it was.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import RedisError, ResponseError

from framework.process_clock import process_clock
from framework.schedule.cross_shard import CrossShardTransfer, DueAction, PollEvents, ShardTransfer
from framework.schedule.due_job_planner import DueJobPlanner
from framework.store.absent_keys import AbsentKeys
from framework.store.connect import epoch_s
from framework.store.script import ENQUEUE_DUE, READ_DUE, is_wrong_type
from framework.store.steps import SHARE, UNPACED, BoundedSteps
from framework.telemetry.job_events import job_events
from framework.timings import STANDARD, Timings
from framework.wire import keys
from framework.wire.keys import SetLimits

PAGE_SIZE = 100
"""The most jobs moved by one script, so that a million due jobs do not stall Redis."""

UNMOVABLE_DELAY_S = 60
"""The delay of a job that cannot be moved: a page of such jobs must not block the due jobs behind it."""

# Until a set whose key has another type is checked again.
_WRONG_TYPE_DELAY_S = 30.0

FLEET_SHARE = 0.8
"""Each of N processes checks every N * 0.8 periods on average, as in Sidekiq: all together check every 0.8 periods."""

RETRY_SET_PERIOD_FACTOR = 5
"""The retry set is checked every fifth period: a retry is due 15 s after its failure unless its class chose otherwise."""

BURST_PAGES = 50
"""The full pages in a row that move at full speed. Behind them the processes share a fifth of Redis's time: much more is due."""

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


# One check is a ``ZCOUNT`` for jobs due before the next check. Only if there are any, the earliest due time is read, and the
# poller returns at that time. A retry set that does not exist (``AbsentKeys``) is not checked until it does. Between two reads of
# Redis's time this host's monotonic clock advances it. The estimate only says when to check: ``read_due.lua`` decides by the
# server's clock at that moment.
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
        timing.check_at, timing.due_at = process_clock.monotonic() + seconds, None

    def next_step_s(self) -> float:
        now = process_clock.monotonic()
        # All processes know the due time: a random delay lets one come first.
        spread_s = random.random() * min(0.5, 0.02 * self._processes)
        times = [timing.check_at for timing in self.sets]
        times += [timing.due_at - self._clock_offset_s + spread_s for timing in self.sets if timing.due_at is not None]
        return max(0.0, min(times) - now)

    @property
    def share(self) -> float:
        """The share of Redis's time for one of the processes that may move the same due jobs."""
        return SHARE / self._processes

    @property
    def min_sleep_s(self) -> float:
        return min(1.0, MIN_SLEEP_S * self._processes)

    def _period(self) -> float:
        if self._processes == 1:
            return self._period_s
        longest = min(self._timings.longest_poll_period_s, FLEET_SHARE * self._processes * self._period_s)
        return longest * (0.5 + random.random())


class Poller:
    """Move due jobs. ``step`` is called in a loop by one thread."""

    def __init__(
        self,
        client: "redis.Redis",
        events: PollEvents,
        planner: DueJobPlanner,
        transfer: CrossShardTransfer,
        timing: PollTiming,
        dead_set: SetLimits,
    ) -> None:
        self._client = client
        self._events = events
        self._planner = planner
        self._transfer = transfer
        self._timing = timing
        self._dead_set = dead_set
        self._full_pages = 0
        self._steps = BoundedSteps(PAGE_SIZE, PAGE_SIZE, rate=UNPACED)

    def step(self) -> float:
        """Move due jobs, at most a page per set; return the seconds until the next step. Raises redis errors."""
        timing = self._timing
        try:
            timing.sync()
            found = [self._check_set(set_timing) for set_timing in timing.sets]
        except (RedisError, OSError):
            timing.reset()
            raise
        self._note(is_full=PAGE_SIZE in found)
        if PAGE_SIZE in found:
            # Of many processes each waits for long: here, where a stop ends the wait.
            return self._steps.wait_s
        return timing.min_sleep_s if any(found) else timing.next_step_s()

    def _note(self, *, is_full: bool) -> None:
        """Choose the pace of the next page: full speed, or the share of this process behind a burst of full pages."""
        self._full_pages = self._full_pages + 1 if is_full else 0
        if self._full_pages == BURST_PAGES:
            self._steps = BoundedSteps(PAGE_SIZE, PAGE_SIZE, share=self._timing.share)
        elif not is_full:
            self._steps = BoundedSteps(PAGE_SIZE, PAGE_SIZE, rate=UNPACED)

    def poll(self) -> int:
        """Move jobs that are due now, at most a page per set, without waiting for the next check; return how many were found."""
        return sum(self._skip_wrong_type(set_timing, self._promote_page) for set_timing in self._timing.sets)

    def _check_set(self, timing: SetTiming) -> int:
        return self._skip_wrong_type(timing, self._promote_if_due)

    def _promote_if_due(self, timing: SetTiming) -> int:
        self._timing.check(timing)
        return self._promote_page(timing) if self._timing.is_due(timing) else 0

    def _skip_wrong_type(self, timing: SetTiming, step: Any) -> int:
        """Run the step; report and skip a set whose key has another type, so that it does not stop the other set."""
        try:
            return int(step(timing))
        except ResponseError as error:
            if not is_wrong_type(error):
                raise
            self._events.due_set_wrong_type(timing.source, error)
            self._timing.skip_for(timing, _WRONG_TYPE_DELAY_S)
            return 0

    def _promote_page(self, timing: SetTiming) -> int:
        reply: Any = READ_DUE(self._client, [timing.source], [PAGE_SIZE])
        self._timing.set_clock(float(reply[0]))
        members: Sequence[bytes] = reply[1::2]
        if members:
            self.promote(timing.source, members, reply[2::2])
        self._timing.promoted(timing, more=len(members) == PAGE_SIZE)
        return len(members)

    def promote(self, source: str, members: Sequence[bytes], scores: Sequence[bytes]) -> None:
        """Move these members of a set, which are due since these times: those of this shard in one script, then the others.

        Raises redis errors.
        """
        planned = zip(members, scores, strict=True)
        plans = [self._planner.plan(source, member, float(score)) for member, score in planned]
        self._act(source, [plan for plan in plans if isinstance(plan, DueAction)])
        # Last: another shard may be slow, and the jobs of this one do not wait for it.
        self._act(source, self._transfer.transfer(source, [plan for plan in plans if isinstance(plan, ShardTransfer)]))

    def _act(self, source: str, actions: Sequence[DueAction]) -> None:
        if not actions:
            return
        for action in actions:
            if action.before is not None:
                action.before()
        names = [source, keys.QUEUES, keys.DEAD]
        names += [keys.queue(one.queue) if one.queue else keys.DEAD for one in actions]
        arguments = [
            *(len(actions), self._dead_set.max_jobs, self._dead_set.max_age_s, UNMOVABLE_DELAY_S),
            *(one.member for one in actions),
            *(one.action for one in actions),
            *(one.data for one in actions),
            *(one.queue for one in actions),
            *((one.lock_argument for one in actions) if any(one.lock_argument for one in actions) else ()),
        ]
        with self._steps.step(len(actions)):
            reply: Any = ENQUEUE_DUE(self._client, names, arguments)
        done, trimmed = reply
        self._report(actions, done, trimmed)

    def _report(self, actions: Sequence[DueAction], done: Sequence[int | bytes], trimmed: int) -> None:
        for action, outcome in zip(actions, done, strict=True):
            if isinstance(outcome, bytes):
                if action.on_duplicate is not None:
                    action.on_duplicate(outcome.decode(errors="replace"))
            elif outcome == 1:
                if action.on_done is not None:
                    action.on_done()
                if action.enqueued is not None:
                    job_events.emit(action.enqueued)
            elif outcome < 0:
                self._events.queue_wrong_type(action.queue or keys.DEAD)
        if trimmed:
            self._events.trimmed(trimmed)
