"""The post: where one thread waits for arrivals, and looks after what nobody else is free to look after.

Each queue has a call parked on the server, so that waiting costs nothing. Whoever stands here also gives back jobs that no
slot came free for, sends acknowledgements that were left behind, and finds the way back to Redis after trouble.
"""

import random
import threading

import redis
from redis.exceptions import NoPermissionError, OutOfMemoryError, RedisError, ResponseError

from framework.fetch.custody import Custody
from framework.fetch.exchange import Exchange, clock
from framework.fetch.local_limits import LocalLimits
from framework.fetch.parking import PARK_S, PARKED_QUEUES, Parking
from framework.fetch.reaper import Reconciler
from framework.fetch.requeue import requeue
from framework.fetch.unit_of_work import UnitOfWork

STALLED_S = 0.010
"""A buffered job goes back when no job has started for so long; an acknowledgement is not left behind longer."""

SWEEP_S = 1.0
"""How often queues are looked at that have no parked call: those beyond the first 16, or all where parking is refused."""

BURST_S = 0.001
"""A parked call that brings a job sooner than this tells that more are waiting: the next look takes many."""

_SLEPT_S = 1.0  # a wait that took this much longer was no wait
_LEASE_PAUSE_S = 0.5  # between two questions whether our lease is back
_LONGEST_PAUSE_S = 2.0  # between two tries to reach Redis
_LONGEST_PAUSE_AFTER_FAULT_S = 0.5  # so that one that is for good comes often enough to end the process


class Post:
    """``attend`` is for one thread at a time, the holder of ``manned``; everything else is safe from any."""

    def __init__(
        self,
        client: "redis.Redis",
        identity: str,
        custody: Custody,
        exchange: Exchange,
        parking: Parking,
        reconciler: Reconciler,
        local: LocalLimits,
    ) -> None:
        self.manned = threading.Lock()
        self.asleep = False
        """Whether the thread here sleeps."""
        self.drowsy = False
        """Whether it sleeps and will not look around by itself for seconds."""
        self.looked_at = clock()
        """When the thread here last looked around, for a watchdog."""
        self._client = client
        self._identity = identity
        self._custody = custody
        self._exchange = exchange
        self._parking = parking
        self._reconciler = reconciler
        self._local = local
        self._stopping = threading.Event()
        self._leaving = False
        self._park_from = 0.0
        self._swept_at = 0.0

    def wake(self) -> None:
        """Let the thread here look around now."""
        self._parking.wake()

    def leave_queues(self) -> None:
        """End every parked call: other queues are served than before."""
        self._leaving = True
        self.wake()

    def stop(self) -> None:
        """Let the thread here leave."""
        self._stopping.set()
        self.wake()

    @property
    def ready(self) -> bool:
        """Whether a job could start now."""
        return self._custody.startable and not self._exchange.suspended

    @property
    def uncovered(self) -> bool:
        """Whether a queue could bring a job that a slot is free for, and nobody waits at it."""
        if not self._custody.free or not self._exchange.dry or self._exchange.closed or clock() < self._park_from:
            return False
        return len(self._parking.queues) < min(PARKED_QUEUES, len(self._exchange.queues)) - len(self._exchange.refused)

    def attend(self) -> None:
        """Stand here until a job can start or the process stops."""
        while not self._stopping.is_set() and not self.ready:
            self.looked_at = clock()
            try:
                self._tend()
            except (RedisError, OSError) as error:
                self._exchange.fail(error)
                self._step_back(_LONGEST_PAUSE_S)
            except Exception as error:  # noqa: BLE001 - an error of our own: tried again, until it has come too often
                self._exchange.fail(error)
                self._step_back(_LONGEST_PAUSE_AFTER_FAULT_S)

    def clear(self) -> None:
        """End every parked call and give back what has not been started; for the holder of ``manned``. Raises redis errors."""
        try:
            self._retreat()
        finally:
            self._parking.abandon()

    @property
    def lost_at(self) -> float | None:
        """When a parked call was last given up unanswered (monotonic seconds); ``None``: never."""
        return self._parking.lost_at

    def _tend(self) -> None:
        exchange = self._exchange
        if exchange.failures or exchange.suspended:
            self._return_to_work()
            return
        if self._leaving or exchange.closed:
            self._leaving = False
            exchange.gather()
            self._retreat()
        if self._blind and self.looked_at - self._swept_at >= SWEEP_S:
            self._swept_at, exchange.dry = self.looked_at, False  # time to look at the queues without a parked call
        if self._stalled():
            exchange.gather()  # given back later, it would stand before what is older
            self._empty_buffer()
        # With something buffered those who run jobs make the next round trip, unless none may start before it.
        if exchange.replenish() and (self._custody.full or not self._custody.buffer):
            return
        self._park()
        self._watch()

    def _return_to_work(self) -> None:
        """Trouble: what is not started goes back while it is ours; then ask until Redis answers and our lease is held."""
        if self._exchange.failures:
            self._forget_connections()
        if self._exchange.suspended:
            self._retreat()
        self._exchange.probe(self._come_back)
        if self._exchange.suspended:
            self._stopping.wait(_LEASE_PAUSE_S)

    def _come_back(self) -> None:
        """Redis answers after trouble and nothing is under way: see that no call parked before it keeps a job from us.

        A connection may be dead without a sign (a network that swallowed its packets). The server would serve the call parked
        there before any other, for up to ``PARK_S``, and nobody would hear of the job.
        """
        self._retreat(hurried=True)
        self._reconciler.look_at_rest()

    def _forget_connections(self) -> None:
        """Of our client's: they lead to where the address led before the trouble, or nowhere. Others' are theirs."""
        self._client.connection_pool.disconnect(inuse_connections=False)

    def _step_back(self, longest_s: float) -> None:
        """Forget every connection, since the address may lead elsewhere now, and wait: 50 ms at first, ``longest_s`` at most."""
        self._parking.abandon()
        self._forget_connections()
        longest = min(longest_s, 0.05 * 2.0 ** min(self._exchange.failures, 6))
        self._stopping.wait(longest * random.uniform(0.5, 1.0))

    def _retreat(self, *, hurried: bool = False) -> None:
        """End every parked call, and give back what came and what has not been started."""
        self._custody.add(self._parking.unpark(hurried=hurried))  # kept in sight until it has gone back, whatever fails
        self._empty_buffer()

    def _park(self) -> None:
        """Leave a call at every queue that has none, while there is a slot for what it brings."""
        exchange, parking = self._exchange, self._parking
        self._local.parked_at(parking.queues)  # calls may have ended in trouble
        if not self.uncovered:
            return
        for name in exchange.queues[:PARKED_QUEUES]:
            if name not in parking.queues and name not in exchange.refused and self._local.may_park(name):
                parking.park(name)

    def _watch(self) -> None:
        replies, patience_s = self._custody.replies, self._patience_s()
        self.asleep, self.drowsy = True, patience_s > STALLED_S
        try:
            # Looked at once more after `drowsy` can be seen: who acts later than this wakes us.
            if self.ready or self.uncovered or (self._exchange.idle_and_due and not self._custody.buffer):
                return
            began = clock()
            replies.again = False
            replies.begun += 1
            arrived = self._parking.wait(patience_s)
        except ResponseError as error:
            self._refuse_to_park(error)
            return
        finally:
            self.asleep = self.drowsy = False
        if clock() - began > patience_s + _SLEPT_S:
            self._exchange.suspend()  # we were stopped meanwhile; what arrived is looked at when our lease is known to be held
        self._receive(arrived)
        replies.looks = replies.begun

    def _patience_s(self) -> float:
        if self._custody.replies.again:
            return 0.0
        if self._custody.buffer or self._exchange.unfinished:
            return STALLED_S
        if self._exchange.closed or not self._custody.free:
            return PARK_S
        return SWEEP_S if self._blind else PARK_S

    @property
    def _blind(self) -> bool:
        """Whether there are queues that no parked call can wait at."""
        exchange = self._exchange
        return len(exchange.queues) > PARKED_QUEUES or bool(exchange.refused) or self.looked_at < self._park_from

    def _receive(self, arrived: list[tuple[str, bytes, float]]) -> None:
        """Parked calls brought jobs; without a free slot, or when no more are taken, they go back at once."""
        now = clock()
        self._custody.add([UnitOfWork(queue, data, now) for queue, data, _ in arrived])
        self._local.parked_at(self._parking.queues)
        if arrived and (self._exchange.closed or not self._custody.free or self._stopping.is_set()):
            self._empty_buffer()
        elif any(waited_s < BURST_S for _, _, waited_s in arrived):
            self._exchange.dry = False

    def _refuse_to_park(self, error: ResponseError) -> None:
        """BLMOVE is refused at maxmemory, our script is not; or it is not allowed: look from time to time instead."""
        if not isinstance(error, OutOfMemoryError | NoPermissionError):
            raise error
        self._park_from = self.looked_at + SWEEP_S
        self._exchange.dry = False

    def _stalled(self) -> bool:
        """Whether what is buffered has waited long enough for a slot."""
        custody = self._custody
        if not custody.buffer or custody.free:
            return False
        return self.looked_at - max(custody.last_start, custody.buffer[0].fetched_at) >= STALLED_S

    def _empty_buffer(self) -> None:
        """Give back what has not been started, to the head of its queues."""
        units = self._custody.take_buffer()
        try:
            requeue(self._client, self._identity, [(unit, unit.data) for unit in units])
        except BaseException:
            for unit in units:
                unit.fetched_at = 0.0  # perhaps back in its queue: not to be started before that is known
            self._custody.buffer.extendleft(reversed(units))
            raise
        self._custody.drop(units)
