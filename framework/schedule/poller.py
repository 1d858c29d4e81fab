"""Move due jobs of one shard from the retry and schedule sets to their queues.

Redis's clock decides what is due. The client middlewares run again for every moved job (Sidekiq's contract), then one
script moves it. Only the poller whose ZREM removes the member moves it, so any number of pollers may compete, and a death
before the script leaves the job where it was.
"""

from collections.abc import Sequence
from typing import Any

import redis
from redis.exceptions import RedisError, ResponseError

from framework.schedule.cross_shard import CrossShardTransfer
from framework.schedule.due_action import DueAction, PollEvents, ShardTransfer
from framework.schedule.due_job_planner import DueJobPlanner
from framework.schedule.poll_timing import PollTiming, SetTiming
from framework.store.script import ENQUEUE_DUE, READ_DUE, is_wrong_type
from framework.wire import keys
from framework.wire.keys import SetLimits

PAGE_SIZE = 100
"""The most jobs moved by one script, so that a million due jobs do not stall Redis."""

UNMOVABLE_DELAY_S = 60
"""The delay of a job that cannot be moved: a page of such jobs must not block the due jobs behind it."""

# Until a set whose key has another type is checked again.
_WRONG_TYPE_DELAY_S = 30.0


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

    def step(self) -> float:
        """Move due jobs, at most a page per set; return the seconds until the next step. Raises redis errors."""
        timing = self._timing
        try:
            timing.sync()
            found = [self._check_set(set_timing) for set_timing in timing.sets]
        except (RedisError, OSError):
            timing.reset()
            raise
        if PAGE_SIZE in found:
            return 0.0
        return timing.min_sleep_s if any(found) else timing.next_step_s()

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
        """Move these members of a set, which are due since these times, in one script. Raises redis errors."""
        planned = zip(members, scores, strict=True)
        plans = [self._planner.plan(source, member, float(score)) for member, score in planned]
        actions = [plan for plan in plans if isinstance(plan, DueAction)]
        actions += self._transfer.transfer(source, [plan for plan in plans if isinstance(plan, ShardTransfer)])
        if not actions:
            return
        for action in actions:
            if action.before is not None:
                action.before()
        done: Any
        done, trimmed = ENQUEUE_DUE(
            self._client,
            [source, keys.QUEUES, keys.DEAD, *(keys.queue(one.queue) if one.queue else keys.DEAD for one in actions)],
            [
                *(len(actions), self._dead_set.max_jobs, self._dead_set.max_age_s, UNMOVABLE_DELAY_S),
                *(one.member for one in actions),
                *(one.action for one in actions),
                *(one.data for one in actions),
                *(one.queue for one in actions),
                *((one.lock_argument for one in actions) if any(one.lock_argument for one in actions) else ()),
            ],
        )
        self._report(actions, done, trimmed)

    def _report(self, actions: Sequence[DueAction], done: Sequence[int | bytes], trimmed: int) -> None:
        for action, outcome in zip(actions, done, strict=True):
            if isinstance(outcome, bytes):
                if action.on_duplicate is not None:
                    action.on_duplicate(outcome.decode(errors="replace"))
            elif outcome == 1 and action.on_done is not None:
                action.on_done()
            elif outcome < 0:
                self._events.queue_wrong_type(action.queue or keys.DEAD)
        if trimmed:
            self._events.trimmed(trimmed)
