"""The fetcher: one thread that acknowledges finished jobs and takes new ones, both in one round trip.

Acknowledgements leave as soon as the previous round trip returns (group commit, without a timer). When a fetch finds
nothing and slots are free, calls are parked at the queues and the thread sleeps until a job, a finished job or a stop.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

import redis
from redis.exceptions import RedisError

from framework.fetch.custody import Custody
from framework.fetch.parking import PARK_S, PARKED_QUEUES, REPLY_MARGIN_S, Parking
from framework.fetch.queues import QueueOrder
from framework.fetch.unit_of_work import UnitOfWork
from framework.shard.shard import Shard
from framework.store.script import FETCH, REQUEUE
from framework.wire import keys

LEASE_MS = 15_000
"""How long a process that stopped beating keeps its working list (design: recovery within 25 s)."""

ACKNOWLEDGEMENTS = 32
"""Most acknowledgements a round trip; also the most runs that a kill can repeat beyond the jobs in hand."""

_LEASE_PAUSE_S = 0.5  # between two questions whether our lease is back
_SWEEP_S = 1.0  # how often queues without a parked call are looked at


class FetchEvents(Protocol):
    """What the fetcher tells: facts for logs and the launcher."""

    def fenced(self, unit: UnitOfWork) -> None:
        """An acknowledgement came too late: the job had been taken over and will run, or ran, again."""

    def lease_lost(self) -> None:
        """Our lease has lapsed; nothing is fetched until a beat renews it."""

    def queue_refused(self, queue: str) -> None:
        """A queue's key holds something else than a list; the other queues go on."""

    def fetch_failed(self, error: BaseException) -> None:
        """Redis did not answer; the fetcher tries again."""


class Fetcher:
    """Feeds ``dispatch`` with units while slots are free. ``finish`` may be called from any thread, the rest is its own."""

    def __init__(
        self,
        shard: Shard,
        identity: str,
        order: QueueOrder,
        slots: int,
        dispatch: Callable[[UnitOfWork, int], None],
        events: FetchEvents,
    ) -> None:
        self.custody = Custody()
        self._identity = identity
        self._order = order
        self._slots = slots
        self._dispatch = dispatch
        self._events = events
        self._client: redis.Redis = shard.open_client("fetch", read_timeout_s=PARK_S + REPLY_MARGIN_S)
        self._parking = Parking(self._client, keys.working(identity))
        self._done: deque[UnitOfWork] = deque()
        self._sleeping = False
        self._quiet = threading.Event()
        self._stopping = threading.Event()
        self._found_nothing = False

    def run(self) -> None:
        """Fetch until ``stop``; afterwards no fetch is under way and every acknowledgement has been sent."""
        failures = 0
        while not self._stopping.is_set():
            try:
                self._step()
                failures = 0
            except (RedisError, OSError) as error:
                failures += 1
                self._recover(error, failures)
        self._end()

    def quiet(self) -> None:
        """Take no more jobs, and go on acknowledging those in hand until ``stop``. Safe from any thread, and twice."""
        self._quiet.set()
        self._parking.wake()

    def stop(self) -> None:
        """Take no more jobs; ``run`` returns soon after. Safe from any thread, and twice."""
        self._stopping.set()
        self._parking.wake()

    def finish(self, unit: UnitOfWork, *, settled: bool = False) -> None:
        """The unit's job has come to an end. ``settled``: it has left the working list already (retry, dead set)."""
        self.custody.finish(unit, settled=settled)
        if not settled:
            self._done.append(unit)
        # The flag is set before the deque and the slots are looked at, here it is the other way round: no wake-up is missed.
        if self._sleeping:
            self._parking.wake()

    def acknowledge_rest(self) -> None:
        """Send the acknowledgements that came in after ``run`` had ended. Raises redis errors."""
        while self._done:
            self._exchange(0)

    def _step(self) -> None:
        if self._quiet.is_set():
            self._wind_down()
        else:
            self._work()

    def _wind_down(self) -> None:
        self._give_back(self._parking.unpark(self._client))
        if self._done:
            self._exchange(0)
        else:
            self._sleep(PARK_S)

    def _work(self) -> None:
        held = self.custody.held
        free = self._slots - held
        if self._done or (free > 0 and not self._found_nothing):
            self._exchange(max(free, 0))
            return
        if free > 0:
            everything_parked = len(self._parking.queues) == len(self._order.weights)
            self._sleep(PARK_S if everything_parked else _SWEEP_S)
            self._found_nothing = False
        else:
            self._sleep(PARK_S, held)

    def _exchange(self, wanted: int) -> None:
        """One round trip: acknowledge what is done, fetch ``wanted`` jobs, dispatch them."""
        acknowledged = self._take_done()
        order = self._order.draw()
        queues = [keys.queue(name) for name in order]
        try:
            reply: Any = FETCH(
                self._client,
                [keys.lease(self._identity), keys.working(self._identity), *queues],
                [LEASE_MS, wanted, len(acknowledged), *(unit.data for unit in acknowledged)],
            )
        except BaseException:
            # Sent or not, a second LREM of the same bytes is harmless: what was acknowledged is simply not found.
            self._done.extendleft(reversed(acknowledged))
            raise
        held, fenced = int(reply[0]), cast("list[int]", reply[1])
        refused, found = cast("list[int]", reply[2]), cast("list[Any]", reply[3:])
        self.custody.release(acknowledged)
        for position in fenced:
            self._events.fenced(acknowledged[position - 1])
        for position in refused:
            self._events.queue_refused(order[position - 1])
        if not held:
            self._suspend()
        for position in range(0, len(found), 2):
            queue = order[int(found[position]) - 1]
            for data in cast("list[bytes]", found[position + 1]):
                self._start(UnitOfWork(queue, data))
        if wanted and not found:
            self._found_nothing = True
            self._park([order[i] for i in range(len(order)) if i + 1 not in refused] if held else [])

    def _take_done(self) -> list[UnitOfWork]:
        taken: list[UnitOfWork] = []
        with contextlib.suppress(IndexError):  # empty; at the end of the process the main thread may take from it too
            while len(taken) < ACKNOWLEDGEMENTS:
                taken.append(self._done.popleft())
        return taken

    def _suspend(self) -> None:
        """Our list is anybody's now: end the parked calls, which would go on fetching, and give the lease's thread time."""
        self._events.lease_lost()
        self._give_back(self._parking.unpark(self._client))
        self._stopping.wait(_LEASE_PAUSE_S)

    def _park(self, order: list[str]) -> None:
        for name in order[:PARKED_QUEUES]:
            if name not in self._parking.queues and len(self._parking.queues) < PARKED_QUEUES:
                self._parking.park(name)

    def _sleep(self, timeout_s: float, held: int = 0) -> None:
        """Wait for something to do; ``held``: how many slots were taken when the caller decided to wait for one."""
        self._sleeping = True
        try:
            # A settled job leaves no acknowledgement: that its slot came free meanwhile is seen by the count alone.
            if self._done or self._stopping.is_set() or self.custody.held < held:
                return
            arrived = self._parking.wait(timeout_s)
        finally:
            self._sleeping = False
        for unit in arrived:
            self._arrive(unit)

    def _arrive(self, unit: UnitOfWork) -> None:
        """A parked call brought a job; without a free slot, or when winding down, it goes back at once."""
        if self._stopping.is_set() or self._quiet.is_set() or self.custody.held >= self._slots:
            self._give_back([unit])
        else:
            self._start(unit)

    def _start(self, unit: UnitOfWork) -> None:
        self._found_nothing = False
        self.custody.take(unit)
        self._dispatch(unit, self.custody.held)

    def _give_back(self, units: list[UnitOfWork]) -> None:
        requeue(self._client, self._identity, [(unit, unit.data) for unit in units])

    def _recover(self, error: BaseException, failures: int) -> None:
        self._events.fetch_failed(error)
        self._parking.abandon()
        self._client.connection_pool.disconnect()
        self._stopping.wait(min(2.0, 0.05 * 2 ** min(failures, 6)))

    def _end(self) -> None:
        try:
            self._give_back(self._parking.unpark(self._client))
            self.acknowledge_rest()
        except (RedisError, OSError) as error:
            self._events.fetch_failed(error)
        finally:
            self._parking.abandon()


def requeue(client: "redis.Redis", identity: str, jobs: list[tuple[UnitOfWork, bytes]]) -> int:
    """Give jobs (oldest first, each with the bytes to store) back to the right end of their queues; return how many were ours."""
    if not jobs:
        return 0
    youngest_first = list(reversed(jobs))
    returned: Any = REQUEUE(
        client,
        [keys.working(identity), keys.QUEUES, *(keys.queue(unit.queue) for unit, _ in youngest_first)],
        [
            len(jobs),
            *(unit.data for unit, _ in youngest_first),
            *(data for _, data in youngest_first),
            *(unit.queue for unit, _ in youngest_first),
        ],
    )
    return int(returned)
