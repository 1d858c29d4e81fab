"""The poller: moves due jobs of one shard from the retry and schedule sets to their queues.

Redis's clock decides what is due. The client middleware runs again for every job that moves (Sidekiq's contract), then
one script moves it: whoever's ZREM finds the member moves it, so any number of pollers may race and a death before the
script leaves the job where it was.
"""

from collections.abc import Sequence
from typing import Any

import redis
from redis.exceptions import RedisError, ResponseError

from framework.finish.settle import DeadSetLimits
from framework.schedule.cross_shard import CrossShardTransfer
from framework.schedule.due_action import DueAction, PollEvents, ShardTransfer
from framework.schedule.due_job_planner import DueJobPlanner
from framework.schedule.poll_timing import PollTiming, SetTiming
from framework.store.script import ENQUEUE_DUE, READ_DUE
from framework.wire import keys

PAGE_SIZE = 100
"""Jobs moved by one script: a million due at once must not stall Redis."""

UNMOVABLE_DELAY_S = 60
"""How long a job steps aside that cannot be moved: a page of such jobs must not hide all that is due behind it."""

_WRONG_TYPE_DELAY_S = 30.0  # a set whose key is of another type is looked at again


class Poller:
    """Promotes due jobs. ``step`` is for a loop; for one thread."""

    def __init__(
        self,
        client: "redis.Redis",
        events: PollEvents,
        planner: DueJobPlanner,
        transfer: CrossShardTransfer,
        timing: PollTiming,
        dead_set: DeadSetLimits,
    ) -> None:
        self._client = client
        self._events = events
        self._planner = planner
        self._transfer = transfer
        self._timing = timing
        self._dead_set = dead_set

    def step(self) -> float:
        """Move what is due, at most a page per set; return the seconds until the next step. Raises redis errors."""
        rhythm = self._timing
        try:
            rhythm.sync()
            found = [self._check_set(watch) for watch in rhythm.sets]
        except (RedisError, OSError):
            rhythm.reset()
            raise
        if PAGE_SIZE in found:
            return 0.0
        return rhythm.min_sleep_s if any(found) else rhythm.next_step_s()

    def poll(self) -> int:
        """Move what is due now, at most a page per set, without asking whether it is time; return how many were found."""
        return sum(self._skip_wrong_type(watch, self._promote_page) for watch in self._timing.sets)

    def _check_set(self, timing: SetTiming) -> int:
        return self._skip_wrong_type(timing, self._promote_if_due)

    def _promote_if_due(self, timing: SetTiming) -> int:
        self._timing.check(timing)
        return self._promote_page(timing) if self._timing.is_due(timing) else 0

    def _skip_wrong_type(self, timing: SetTiming, step: Any) -> int:
        """One set's key of a wrong type must not hide the other set."""
        try:
            return int(step(timing))
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            self._events.due_set_wrong_type(timing.source, error)
            self._timing.skip_for(timing, _WRONG_TYPE_DELAY_S)
            return 0

    def _promote_page(self, timing: SetTiming) -> int:
        reply: Any = READ_DUE(self._client, [timing.source], [PAGE_SIZE])
        self._timing.set_clock(float(reply[0]))
        members: Sequence[bytes] = reply[1:]
        if members:
            self._promote(timing.source, members)
        self._timing.promoted(timing, more=len(members) == PAGE_SIZE)
        return len(members)

    def _promote(self, source: str, members: Sequence[bytes]) -> None:
        steps = [self._planner.plan(source, member) for member in members]
        moves = [step for step in steps if isinstance(step, DueAction)]
        moves += self._transfer.transfer(source, [step for step in steps if isinstance(step, ShardTransfer)])
        if not moves:
            return
        for move in moves:
            if move.before is not None:
                move.before()
        done: Any
        done, trimmed = ENQUEUE_DUE(
            self._client,
            [source, keys.QUEUES, keys.DEAD, *(keys.queue(m.queue) if m.queue else keys.DEAD for m in moves)],
            [
                *(len(moves), self._dead_set.max_jobs, self._dead_set.timeout_s, UNMOVABLE_DELAY_S),
                *(m.member for m in moves),
                *(m.action for m in moves),
                *(m.data for m in moves),
                *(m.queue for m in moves),
                *((m.lock_argument for m in moves) if any(m.lock_argument for m in moves) else ()),
            ],
        )
        self._report(moves, done, trimmed)

    def _report(self, actions: Sequence[DueAction], done: Sequence[int | bytes], trimmed: int) -> None:
        for move, outcome in zip(actions, done, strict=True):
            if isinstance(outcome, bytes):
                if move.on_duplicate is not None:
                    move.on_duplicate(outcome.decode(errors="replace"))
            elif outcome == 1 and move.on_done is not None:
                move.on_done()
            elif outcome < 0:
                self._events.queue_wrong_type(move.queue or keys.DEAD)
        if trimmed:
            self._events.trimmed(trimmed)
