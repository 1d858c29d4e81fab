"""Wait for new jobs in one thread, the leader (leader-follower pattern); the other threads run jobs or wait.

The leader arms one blocking call per queue, so that waiting costs Redis nothing. It also returns buffered jobs for which no
capacity became free, sends acknowledgements that no other thread sends, and reconnects after a failure.
"""

import threading
from collections.abc import Set as AbstractSet

import redis
from redis.exceptions import NoPermissionError, OutOfMemoryError, RedisError, ResponseError

from framework.fetch.blocking import MAX_BLOCKED_QUEUES, BlockingMoves
from framework.fetch.pipeline import FetchPipeline, clock
from framework.fetch.queues import ProcessLimits
from framework.fetch.requeue import Reconciler, requeue_unstarted
from framework.fetch.state import FetchState
from framework.fetch.unit_of_work import UnitOfWork
from framework.store.script import RING
from framework.timings import Timings, backoff_s
from framework.wire.blocks import is_block

STALLED_S = 0.010
"""A buffered job returns to its queue if no job has started for this time. No acknowledgement waits longer."""

BURST_S = 0.001
"""If a blocking call returns a job sooner than this, more jobs wait: the next fetch is in bulk."""

QUIET_S = 0.002
"""A thread that runs quick jobs has started one within this time, or runs a slow one now."""

# A wait that exceeds its timeout by more than this shows that the process was stopped or the machine suspended.
_SUSPENDED_S = 1.0
# Seconds between two checks whether the lease is held again.
_LEASE_RETRY_S = 0.5
# Seconds between two tries to reach Redis.
_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 0.1, 2.0
# Short, so that a lasting error of the framework exceeds the error rate that ends the process.
_MAX_BACKOFF_AFTER_ERROR_S = 0.5


# Decision 38: the leader-follower pattern, without a fetcher thread.
class Leader:
    """Wait for jobs on behalf of all threads. Only the holder of ``lock`` calls ``run`` and ``shutdown``.

    Every other method is safe from any thread.
    """

    def __init__(
        self,
        client: "redis.Redis",
        identity: str,
        state: FetchState,
        pipeline: FetchPipeline,
        blocking: BlockingMoves,
        reconciler: Reconciler,
        process_limits: ProcessLimits,
        timings: Timings,
        fair_queues: AbstractSet[str] = frozenset(),
    ) -> None:
        self._fair_queues = fair_queues
        self.lock = threading.Lock()
        self.sleeping = False
        """Whether the leader sleeps."""
        self.sleeping_long = False
        """Whether the leader sleeps and will not take a step by itself for seconds."""
        self.stepped_at = clock()
        """When the leader last took a step, for a watchdog."""
        self._client = client
        self._identity = identity
        self._state = state
        self._in_flight = state.in_flight
        self._pipeline = pipeline
        self._blocking = blocking
        self._reconciler = reconciler
        self._process_limits = process_limits
        self._timings = timings
        self._stopping = threading.Event()
        self._rearm_requested = False
        self._blocking_allowed_at = 0.0
        self._swept_at = 0.0
        self._rung_at = clock()

    def wake(self) -> None:
        self._state.wake_up.wake()

    def rearm(self) -> None:
        """Cancel every blocking call and arm new ones, since the served queues have changed."""
        self._rearm_requested = True
        self.wake()

    def stop(self) -> None:
        self._stopping.set()
        self.wake()

    @property
    def queue_unwatched(self) -> bool:
        """Whether a served queue has no blocking call although there is capacity for its next job."""
        if (
            not self._in_flight.free_capacity
            or not self._state.queues_empty
            or self._state.closed
            or clock() < self._blocking_allowed_at
        ):
            return False
        return len(self._blocking.queues) < min(MAX_BLOCKED_QUEUES, len(self._pipeline.queues)) - len(
            self._state.unready_queues
        )

    @property
    def _must_start(self) -> bool:
        """Whether the leading thread starts a job: one may start, and no other thread runs quick jobs one after the other."""
        state = self._state
        if not state.ready:
            return False
        # The buffered jobs get the chance to start before a step that returns them to their queues.
        if not self._pipeline.prefetch.quick or state.failures or state.closed or self._rearm_requested:
            return True
        return clock() - self._in_flight.last_started_at > QUIET_S

    def run(self) -> None:
        """Lead until a job may start or the process stops."""
        while not self._stopping.is_set() and not self._must_start:
            self.stepped_at = clock()
            try:
                self._step()
            except (RedisError, OSError) as error:
                self._pipeline.fail(error)
                self._back_off(_MAX_BACKOFF_S)
            except Exception as error:  # noqa: BLE001 - a framework error: tried again until its rate is too high
                self._pipeline.fail(error)
                self._back_off(_MAX_BACKOFF_AFTER_ERROR_S)

    def shutdown(self) -> None:
        """Cancel every blocking call and return the buffered jobs. Raises redis errors."""
        try:
            self._cancel_and_return_jobs()
        finally:
            self._blocking.drop_connections()

    def close(self) -> None:
        """Close the connections of the blocking calls, after ``shutdown``."""
        self._blocking.close()

    @property
    def connection_lost_at(self) -> float | None:
        """When a blocking call was last closed without an answer (monotonic seconds); ``None``: never."""
        return self._blocking.connection_lost_at

    def _step(self) -> None:
        pipeline, state = self._pipeline, self._state
        if state.failures or state.suspended:
            self._recover()
            return
        if self._rearm_requested or state.closed:
            # Cleared before the work: a request that arrives meanwhile causes another step.
            self._rearm_requested = False
            pipeline.drain_reply()
            self._cancel_and_return_jobs()
        if self._needs_sweep and self.stepped_at - self._swept_at >= self._timings.queue_sweep_period_s:
            # The next fetch also reads the queues without a blocking call.
            self._swept_at = self.stepped_at
            state.expect_jobs()
        if self._stalled():
            # The jobs of the reply are younger than the buffered ones. Returned later, they would run before them.
            pipeline.drain_reply()
            self._return_buffer()
        # While jobs are buffered, the threads that run jobs make the next round trip, unless no job may start before it.
        if pipeline.fetch_and_wait() and (self._in_flight.acknowledgements_full or not self._in_flight.buffer):
            return
        self._arm_queues()
        self._wait_for_jobs()

    def _recover(self) -> None:
        """Return buffered jobs while this process owns them; then probe until Redis answers and the lease is held."""
        if self._state.failures:
            self._drop_idle_connections()
        if self._state.suspended:
            self._cancel_and_return_jobs()
        self._pipeline.probe(self._on_redis_recovered)
        if self._state.suspended:
            self._stopping.wait(_LEASE_RETRY_S)

    def _on_redis_recovered(self) -> None:
        """Cancel the blocking calls from before the failure, and return the jobs of lost replies.

        A network that drops packets closes no connection. So Redis may still hold a blocking call of a dead connection, for up to
        ``Timings.block_timeout_s``. It would give the next job to this call first, and the process would not receive it.
        """
        self._cancel_and_return_jobs(no_wait=True)
        self._reconciler.reconcile_idle()

    def _drop_idle_connections(self) -> None:
        """Close the idle connections of this client: after a failover its address may lead to another server."""
        self._client.connection_pool.disconnect(inuse_connections=False)

    def _back_off(self, max_s: float) -> None:
        """Close every connection, since the address may lead to another server, and wait: 50 ms at first, at most ``max_s``."""
        self._blocking.drop_connections()
        self._drop_idle_connections()
        self._stopping.wait(backoff_s(self._state.failures, _FIRST_BACKOFF_S, max_s, jitter=0.5))

    def _cancel_and_return_jobs(self, *, no_wait: bool = False) -> None:
        # In flight first: if the return to the queues fails, the process still knows the jobs.
        self._in_flight.add(self._blocking.cancel_all(no_wait=no_wait))
        self._return_buffer()

    def _arm_queues(self) -> None:
        """Arm a blocking call at every queue that has none, while there is capacity for its job."""
        blocking, unready = self._blocking, self._state.unready_queues
        # A failure may have ended calls: their reservations end too.
        self._process_limits.keep_blocking_only(blocking.queues)
        if not self.queue_unwatched:
            return
        for name in self._pipeline.queues[:MAX_BLOCKED_QUEUES]:
            if name not in blocking.queues and name not in unready and self._process_limits.reserve_for_blocking(name):
                blocking.arm(name)

    def _wait_for_jobs(self) -> None:
        timeout_s = self._wait_timeout_s()
        self.sleeping, self.sleeping_long = True, timeout_s > STALLED_S
        try:
            # Checked again after `sleeping_long` is visible: a thread that acts later than this wakes the leader.
            if (
                self._must_start
                or self.queue_unwatched
                or (self._pipeline.round_trip_unclaimed and not self._in_flight.buffer)
                or (self.sleeping_long and self._in_flight.shows)
            ):
                return
            began = clock()
            self._state.poll_begins()
            arrived = self._blocking.wait(timeout_s)
        except ResponseError as error:
            self._fall_back_to_sweeps(error)
            return
        finally:
            self.sleeping = self.sleeping_long = False
        if clock() - began > timeout_s + _SUSPENDED_S:
            # The process was stopped meanwhile, and its lease may have expired: jobs wait until `probe` finds the lease held.
            self._pipeline.suspend()
        self._receive(arrived)
        # Last: the reconciler relies on the jobs of an ended poll being in flight.
        self._state.poll_ended()

    def _wait_timeout_s(self) -> float:
        if self._state.poll_requested:
            return 0.0
        # With ready jobs, another thread runs quick jobs one after the other, and the next one may be slow.
        returnable = self._in_flight.buffer and self._in_flight.oldest_returnable is not None
        if self._pipeline.unfinished or returnable or self._state.ready or self._in_flight.shows:
            return STALLED_S
        if self._state.closed or not self._in_flight.free_capacity:
            return self._timings.block_timeout_s
        return self._timings.queue_sweep_period_s if self._needs_sweep else self._timings.block_timeout_s

    @property
    def _needs_sweep(self) -> bool:
        return (
            len(self._pipeline.queues) > MAX_BLOCKED_QUEUES
            or bool(self._state.unready_queues)
            or self.stepped_at < self._blocking_allowed_at
        )

    def _receive(self, arrived: list[tuple[str, bytes, float]]) -> None:
        """Buffer the jobs of blocking calls. Without capacity, or after the last fetch, return them to their queues at once."""
        now = clock()
        units = [UnitOfWork(queue, data, now) for queue, data, _ in arrived]
        blocks = [unit for unit in units if is_block(unit.data)]
        if blocks:
            # A fetch unpacks them. If this fails, the reconciler finds them in the working list.
            requeue_unstarted(self._client, self._identity, blocks, keep_locks=False)
            units = [unit for unit in units if unit not in blocks]
            self._state.expect_jobs()
        self._in_flight.add(units)
        self._process_limits.keep_blocking_only(self._blocking.queues)
        if self._fair_queues:
            self._ring({queue for queue, _, _ in arrived})
        if arrived and (self._state.closed or not self._in_flight.free_capacity or self._stopping.is_set()):
            self._return_buffer()
        elif any(waited_s < BURST_S for _, _, waited_s in arrived):
            self._state.expect_jobs()

    def _ring(self, arrived: AbstractSet[str]) -> None:
        """Run ``ring.lua``, which moves the next job of the sub-queues to ``queue:NAME`` if a blocking move has emptied that list.

        Run it for every queue from time to time: another program may have deleted the job in the list, or a process may have died
        between its blocking move and ``ring.lua``.
        """
        now = clock()
        if overdue := now - self._rung_at >= self._timings.block_timeout_s:
            self._rung_at = now
        if rung := self._fair_queues if overdue else self._fair_queues & arrived:
            RING(self._client, [], sorted(rung))

    def _fall_back_to_sweeps(self, error: ResponseError) -> None:
        """Fetch periodically instead of blocking: Redis refuses BLMOVE at maxmemory or by ACL, but not the fetch script."""
        if not isinstance(error, OutOfMemoryError | NoPermissionError):
            raise error
        self._blocking_allowed_at = self.stepped_at + self._timings.queue_sweep_period_s
        self._state.expect_jobs()

    def _stalled(self) -> bool:
        in_flight = self._in_flight
        if not in_flight.buffer or in_flight.free_capacity or (oldest := in_flight.oldest_returnable) is None:
            return False
        return self.stepped_at - max(in_flight.last_started_at, oldest.fetched_at) >= STALLED_S

    def _return_buffer(self) -> None:
        """Return the buffered jobs to the head of their queues.

        Two kinds of jobs stay in the buffer and wait for a thread: those that have left the working list, and those whose lock a
        duplicate has taken meanwhile.
        """
        taken = self._in_flight.take_buffer()
        units = [unit for unit in taken if not unit.has_moved]
        self._in_flight.put_back_next([unit for unit in taken if unit.has_moved])
        try:
            staying = requeue_unstarted(self._client, self._identity, units, keep_locks=not self._state.suspended)
        except BaseException:
            for unit in units:
                # The job may be in its queue again. At this age it cannot start before `probe` has decided.
                unit.mark_stale()
            self._in_flight.put_back_next(units)
            raise
        self._in_flight.put_back_next(staying)
        self._in_flight.remove([unit for unit in units if unit not in staying])
