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

from framework.fetch.call import FetchCall, Reply
from framework.fetch.custody import UNACKNOWLEDGED, Custody
from framework.fetch.faults import Faults
from framework.fetch.local_limits import LocalLimits
from framework.fetch.prefetch import Prefetch
from framework.fetch.queues import QueueOrder, Rounds
from framework.fetch.unit_of_work import UnitOfWork
from framework.store.connect import COMMAND_TIMEOUT_S

GROUP = UNACKNOWLEDGED // 2
"""So many ended jobs are acknowledged at once while others run; as many again may end until that is confirmed."""

MOST = 256
"""Most acknowledgements of one call: async jobs end by the hundred."""

GROUP_S = 0.003
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

    def queue_refused(self, queue: str) -> None:
        """A queue's key holds something else than a list; the other queues go on."""

    def fetch_failed(self, error: BaseException) -> None:
        """Redis did not answer; the fetcher tries again."""

    def exchange_failed(self, error: Exception, count: int) -> None:
        """An error of our own in the exchange, for the ``count``-th time in a short time; the fetcher tries again."""

    def redis_answered(self, component: str) -> None:
        """Redis answers again after ``fetch_failed``."""


class Exchange:
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
        custody: Custody,
        events: FetchEvents,
        trouble: Callable[[], None],
        local: LocalLimits,
    ) -> None:
        self._call = FetchCall(client, identity, read_timeout_s=COMMAND_TIMEOUT_S)
        self._custody = custody
        self._events = events
        self._trouble = trouble
        self._local = local
        self._lock = threading.Lock()
        self._rounds = Rounds(order)
        self._prefetch = Prefetch()
        self._faults = Faults(events.exchange_failed)
        self._asked_at = 0.0
        self.told_at = 0.0
        """When somebody last began to acknowledge and wait for the reply: one who tries again is not one who hangs."""
        self.dry = False
        """Whether the last look at every queue found nothing: then only a parked call or a sweep tells of new jobs."""
        self.closed = False
        """Whether no more jobs are taken (quiet, stop)."""
        self.failures = 0
        """How many calls in a row have failed."""
        self.suspended = False
        """Whether our lease was gone when last seen: then our list is anybody's, and nothing may be started."""
        self.refused: frozenset[str] = frozenset()
        """Queues whose key was no list at the last look."""

    @property
    def queues(self) -> list[str]:
        """The queues that are served now, most important first; without those of which no more may run here."""
        return self._local.open([name for name, _ in self._rounds.served])

    @property
    def unfinished(self) -> bool:
        """Whether a reply is to be read, or an acknowledgement to be sent or confirmed."""
        return self._call.pending or bool(self._custody.done)

    @property
    def due(self) -> bool:
        """Whether a thread with nothing to run should make a round trip."""
        return self.unfinished or self._wanted() > 0

    @property
    def quick(self) -> bool:
        """Whether jobs end so fast that another thread would only be in the way."""
        return self._prefetch.quick

    @property
    def idle_and_due(self) -> bool:
        """Whether a round trip is due that nobody makes."""
        return self.due and not self._lock.locked()

    def settle_up(self, now: float) -> None:
        """Between two jobs: read what came and send what has ended, if it is time; waits for nobody."""
        custody = self._custody
        unsent = custody.unsent
        if unsent <= 0 or not custody.buffer or self.failures or self.suspended:
            return
        if unsent < GROUP and now - self._asked_at < GROUP_S:
            return
        if self._lock.acquire(blocking=False):
            try:
                self._collect()
                if custody.done:
                    self._ask(now, GROUP)
            except BaseException as error:  # noqa: BLE001 - see `_fail`
                self._fail(error)
            finally:
                self._lock.release()

    def replenish(self) -> bool:
        """With nothing to run: one round trip, waited for, if one is due and nobody makes it; tell whether it was made."""
        if self.failures or self.suspended or not self.due or not self._lock.acquire(blocking=False):
            return False
        try:
            self._collect()
            if not self._custody.startable:
                self._ask(clock(), MOST)
                self._collect()
        except BaseException as error:  # noqa: BLE001 - see `_fail`
            self._fail(error)
        finally:
            self._lock.release()
        return True

    def gather(self) -> None:
        """Read the reply that is due, if any: what it brings is younger than what is buffered. Raises redis errors."""
        with self._lock:
            try:
                self._collect()
            except BaseException:
                self._undo()
                raise

    def flush(self) -> None:
        """Wait until every acknowledgement there is has arrived. Raises redis errors."""
        while self.unfinished:
            with self._lock:
                try:
                    self._tell()
                except (RedisError, OSError):
                    raise
                except Exception as error:  # noqa: BLE001 - an error of our own: tried again, until it has come too often
                    self._faults.note(error)

    def probe(self, come_back: Callable[[], None]) -> None:
        """After trouble: ask whether Redis answers and our lease is held; go on if so. Raises redis errors.

        When calls had failed, ``come_back`` is called before any other is made: no reply to one of ours can come any more.
        """
        with self._lock:
            self.suspended = not self._tell()
            if self.failures:
                come_back()
                self._events.redis_answered("fetcher")
            self.failures = 0
            self.dry = False

    def pause(self, queues: Collection[str]) -> bool:
        """Skip these queues from now on, and no others; tell whether that is a change."""
        with self._lock:
            changed = self._rounds.pause(queues)
            self.dry = self.dry and not changed
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
        self._trouble()

    def _wanted(self) -> int:
        if self.dry or self.closed:
            return 0
        return self._prefetch.wanted(self._custody.free, len(self._custody.buffer))

    def _tell(self) -> bool:
        """Acknowledge without fetching, and wait for the reply; tell whether our lease is held. Raises redis errors."""
        self.told_at = clock()
        try:
            self._collect()
            self._ask(clock(), MOST, fetch=False)
            return self._collect()
        except BaseException:
            self._undo()
            raise

    def _ask(self, now: float, most: int, *, fetch: bool = True) -> None:
        wanted = self._wanted() if fetch else 0
        ended = self._custody.take_done(most)
        self._prefetch.ended(len(ended), now)
        self._asked_at = now
        self._custody.replies.asked += (
            1  # before it is sent: who sees in Redis what it did must know that it is under way
        )
        queues = self._local.grant(self._rounds.next(wanted, now)) if wanted else []
        self._call.send(ended, queues, wanted, now)

    def _collect(self) -> bool:
        """Read the reply that is due, if any; tell whether our lease was held."""
        if not self._call.pending:
            return True
        held = self._take_in(self._call.read())
        self._answered()
        return held

    def _answered(self) -> None:
        replies = self._custody.replies
        replies.answered = replies.asked

    def _take_in(self, reply: Reply) -> bool:
        # What concerns jobs comes first: no log line and no computation may keep a unit from where it belongs.
        sent = self._custody.confirm()
        if reply.units and reply.held:
            self._custody.add(reply.units)
        self._local.arrived()
        for position in reply.fenced:
            self._events.fenced(sent[position - 1])
        for queue in reply.refused:
            self._events.queue_refused(queue)
        if not reply.held:
            self.suspend()
            return False
        if reply.units:
            self._prefetch.arrived([len(unit.data) for unit in reply.units])
        if reply.wanted:
            self._rounds.found(reply.given, enough=len(reply.units) >= reply.wanted)
            self.dry = not reply.units and self._rounds.complete
            self.refused = frozenset(reply.refused)
        return True

    def _fail(self, error: BaseException) -> None:
        """Undo what was under way and stop all calls. Raises the error when it is none that a second try could mend."""
        try:
            self._undo()
        except Exception as worse:  # noqa: BLE001 - each of its steps has left what it had to before it could fail
            error = worse
        self.failures += 1
        self._trouble()
        if isinstance(error, RedisError | OSError):
            self._events.fetch_failed(error)
        elif isinstance(error, Exception):
            self._faults.note(error)
        else:
            raise error

    def _undo(self) -> None:
        # Heard or not, a second LREM of the same bytes is harmless: what was acknowledged is simply not found.
        self._custody.unsend()
        try:
            self._call.close()
        finally:
            self._local.arrived()
            self._answered()
