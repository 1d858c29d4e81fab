"""The fetcher: where the threads of the slots come for work, and where they leave what they have done.

It has no thread of its own. Who has nothing to run makes the round trip to Redis, or stands at the post, where arrivals are
waited for. There is one thread more than slots, so that the post is manned even when every slot runs a job: who leaves it
to run one calls up the next.
"""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

import redis
from redis.exceptions import RedisError

from framework.fetch.crew import Crew
from framework.fetch.custody import Custody
from framework.fetch.exchange import Exchange, FetchEvents, clock
from framework.fetch.local_limits import LocalLimits
from framework.fetch.parking import Parking
from framework.fetch.post import Post
from framework.fetch.queues import QueueOrder
from framework.fetch.reaper import Reconciler
from framework.fetch.unit_of_work import UnitOfWork
from framework.wire import keys

NO_LIMITS: Mapping[str, int] = MappingProxyType({})

STALE_S = 10.0
"""A job asked for this long ago is not started: we have slept (SIGSTOP, a suspended machine), and our lease of 15 s, renewed
when it was fetched, may have run out: it may be somebody else's."""


class Fetcher:
    """Gives units to the threads that call ``next``, of the queues in ``limits`` so many at a time. Safe from any thread."""

    def __init__(
        self,
        client: "redis.Redis",
        identity: str,
        order: QueueOrder,
        custody: Custody,
        events: FetchEvents,
        reconciler: Reconciler,
        limits: Mapping[str, int] = NO_LIMITS,
    ) -> None:
        self.custody = custody
        self._local = LocalLimits(limits, custody)
        self.crew = Crew(custody.slots + 1)
        parking = Parking(client, keys.working(identity))
        custody.replies.hurry = parking.wake
        self._exchange = Exchange(client, identity, order, custody, events, parking.wake, self._local)
        self._post = Post(client, identity, custody, self._exchange, parking, reconciler, self._local)
        self._stopped = False

    def start(self, hire: Callable[[], None]) -> None:
        """Begin: ``hire`` starts a thread that calls ``next``; the first one calls for more as they are needed."""
        self.crew.hire = hire
        if not self.crew.wake():
            raise RuntimeError("not one thread can be started; see the limits of this system on threads and memory")

    def next(self) -> UnitOfWork | None:
        """Return the next job to run, for the calling thread; ``None`` when the process stops. Blocks as long as it takes."""
        while not self._stopped:
            try:
                unit = self._look()
            except Exception as error:  # noqa: BLE001 - an error of our own: tried again, until it has come too often
                self._exchange.fail(error)
            else:
                if unit is not None:
                    return unit
        return None

    def relay(self) -> None:
        """The calling thread is about to run a job: see that the post is manned and that others take what is buffered."""
        if not self._post.manned.locked() or (self._post.ready and self._short_handed):
            self._call()
        elif self._post.drowsy and (self.custody.buffer or self._exchange.unfinished):
            self._post.wake()

    def finish(self, unit: UnitOfWork, *, settled: bool = False) -> None:
        """The unit's job has come to an end. ``settled``: it has left the working list already (retry, dead set)."""
        self.custody.end(unit, settled=settled)
        if (unit.holds is not None and unit.holds.slots) or self._local.limits(unit.queue):
            # There is room for another of its queue; its slot may have been handed over, to the head of a queue of ours.
            self._exchange.dry = False

    def attend_to(self) -> None:
        """Somebody who never calls ``next`` has finished units: let a thread acknowledge them."""
        if self._post.asleep:
            self._post.wake()
        elif not self._post.manned.locked():
            self._call()

    def acknowledge(self) -> None:
        """Wait until the acknowledgement of every finished unit has arrived. Raises redis errors."""
        self._exchange.flush()

    def quiet(self) -> None:
        """Take no more jobs, and go on acknowledging those in hand until ``stop``. May be called twice."""
        self._exchange.closed = True
        self._post.wake()

    def pause(self, queues: Collection[str]) -> None:
        """Skip these queues from now on, and no others."""
        if self._exchange.pause(queues):
            self._post.leave_queues()

    def stop(self) -> None:
        """Take no more jobs; every ``next`` returns ``None``. May be called twice."""
        self._exchange.closed = True
        self._stopped = True
        self._post.stop()
        self.crew.wake_all()

    def end_in_child(self) -> None:
        """This process is a child that a job has forked: every ``next`` returns ``None``; the connections are the parent's."""
        self._stopped = True

    def wind_down(self, timeout_s: float) -> None:
        """After ``stop``: end what is under way and give back what was not started. Raises redis errors."""
        if not self._post.manned.acquire(timeout=timeout_s):
            return  # who stands there hangs in a call to Redis: what is in hand is given back by the launcher
        try:
            self._exchange.flush()
            self._post.clear()
        except (RedisError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - an error of our own: the launcher gives back what is in hand
            self._exchange.fail(error)
        finally:
            self._post.manned.release()

    @property
    def active_at(self) -> float:
        """When somebody last looked after the queues, told Redis of an end or started a job: a watchdog's business."""
        return max(self._post.looked_at, self.custody.last_start, self._exchange.told_at)

    @property
    def fetching(self) -> bool:
        """Whether jobs are taken: wanted, answered by Redis at least once and at the last call, and our lease held."""
        exchange = self._exchange
        answered = self.custody.replies.answered > 0 and not exchange.failures
        return answered and not exchange.suspended and not exchange.closed

    @property
    def parked_lost_at(self) -> float | None:
        """When a parked call was last given up unanswered (monotonic seconds); ``None``: never."""
        return self._post.lost_at

    def _look(self) -> UnitOfWork | None:
        """Take a step towards the next job; return it when there is one to run."""
        now = clock()
        self._exchange.settle_up(now)
        unit = self._start(now)
        if unit is not None or self._exchange.replenish():
            return unit
        if self._post.manned.acquire(blocking=False):
            try:
                self._post.attend()
            finally:
                self._post.manned.release()
        else:
            if self._post.drowsy and self._post.uncovered:
                self._post.wake()  # it slept while no slot was free
            self.crew.rest(self._needed)
        return None

    def _start(self, now: float) -> UnitOfWork | None:
        if self._exchange.suspended:
            return None
        unit = self.custody.start(now)
        # Asked anew, and last of all: since ``now`` a reply may have been waited for, or we may have been stopped.
        if unit is None or clock() - unit.fetched_at < STALE_S:
            return unit
        self.custody.unstart(unit)
        self._exchange.suspend()
        return None

    @property
    def _short_handed(self) -> bool:
        """Whether fewer threads than slots run jobs or are about to (one more is at the post), and another would help.

        While jobs are quick it would not; should a slow one come, the post sees what waits behind it within milliseconds.
        """
        return self.crew.up <= self.custody.slots and not self._exchange.quick

    def _call(self) -> None:
        """Call somebody up: one that rests, a new one, or who stands at the post."""
        if not self.crew.waking and not self.crew.wake():
            self._post.wake()

    def _needed(self) -> bool:
        return self._stopped or not self._post.manned.locked() or self._post.ready
