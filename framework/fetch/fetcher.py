"""The fetcher: where the threads of the slots come for work, and where they leave what they have done.

It has no thread of its own. Who has nothing to run makes the round trip to Redis, or stands at the post, where arrivals are
waited for. There is one thread more than slots, so that the post is manned even when every slot runs a job: who leaves it
to run one calls up the next.
"""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

import redis
from redis.exceptions import RedisError

from framework.fetch.blocking import BlockingMoves
from framework.fetch.in_flight import InFlight
from framework.fetch.leader import Leader
from framework.fetch.pipeline import FetchEvents, FetchPipeline, clock
from framework.fetch.process_limits import ProcessLimits
from framework.fetch.queues import QueueOrder
from framework.fetch.reaper import Reconciler
from framework.fetch.threads import WorkerThreads
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
        in_flight: InFlight,
        events: FetchEvents,
        reconciler: Reconciler,
        process_limits: Mapping[str, int] = NO_LIMITS,
    ) -> None:
        self.in_flight = in_flight
        self._process_limits = ProcessLimits(process_limits, in_flight)
        self.threads = WorkerThreads(in_flight.concurrency + 1)
        parking = BlockingMoves(client, keys.working(identity))
        in_flight.replies.wake_leader = parking.wake
        self._pipeline = FetchPipeline(client, identity, order, in_flight, events, parking.wake, self._process_limits)
        self._leader = Leader(client, identity, in_flight, self._pipeline, parking, reconciler, self._process_limits)
        self._stopped = False

    def start(self, spawn: Callable[[], None]) -> None:
        """Begin: ``spawn`` starts a thread that calls ``next``; the first one calls for more as they are needed."""
        self.threads.spawn = spawn
        if not self.threads.notify_one():
            raise RuntimeError("not one thread can be started; see the limits of this system on threads and memory")

    def next(self) -> UnitOfWork | None:
        """Return the next job to run, for the calling thread; ``None`` when the process stops. Blocks as long as it takes."""
        while not self._stopped:
            try:
                unit = self._step()
            except Exception as error:  # noqa: BLE001 - an error of our own: tried again, until it has come too often
                self._pipeline.fail(error)
            else:
                if unit is not None:
                    return unit
        return None

    def ensure_fetching(self) -> None:
        """The calling thread is about to run a job: see that the post is manned and that others take what is buffered."""
        if not self._leader.lock.locked() or (self._leader.ready and self._needs_thread):
            self._wake_one()
        elif self._leader.sleeping_long and (self.in_flight.buffer or self._pipeline.unfinished):
            self._leader.wake()

    def finish(self, unit: UnitOfWork, *, settled: bool = False) -> None:
        """The unit's job has come to an end. ``settled``: it has left the working list already (retry, dead set)."""
        self.in_flight.end(unit, settled=settled)
        if (unit.resources is not None and unit.resources.slots) or self._process_limits.applies_to(unit.queue):
            # There is room for another of its queue; its slot may have been handed over, to the head of a queue of ours.
            self._pipeline.queues_empty = False

    def request_acknowledgement(self) -> None:
        """Somebody who never calls ``next`` has finished units: let a thread acknowledge them."""
        if self._leader.sleeping:
            self._leader.wake()
        elif not self._leader.lock.locked():
            self._wake_one()

    def acknowledge_all(self) -> None:
        """Wait until the acknowledgement of every finished unit has arrived. Raises redis errors."""
        self._pipeline.flush()

    def quiet(self) -> None:
        """Take no more jobs, and go on acknowledging those in flight until ``stop``. May be called twice."""
        self._pipeline.closed = True
        self._leader.wake()

    def pause(self, queues: Collection[str]) -> None:
        """Skip these queues from now on, and no others."""
        if self._pipeline.pause(queues):
            self._leader.rearm()

    def stop(self) -> None:
        """Take no more jobs; every ``next`` returns ``None``. May be called twice."""
        self._pipeline.closed = True
        self._stopped = True
        self._leader.stop()
        self.threads.notify_all()

    def after_fork_in_child(self) -> None:
        """This process is a child that a job has forked: every ``next`` returns ``None``; the connections are the parent's."""
        self._stopped = True

    def shutdown(self, timeout_s: float) -> None:
        """After ``stop``: end what is under way and give back what was not started. Raises redis errors."""
        if not self._leader.lock.acquire(timeout=timeout_s):
            return  # who stands there hangs in a call to Redis: what is in flight is given back by the launcher
        try:
            self._pipeline.flush()
            self._leader.shutdown()
        except (RedisError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - an error of our own: the launcher gives back what is in flight
            self._pipeline.fail(error)
        finally:
            self._leader.lock.release()

    @property
    def active_at(self) -> float:
        """When somebody last looked after the queues, told Redis of an end or started a job: a watchdog's business."""
        return max(self._leader.stepped_at, self.in_flight.last_started_at, self._pipeline.acknowledging_since)

    @property
    def fetching(self) -> bool:
        """Whether jobs are taken: wanted, answered by Redis at least once and at the last call, and our lease held."""
        exchange = self._pipeline
        answered = self.in_flight.replies.fetches_read > 0 and not exchange.failures
        return answered and not exchange.suspended and not exchange.closed

    @property
    def connection_lost_at(self) -> float | None:
        """When a parked call was last given up unanswered (monotonic seconds); ``None``: never."""
        return self._leader.connection_lost_at

    def _step(self) -> UnitOfWork | None:
        """Take a step towards the next job; return it when there is one to run."""
        now = clock()
        self._pipeline.flush_if_due(now)
        unit = self._start_buffered(now)
        if unit is not None or self._pipeline.fetch_and_wait():
            return unit
        if self._leader.lock.acquire(blocking=False):
            try:
                self._leader.run()
            finally:
                self._leader.lock.release()
        else:
            if self._leader.sleeping_long and self._leader.queue_unwatched:
                self._leader.wake()  # it slept while no slot was free
            self.threads.wait(self._work_available)
        return None

    def _start_buffered(self, now: float) -> UnitOfWork | None:
        if self._pipeline.suspended:
            return None
        unit = self.in_flight.start(now)
        # Asked anew, and last of all: since ``now`` a reply may have been waited for, or we may have been stopped.
        if unit is None or clock() - unit.fetched_at < STALE_S:
            return unit
        self.in_flight.put_back(unit)
        self._pipeline.suspend()
        return None

    @property
    def _needs_thread(self) -> bool:
        """Whether fewer threads than slots run jobs or are about to (one more is at the post), and another would help.

        While jobs are quick it would not; should a slow one come, the post sees what waits behind it within milliseconds.
        """
        return self.threads.active <= self.in_flight.concurrency and not self._pipeline.quick

    def _wake_one(self) -> None:
        """Call somebody up: one that rests, a new one, or who stands at the post."""
        if not self.threads.wake_pending and not self.threads.notify_one():
            self._leader.wake()

    def _work_available(self) -> bool:
        return self._stopped or not self._leader.lock.locked() or self._leader.ready
