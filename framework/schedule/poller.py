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
from framework.schedule.crossings import Crossings
from framework.schedule.move import Crossing, Move, PollEvents
from framework.schedule.preparation import Preparation
from framework.schedule.rhythm import Rhythm, Watch
from framework.store.script import DUE, PROMOTE
from framework.wire import keys

PAGE = 100
"""Jobs moved by one script: a million due at once must not stall Redis."""

ASIDE_S = 60
"""How long a job steps aside that cannot be moved: a page of such jobs must not hide all that is due behind it."""

_REFUSED_S = 30.0  # a set whose key is of another type is looked at again


class Poller:
    """Promotes due jobs. ``step`` is for a loop; for one thread."""

    def __init__(
        self,
        client: "redis.Redis",
        events: PollEvents,
        preparation: Preparation,
        crossings: Crossings,
        rhythm: Rhythm,
        dead_set: DeadSetLimits,
    ) -> None:
        self._client = client
        self._events = events
        self._preparation = preparation
        self._crossings = crossings
        self._rhythm = rhythm
        self._dead_set = dead_set

    def step(self) -> float:
        """Move what is due, at most a page per set; return the seconds until the next step. Raises redis errors."""
        rhythm = self._rhythm
        try:
            rhythm.sync()
            found = [self._attend(watch) for watch in rhythm.watches]
        except (RedisError, OSError):
            rhythm.forget()
            raise
        if PAGE in found:
            return 0.0
        return rhythm.floor_s if any(found) else rhythm.pause_s()

    def poll(self) -> int:
        """Move what is due now, at most a page per set, without asking whether it is time; return how many were found."""
        return sum(self._guarded(watch, self._page) for watch in self._rhythm.watches)

    def _attend(self, watch: Watch) -> int:
        return self._guarded(watch, self._look)

    def _look(self, watch: Watch) -> int:
        self._rhythm.look(watch)
        return self._page(watch) if self._rhythm.due(watch) else 0

    def _guarded(self, watch: Watch, step: Any) -> int:
        """One set's key of a wrong type must not hide the other set."""
        try:
            return int(step(watch))
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            self._events.due_set_refused(watch.source, error)
            self._rhythm.wait(watch, _REFUSED_S)
            return 0

    def _page(self, watch: Watch) -> int:
        reply: Any = DUE(self._client, [watch.source], [PAGE])
        self._rhythm.set_clock(float(reply[0]))
        members: Sequence[bytes] = reply[1:]
        if members:
            self._promote(watch.source, members)
        self._rhythm.promoted(watch, more=len(members) == PAGE)
        return len(members)

    def _promote(self, source: str, members: Sequence[bytes]) -> None:
        steps = [self._preparation.prepare(source, member) for member in members]
        moves = [step for step in steps if isinstance(step, Move)]
        moves += self._crossings.land(source, [step for step in steps if isinstance(step, Crossing)])
        if not moves:
            return
        for move in moves:
            if move.first is not None:
                move.first()
        done: Any
        done, trimmed = PROMOTE(
            self._client,
            [source, keys.QUEUES, keys.DEAD, *(keys.queue(m.queue) if m.queue else keys.DEAD for m in moves)],
            [
                *(len(moves), self._dead_set.max_jobs, self._dead_set.timeout_s, ASIDE_S),
                *(m.member for m in moves),
                *(m.word for m in moves),
                *(m.data for m in moves),
                *(m.queue for m in moves),
                *((m.lock for m in moves) if any(m.lock for m in moves) else ()),
            ],
        )
        self._tell(moves, done, trimmed)

    def _tell(self, moves: Sequence[Move], done: Sequence[int | bytes], trimmed: int) -> None:
        for move, outcome in zip(moves, done, strict=True):
            if isinstance(outcome, bytes):
                if move.duplicate is not None:
                    move.duplicate(outcome.decode(errors="replace"))
            elif outcome == 1 and move.tell is not None:
                move.tell()
            elif outcome < 0:
                self._events.queue_refused(move.queue or keys.DEAD)
        if trimmed:
            self._events.trimmed(trimmed)
