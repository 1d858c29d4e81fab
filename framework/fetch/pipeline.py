"""When to talk to Redis and what to say: any thread of the slots may, one at a time.

While jobs are quick, a call goes out between two jobs and its reply is read between two later ones, so that Redis and we
work at the same time and no thread is switched for it. A thread with nothing to run waits for the reply instead.
"""

import threading
import time
from collections.abc import Callable, Collection
from typing import Protocol

import redis
from redis.exceptions import RedisError

from framework.fetch.call import FetchCall, FetchReply
from framework.fetch.error_rate import ErrorRateLimit
from framework.fetch.in_flight import MAX_UNACKNOWLEDGED, InFlight
from framework.fetch.prefetch import Prefetch
from framework.fetch.process_limits import ProcessLimits
from framework.fetch.queues import QueueOrder, QueueRotation
from framework.fetch.unit_of_work import UnitOfWork
from framework.store.connect import COMMAND_TIMEOUT_S

ACK_BATCH = MAX_UNACKNOWLEDGED // 2
"""So many ended jobs are acknowledged at once while others run; as many again may end until that is confirmed."""

MAX_ACKS_PER_CALL = 256
"""Most acknowledgements of one call: async jobs end by the hundred."""

ACK_INTERVAL_S = 0.003
"""Or all that have ended this long after the last call."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while the machine is suspended, as Redis does


def clock() -> float:
    """Return seconds of a steady clock that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(_CLOCK)


class FetchEvents(Protocol):
    """What fetching tells: facts for logs and the launcher."""

    def fenced(self, unit: UnitOfWork) -> None:
        """An acknowledgement came too late: the job had been taken over and will run, or ran, again."""

    def lease_lost(self) -> None:
        """Our lease has lapsed; nothing is fetched until a beat renews it."""

    def queue_wrong_type(self, queue: str) -> None:
        """A queue's key holds something else than a list; the other queues go on."""

    def fetch_failed(self, error: BaseException) -> None:
        """Redis did not answer; the fetcher tries again."""

    def pipeline_failed(self, error: Exception, count: int) -> None:
        """An error of our own in the exchange, for the ``count``-th time in a short time; the fetcher tries again."""

    def redis_answered(self, component: str) -> None:
        """Redis answers again after ``fetch_failed``."""


# Decision 38: worker threads fetch their own jobs, and at most 32 finished jobs are unconfirmed.
class FetchPipeline:
    """Acknowledges and fetches for all threads. ``trouble`` is called when calls have to stop until ``probe`` succeeds.

    Whatever fails, and wherever, leaves this: no call under way, each ended unit to be acknowledged again, the lock free, and
    calls stopped until ``probe``, which gives back what a reply brought that was not taken in. So an error of our own costs a
    second try like one of Redis; one that keeps coming back ends the process (``Faults``), whose jobs are recovered.
    """

    def __init__(
        self,
        client: "redis.Redis",
        identity: str,
        order: QueueOrder,
        in_flight: InFlight,
        events: FetchEvents,
        on_failure: Callable[[], None],
        process_limits: ProcessLimits,
    ) -> None:
        self._call = FetchCall(client, identity, read_timeout_s=COMMAND_TIMEOUT_S)
        self._in_flight = in_flight
        self._events = events
        self._on_failure = on_failure
        self._process_limits = process_limits
        self._lock = threading.Lock()
        self._rotation = QueueRotation(order)
        self._prefetch = Prefetch()
        self._error_rate = ErrorRateLimit(events.pipeline_failed)
        self._sent_at = 0.0
        self.acknowledging_since = 0.0
        """When somebody last began to acknowledge and wait for the reply: one who tries again is not one who hangs."""
        self.queues_empty = False
        """Whether the last look at every queue found nothing: then only a parked call or a sweep tells of new jobs."""
        self.closed = False
        """Whether no more jobs are taken (quiet, stop)."""
        self.failures = 0
        """How many calls in a row have failed."""
        self.suspended = False
        """Whether our lease was gone when last seen: then our list is anybody's, and nothing may be started."""
        self.wrong_type_queues: frozenset[str] = frozenset()
        """Queues whose key was no list at the last look."""

    @property
    def queues(self) -> list[str]:
        """The queues that are served now, most important first; without those of which no more may run here."""
        return self._process_limits.queues_with_room([name for name, _ in self._rotation.served])

    @property
    def unfinished(self) -> bool:
        """Whether a reply is to be read, or an acknowledgement to be sent or confirmed."""
        return self._call.pending or bool(self._in_flight.done)

    @property
    def round_trip_due(self) -> bool:
        """Whether a thread with nothing to run should make a round trip."""
        return self.unfinished or self._wanted() > 0

    @property
    def quick(self) -> bool:
        """Whether jobs end so fast that another thread would only be in the way."""
        return self._prefetch.quick

    @property
    def round_trip_unclaimed(self) -> bool:
        """Whether a round trip is due that nobody makes."""
        return self.round_trip_due and not self._lock.locked()

    def flush_if_due(self, now: float) -> None:
        """Between two jobs: read what came and send what has ended, if it is time; waits for nobody."""
        custody = self._in_flight
        unsent = custody.unsent
        if unsent <= 0 or not custody.buffer or self.failures or self.suspended:
            return
        if unsent < ACK_BATCH and now - self._sent_at < ACK_INTERVAL_S:
            return
        if self._lock.acquire(blocking=False):
            try:
                self._read_reply()
                if custody.done:
                    self._send(now, ACK_BATCH)
            except BaseException as error:  # noqa: BLE001 - see `_fail`
                self._fail(error)
            finally:
                self._lock.release()

    def fetch_and_wait(self) -> bool:
        """With nothing to run: one round trip, waited for, if one is due and nobody makes it; tell whether it was made."""
        if self.failures or self.suspended or not self.round_trip_due or not self._lock.acquire(blocking=False):
            return False
        try:
            self._read_reply()
            if not self._in_flight.startable:
                self._send(clock(), MAX_ACKS_PER_CALL)
                self._read_reply()
        except BaseException as error:  # noqa: BLE001 - see `_fail`
            self._fail(error)
        finally:
            self._lock.release()
        return True

    def drain_reply(self) -> None:
        """Read the reply that is due, if any: what it brings is younger than what is buffered. Raises redis errors."""
        with self._lock:
            try:
                self._read_reply()
            except BaseException:
                self._reset_call()
                raise

    def flush(self) -> None:
        """Wait until every acknowledgement there is has arrived. Raises redis errors."""
        while self.unfinished:
            with self._lock:
                try:
                    self._acknowledge_and_wait()
                except (RedisError, OSError):
                    raise
                except Exception as error:  # noqa: BLE001 - an error of our own: tried again, until it has come too often
                    self._error_rate.record(error)

    def probe(self, on_redis_back: Callable[[], None]) -> None:
        """After trouble: ask whether Redis answers and our lease is held; go on if so. Raises redis errors.

        When calls had failed, ``on_redis_back`` is called before any other is made: no reply to one of ours can come any more.
        """
        with self._lock:
            self.suspended = not self._acknowledge_and_wait()
            if self.failures:
                on_redis_back()
                self._events.redis_answered("fetcher")
            self.failures = 0
            self.queues_empty = False

    def pause(self, queues: Collection[str]) -> bool:
        """Skip these queues from now on, and no others; tell whether that is a change."""
        with self._lock:
            changed = self._rotation.pause(queues)
            self.queues_empty = self.queues_empty and not changed
        return changed

    def fail(self, error: BaseException) -> None:
        """Something on the way to Redis has failed: no more calls until ``probe`` succeeds. Raises what cannot be tried again."""
        with self._lock:
            self._fail(error)

    def suspend(self) -> None:
        """Our lease is, or may be, gone: start nothing until ``probe`` has found it held."""
        told, self.suspended = self.suspended, True
        if not told:
            self._events.lease_lost()
        self._on_failure()

    def _wanted(self) -> int:
        if self.queues_empty or self.closed:
            return 0
        return self._prefetch.wanted(self._in_flight.free_capacity, len(self._in_flight.buffer))

    def _acknowledge_and_wait(self) -> bool:
        """Acknowledge without fetching, and wait for the reply; tell whether our lease is held. Raises redis errors."""
        self.acknowledging_since = clock()
        try:
            self._read_reply()
            self._send(clock(), MAX_ACKS_PER_CALL, fetch=False)
            return self._read_reply()
        except BaseException:
            self._reset_call()
            raise

    def _send(self, now: float, max_acks: int, *, fetch: bool = True) -> None:
        wanted = self._wanted() if fetch else 0
        ended = self._in_flight.take_done(max_acks)
        self._prefetch.ended(len(ended), now)
        self._sent_at = now
        self._in_flight.replies.fetches_sent += (
            1  # before it is sent: who sees in Redis what it did must know that it is under way
        )
        queues = self._process_limits.quotas(self._rotation.next(wanted, now)) if wanted else []
        self._call.send(ended, queues, wanted, now)

    def _read_reply(self) -> bool:
        """Read the reply that is due, if any; tell whether our lease was held."""
        if not self._call.pending:
            return True
        held = self._apply_reply(self._call.read())
        self._note_reply_read()
        return held

    def _note_reply_read(self) -> None:
        replies = self._in_flight.replies
        replies.fetches_read = replies.fetches_sent

    def _apply_reply(self, reply: FetchReply) -> bool:
        # What concerns jobs comes first: no log line and no computation may keep a unit from where it belongs.
        sent = self._in_flight.confirm()
        if reply.units and reply.lease_held:
            self._in_flight.add(reply.units)
        self._process_limits.fetch_ended()
        for position in reply.fenced:
            self._events.fenced(sent[position - 1])
        for queue in reply.wrong_type_queues:
            self._events.queue_wrong_type(queue)
        if not reply.lease_held:
            self.suspend()
            return False
        if reply.units:
            self._prefetch.arrived([len(unit.data) for unit in reply.units])
        if reply.wanted:
            self._rotation.record_found(reply.source_queues, enough=len(reply.units) >= reply.wanted)
            self.queues_empty = not reply.units and self._rotation.all_checked
            self.wrong_type_queues = frozenset(reply.wrong_type_queues)
        return True

    def _fail(self, error: BaseException) -> None:
        """Undo what was under way and stop all calls. Raises the error when it is none that a second try could mend."""
        try:
            self._reset_call()
        except Exception as worse:  # noqa: BLE001 - each of its steps has left what it had to before it could fail
            error = worse
        self.failures += 1
        self._on_failure()
        if isinstance(error, RedisError | OSError):
            self._events.fetch_failed(error)
        elif isinstance(error, Exception):
            self._error_rate.record(error)
        else:
            raise error

    def _reset_call(self) -> None:
        # Heard or not, a second LREM of the same bytes is harmless: what was acknowledged is simply not found.
        self._in_flight.mark_unsent()
        try:
            self._call.close()
        finally:
            self._process_limits.fetch_ended()
            self._note_reply_read()
