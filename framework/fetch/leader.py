"""The post: where one thread waits for arrivals, and looks after what nobody else is free to look after.

Each queue has a call parked on the server, so that waiting costs nothing. Whoever stands here also gives back jobs that no
slot came free for, sends acknowledgements that were left behind, and finds the way back to Redis after trouble.
"""

import random
import threading

import redis
from redis.exceptions import NoPermissionError, OutOfMemoryError, RedisError, ResponseError

from framework.fetch.blocking import BLOCK_TIMEOUT_S, MAX_BLOCKED_QUEUES, BlockingMoves
from framework.fetch.in_flight import InFlight
from framework.fetch.pipeline import FetchPipeline, clock
from framework.fetch.process_limits import ProcessLimits
from framework.fetch.reaper import Reconciler
from framework.fetch.requeue import requeue
from framework.fetch.unit_of_work import UnitOfWork

STALLED_S = 0.010
"""A buffered job goes back when no job has started for so long; an acknowledgement is not left behind longer."""

SWEEP_S = 1.0
"""How often queues are looked at that have no parked call: those beyond the first 16, or all where parking is refused."""

BURST_S = 0.001
"""A parked call that brings a job sooner than this tells that more are waiting: the next look takes many."""

_SUSPENDED_S = 1.0  # a wait that took this much longer was no wait
_LEASE_RETRY_S = 0.5  # between two questions whether our lease is back
_MAX_BACKOFF_S = 2.0  # between two tries to reach Redis
_MAX_BACKOFF_AFTER_ERROR_S = 0.5  # so that one that is for good comes often enough to end the process


# Decision 38: the leader-follower pattern, without a fetcher thread.
class Leader:
    """``run`` is for one thread at a time, the holder of ``lock``; everything else is safe from any."""

    def __init__(
        self,
        client: "redis.Redis",
        identity: str,
        in_flight: InFlight,
        pipeline: FetchPipeline,
        blocking: BlockingMoves,
        reconciler: Reconciler,
        process_limits: ProcessLimits,
    ) -> None:
        self.lock = threading.Lock()
        self.sleeping = False
        """Whether the thread here sleeps."""
        self.sleeping_long = False
        """Whether it sleeps and will not look around by itself for seconds."""
        self.stepped_at = clock()
        """When the thread here last looked around, for a watchdog."""
        self._client = client
        self._identity = identity
        self._in_flight = in_flight
        self._pipeline = pipeline
        self._blocking = blocking
        self._reconciler = reconciler
        self._process_limits = process_limits
        self._stopping = threading.Event()
        self._rearm_requested = False
        self._blocking_allowed_at = 0.0
        self._swept_at = 0.0

    def wake(self) -> None:
        """Let the thread here look around now."""
        self._blocking.wake()

    def rearm(self) -> None:
        """End every parked call: other queues are served than before."""
        self._rearm_requested = True
        self.wake()

    def stop(self) -> None:
        """Let the thread here leave."""
        self._stopping.set()
        self.wake()

    @property
    def ready(self) -> bool:
        """Whether a job could start now."""
        return self._in_flight.startable and not self._pipeline.suspended

    @property
    def queue_unwatched(self) -> bool:
        """Whether a queue could bring a job that a slot is free for, and nobody waits at it."""
        if (
            not self._in_flight.free_capacity
            or not self._pipeline.queues_empty
            or self._pipeline.closed
            or clock() < self._blocking_allowed_at
        ):
            return False
        return len(self._blocking.queues) < min(MAX_BLOCKED_QUEUES, len(self._pipeline.queues)) - len(
            self._pipeline.wrong_type_queues
        )

    def run(self) -> None:
        """Stand here until a job can start or the process stops."""
        while not self._stopping.is_set() and not self.ready:
            self.stepped_at = clock()
            try:
                self._step()
            except (RedisError, OSError) as error:
                self._pipeline.fail(error)
                self._back_off(_MAX_BACKOFF_S)
            except Exception as error:  # noqa: BLE001 - an error of our own: tried again, until it has come too often
                self._pipeline.fail(error)
                self._back_off(_MAX_BACKOFF_AFTER_ERROR_S)

    def shutdown(self) -> None:
        """End every parked call and give back what has not been started; for the holder of ``lock``. Raises redis errors."""
        try:
            self._cancel_and_return_jobs()
        finally:
            self._blocking.drop_connections()

    @property
    def connection_lost_at(self) -> float | None:
        """When a parked call was last given up unanswered (monotonic seconds); ``None``: never."""
        return self._blocking.connection_lost_at

    def _step(self) -> None:
        exchange = self._pipeline
        if exchange.failures or exchange.suspended:
            self._recover()
            return
        if self._rearm_requested or exchange.closed:
            self._rearm_requested = False
            exchange.drain_reply()
            self._cancel_and_return_jobs()
        if self._needs_sweep and self.stepped_at - self._swept_at >= SWEEP_S:
            self._swept_at, exchange.queues_empty = (
                self.stepped_at,
                False,
            )  # time to look at the queues without a parked call
        if self._stalled():
            exchange.drain_reply()  # given back later, it would stand before what is older
            self._return_buffer()
        # With something buffered those who run jobs make the next round trip, unless none may start before it.
        if exchange.fetch_and_wait() and (self._in_flight.acknowledgements_full or not self._in_flight.buffer):
            return
        self._arm_queues()
        self._wait_for_jobs()

    def _recover(self) -> None:
        """Trouble: what is not started goes back while it is ours; then ask until Redis answers and our lease is held."""
        if self._pipeline.failures:
            self._drop_idle_connections()
        if self._pipeline.suspended:
            self._cancel_and_return_jobs()
        self._pipeline.probe(self._on_redis_back)
        if self._pipeline.suspended:
            self._stopping.wait(_LEASE_RETRY_S)

    def _on_redis_back(self) -> None:
        """Redis answers after trouble and nothing is under way: see that no call parked before it keeps a job from us.

        A connection may be dead without a sign (a network that swallowed its packets). The server would serve the call parked
        there before any other, for up to ``BLOCK_TIMEOUT_S``, and nobody would hear of the job.
        """
        self._cancel_and_return_jobs(no_wait=True)
        self._reconciler.reconcile_idle()

    def _drop_idle_connections(self) -> None:
        """Of our client's: they lead to where the address led before the trouble, or nowhere. Others' are theirs."""
        self._client.connection_pool.disconnect(inuse_connections=False)

    def _back_off(self, max_s: float) -> None:
        """Forget every connection, since the address may lead elsewhere now, and wait: 50 ms at first, ``longest_s`` at most."""
        self._blocking.drop_connections()
        self._drop_idle_connections()
        longest = min(max_s, 0.05 * 2.0 ** min(self._pipeline.failures, 6))
        self._stopping.wait(longest * random.uniform(0.5, 1.0))

    def _cancel_and_return_jobs(self, *, no_wait: bool = False) -> None:
        """End every parked call, and give back what came and what has not been started."""
        self._in_flight.add(
            self._blocking.cancel_all(no_wait=no_wait)
        )  # kept in sight until it has gone back, whatever fails
        self._return_buffer()

    def _arm_queues(self) -> None:
        """Leave a call at every queue that has none, while there is a slot for what it brings."""
        exchange, parking = self._pipeline, self._blocking
        self._process_limits.keep_blocking_only(parking.queues)  # calls may have ended in trouble
        if not self.queue_unwatched:
            return
        for name in exchange.queues[:MAX_BLOCKED_QUEUES]:
            if (
                name not in parking.queues
                and name not in exchange.wrong_type_queues
                and self._process_limits.reserve_for_blocking(name)
            ):
                parking.arm(name)

    def _wait_for_jobs(self) -> None:
        replies, patience_s = self._in_flight.replies, self._wait_timeout_s()
        self.sleeping, self.sleeping_long = True, patience_s > STALLED_S
        try:
            # Looked at once more after `sleeping_long` can be seen: who acts later than this wakes us.
            if (
                self.ready
                or self.queue_unwatched
                or (self._pipeline.round_trip_unclaimed and not self._in_flight.buffer)
            ):
                return
            began = clock()
            replies.poll_requested = False
            replies.polls_started += 1
            arrived = self._blocking.wait(patience_s)
        except ResponseError as error:
            self._fall_back_to_sweeps(error)
            return
        finally:
            self.sleeping = self.sleeping_long = False
        if clock() - began > patience_s + _SUSPENDED_S:
            self._pipeline.suspend()  # we were stopped meanwhile; what arrived is looked at when our lease is known to be held
        self._receive(arrived)
        replies.polls_ended = replies.polls_started

    def _wait_timeout_s(self) -> float:
        if self._in_flight.replies.poll_requested:
            return 0.0
        if self._in_flight.buffer or self._pipeline.unfinished:
            return STALLED_S
        if self._pipeline.closed or not self._in_flight.free_capacity:
            return BLOCK_TIMEOUT_S
        return SWEEP_S if self._needs_sweep else BLOCK_TIMEOUT_S

    @property
    def _needs_sweep(self) -> bool:
        """Whether there are queues that no parked call can wait at."""
        exchange = self._pipeline
        return (
            len(exchange.queues) > MAX_BLOCKED_QUEUES
            or bool(exchange.wrong_type_queues)
            or self.stepped_at < self._blocking_allowed_at
        )

    def _receive(self, arrived: list[tuple[str, bytes, float]]) -> None:
        """Parked calls brought jobs; without a free slot, or when no more are taken, they go back at once."""
        now = clock()
        self._in_flight.add([UnitOfWork(queue, data, now) for queue, data, _ in arrived])
        self._process_limits.keep_blocking_only(self._blocking.queues)
        if arrived and (self._pipeline.closed or not self._in_flight.free_capacity or self._stopping.is_set()):
            self._return_buffer()
        elif any(waited_s < BURST_S for _, _, waited_s in arrived):
            self._pipeline.queues_empty = False

    def _fall_back_to_sweeps(self, error: ResponseError) -> None:
        """BLMOVE is refused at maxmemory, our script is not; or it is not allowed: look from time to time instead."""
        if not isinstance(error, OutOfMemoryError | NoPermissionError):
            raise error
        self._blocking_allowed_at = self.stepped_at + SWEEP_S
        self._pipeline.queues_empty = False

    def _stalled(self) -> bool:
        """Whether what is buffered has waited long enough for a slot."""
        custody = self._in_flight
        if not custody.buffer or custody.free_capacity:
            return False
        return self.stepped_at - max(custody.last_started_at, custody.buffer[0].fetched_at) >= STALLED_S

    def _return_buffer(self) -> None:
        """Give back what has not been started, to the head of its queues."""
        units = self._in_flight.take_buffer()
        try:
            requeue(self._client, self._identity, [(unit, unit.data) for unit in units])
        except BaseException:
            for unit in units:
                unit.fetched_at = 0.0  # perhaps back in its queue: not to be started before that is known
            self._in_flight.buffer.extendleft(reversed(units))
            raise
        self._in_flight.remove(units)
