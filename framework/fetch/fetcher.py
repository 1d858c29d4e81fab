"""Give jobs to the threads that run them, and take the ends of the jobs: the fetcher.

The fetcher has no thread of its own. A thread without a job makes the round trip to Redis, or becomes the leader, which waits
for new jobs. When the leader starts a job, another thread has to lead: ``execute/threads.py`` asks for that before each job.
"""

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType

import redis
from redis.exceptions import RedisError

from framework.fetch.blocking import BlockingMoves
from framework.fetch.leader import Leader
from framework.fetch.pipeline import FetchEvents, FetchPipeline, clock
from framework.fetch.queues import ProcessLimits, QueueOrder
from framework.fetch.requeue import Reconciler
from framework.fetch.state import FetchState
from framework.fetch.unit_of_work import UnitOfWork
from framework.store.absent_keys import AbsentKeys
from framework.timings import STANDARD, Timings
from framework.wire import keys
from framework.wire.footprint import DECODED_LIMIT
from framework.wire.keys import SetLimits
from framework.wire.status_key import TrackedJob

NO_LIMITS: Mapping[str, int] = MappingProxyType({})


class Fetcher:
    """Give units to the threads that call ``next``, and own the state of fetching. Safe from any thread.

    ``owner`` names the working list. ``concurrency`` bounds the jobs that run at a time, ``process_limits`` the jobs per queue. A
    job of a lost reply that cannot be read moves to the dead set, within ``dead_set_limits``.
    """

    def __init__(
        self,
        client: "redis.Redis",
        owner: str,
        order: QueueOrder,
        concurrency: int,
        events: FetchEvents,
        dead_set_limits: SetLimits,
        decoded_limit: int = DECODED_LIMIT,
        absent: AbsentKeys | None = None,
        process_limits: Mapping[str, int] = NO_LIMITS,
        timings: Timings = STANDARD,
        first_index: int = 0,
        fair_queues: AbstractSet[str] = frozenset(),
    ) -> None:
        self._state = state = FetchState(concurrency, first_index)
        self.in_flight = state.in_flight
        self._stale_after_s = timings.stale_after_s
        limits = ProcessLimits(process_limits, state.in_flight)
        self._limited_queues = limits.queues
        blocking = BlockingMoves(client, keys.working(owner), state.wake_up, timings)
        self._pipeline = FetchPipeline(client, owner, order, state, events, limits, timings, fair_queues)
        self._reconciler = reconciler = Reconciler(
            client, owner, state, events.recovered, dead_set_limits, decoded_limit, absent
        )
        self._leader = Leader(client, owner, state, self._pipeline, blocking, reconciler, limits, timings, fair_queues)

    def next(self) -> UnitOfWork | None:
        """Return the next job to run in the calling thread, after the round trips that it takes.

        ``None``: the process stops, or another thread leads, so the calling thread waits until ``work_available``. Jobs that have
        given up their locks start also while the process stops.
        """
        state, pipeline = self._state, self._pipeline
        while not state.stopped:
            try:
                now = clock()
                pipeline.flush_if_due(now)
                unit = self._start_buffered(now)
                if unit is not None:
                    return unit
                if not pipeline.fetch_and_wait() and not self._lead():
                    return None
            except Exception as error:  # noqa: BLE001 - a framework error: tried again until its rate is too high
                pipeline.fail(error)
        return self._start_buffered(clock()) if self.in_flight.has_released_lock else None

    @property
    def stopped(self) -> bool:
        """Whether no thread gets another job."""
        return self._state.stopped

    def work_available(self) -> bool:
        """Return whether a thread need not wait: a job may start, no thread leads, or the process stops."""
        return self._state.stopped or not self._leader.lock.locked() or self._state.ready

    def lacks_thread(self, active: int) -> bool:
        """Return whether another thread must come before the calling thread runs a job; ``active`` threads do not wait.

        Otherwise the leader is woken if it sleeps for long and there is something to do.
        """
        leader, state = self._leader, self._state
        # Read without a lock: a thread that stops leading just now calls this method before its job, or leads again.
        if not leader.lock.locked():
            return True
        # Quick jobs need no second thread. If a slow job comes, the leader sees within milliseconds what waits behind it.
        if active <= self.in_flight.concurrency and not self._pipeline.prefetch.quick and state.ready:
            return True
        if leader.sleeping_long and (self.in_flight.buffer or self._pipeline.unfinished or self.in_flight.shows):
            leader.wake()
        return False

    def wake_sleeping_leader(self) -> bool:
        """Wake the leader if it sleeps; return whether a thread leads.

        A leader that is awake looks for work again before it sleeps, so it finds the work that this thread has added.
        """
        if self._leader.sleeping:
            self._leader.wake()
            return True
        return self._leader.lock.locked()

    def show_running(self, unit: UnitOfWork, tracked: TrackedJob) -> None:
        """Let the state of a tracked job become ``running`` soon, unless it ends before; a thread that fetches is needed for that."""
        self.in_flight.show(unit, (keys.status(tracked.jid), str(tracked.lifetime_s(0))))

    def take_next(self) -> list[UnitOfWork]:
        """Take the buffered units that start next, so that one call admits them; ``put_back`` must follow.

        Their number is the free capacity, or the number of jobs that start soon at the rate of the last jobs. A unit that then waits
        longer than ``STALLED_S`` returns to its queue, and its slots are released.
        """
        # Fewer unconfirmed ends leave room for more units.
        self._pipeline.flush_before_wait()
        return self.in_flight.take_next(self._pipeline.ahead)

    def put_back(self, units: list[UnitOfWork], waited_s: float) -> None:
        """Make the units the oldest in the buffer again. The answer of Redis took ``waited_s``."""
        if units:
            self._pipeline.waited(waited_s)
            self.in_flight.put_back_taken(units)

    def finish(self, unit: UnitOfWork, *, settled: bool = False) -> None:
        """End the unit's job. ``settled``: the job has left the working list already (retry, dead set)."""
        self.in_flight.end(unit, settled=settled)
        # Almost no job has either: the check is cheaper than the call.
        if unit.resources is not None or self._limited_queues:
            self._note_room(unit)

    def finish_unmoved(self, unit: UnitOfWork) -> None:
        """End a job that Redis has refused to move with others (``Move.refused``), and that has left the working list since."""
        self.in_flight.end_unmoved(unit)

    def leave(self, unit: UnitOfWork) -> bool:
        """Free the place of an ended job that is not to be acknowledged yet; ``finish_left`` must follow.

        Return whether no job may start before that, or before many others are acknowledged.
        """
        return self.in_flight.leave(unit)

    def waited(self, seconds: float) -> None:
        """Leave out this time from the rate at which jobs end: no job could start."""
        self._pipeline.waited(seconds)

    def finish_left(self, unit: UnitOfWork) -> None:
        """End the job of a unit that has left its place: it is acknowledged with the next call."""
        self.in_flight.end_left(unit)
        self._note_room(unit)

    def _note_room(self, unit: UnitOfWork) -> None:
        if unit.resources is not None and unit.resources.slots:
            # The acknowledgement hands its slot to a waiting job, which is then at the head of a queue.
            self._state.note_slot_freed()
        elif unit.queue in self._limited_queues:
            # There is room for another job of its queue.
            self._state.expect_jobs()

    def reconcile(self) -> None:
        """Return the jobs of lost replies to their queues: those that two calls have found. Raises redis errors."""
        self._reconciler.reconcile()

    def acknowledge_all(self) -> None:
        """Wait until every ended unit is acknowledged and confirmed. Raises redis errors."""
        self._pipeline.flush()

    def quiet(self) -> None:
        """Fetch no more jobs, and continue to acknowledge those in flight until ``stop``. May be called twice."""
        self._state.close()

    def pause(self, queues: Collection[str]) -> None:
        """Skip exactly these queues from now on."""
        if self._pipeline.pause(queues):
            self._leader.rearm()

    def stop(self) -> None:
        """Fetch no more jobs; every ``next`` returns ``None``. May be called twice."""
        self._state.stop()
        self._leader.stop()

    def after_fork_in_child(self) -> None:
        """Stop in a child process that a job has forked: the connections belong to the parent."""
        self._state.stop_in_forked_child()

    def shutdown(self, timeout_s: float) -> None:
        """After ``stop``: end the calls under way and return the buffered jobs. Raises redis errors."""
        if not self._leader.lock.acquire(timeout=timeout_s):
            # The leader hangs in a call to Redis: the launcher returns the jobs in flight.
            return
        try:
            self._pipeline.flush()
            self._leader.shutdown()
        except (RedisError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - a framework error: the launcher returns the jobs in flight
            self._pipeline.fail(error)
        finally:
            self._leader.lock.release()

    def close(self) -> None:
        """Close every connection, after ``shutdown``."""
        self._pipeline.close()
        self._leader.close()
        self._state.wake_up.close()

    @property
    def active_at(self) -> float:
        """When a thread last led, acknowledged or started a job, for a watchdog."""
        return max(self._leader.stepped_at, self.in_flight.last_started_at, self._pipeline.acknowledging_since)

    @property
    def fetching(self) -> bool:
        """Whether jobs are fetched: not closed, the last call answered, and the lease held."""
        state = self._state
        answered = state.fetches_read > 0 and not state.failures
        return answered and not state.suspended and not state.closed

    @property
    def connection_lost_at(self) -> float | None:
        """When a blocking call was last closed without an answer (monotonic seconds); ``None``: never."""
        return self._leader.connection_lost_at

    def _lead(self) -> bool:
        """Lead until a job may start, unless another thread leads; return whether the calling thread has led."""
        leader = self._leader
        if not leader.lock.acquire(blocking=False):
            if leader.sleeping and leader.queue_unwatched:
                # The leader fell asleep when there was no capacity or a queue might have jobs, and armed no blocking call. Even
                # its shortest sleep is long for a job that is pushed meanwhile.
                leader.wake()
            return False
        try:
            leader.run()
        finally:
            leader.lock.release()
        return True

    def _start_buffered(self, now: float) -> UnitOfWork | None:
        if self._state.suspended:
            return None
        unit = self.in_flight.start(now)
        # The clock is read again, after everything else: since `now` the process may have been stopped.
        if unit is None or clock() - unit.fetched_at < self._stale_after_s:
            return unit
        self.in_flight.put_back(unit)
        self._pipeline.suspend()
        return None
