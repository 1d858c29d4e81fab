"""Keep the jobs that this process has fetched and not finished: the memory image of its working list.

A unit is buffered, then running, then done. It stays in flight until Redis has confirmed its removal from the working list.
Every step is one operation on a deque or dict, atomic under the interpreter's lock, so no other lock is needed. Iteration
runs over a copy, and the copy is one such operation too (decision 150).
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from threading import Lock, get_ident

from framework.fetch.reply_tracker import ReplyTracker
from framework.fetch.unit_of_work import UnitOfWork

MAX_UNACKNOWLEDGED = 32
"""Most ended jobs without a confirmed acknowledgement: a kill repeats no more than these and the running jobs."""


class InFlight:
    """The units in flight, by state. ``start`` and ``end`` are safe from any thread."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.buffer: deque[UnitOfWork] = deque()
        self.done: deque[UnitOfWork] = deque()
        """Ended units without confirmation, oldest first; the acknowledgements of the first ``sent`` are under way."""
        self.sent = 0
        self.replies = ReplyTracker()
        self.last_started_at = 0.0
        self._returned: set[bytes] | None = None
        self._returned_lock = Lock()
        # A semaphore too: a thread that pops an index may run a job.
        self._free_indexes = deque(range(concurrency))
        # By `id`, since two units may have the same bytes.
        self._running: dict[int, UnitOfWork] = {}
        self._by_id: dict[int, UnitOfWork] = {}
        self._being_admitted: dict[int, UnitOfWork] = {}
        """Units that a thread has taken along to ask for their admission: neither buffered nor running for one round trip."""

    @property
    def free_capacity(self) -> int:
        """How many more jobs may start."""
        return len(self._free_indexes)

    @property
    def acknowledgements_full(self) -> bool:
        """Whether no job may start because ``MAX_UNACKNOWLEDGED`` acknowledgements are unconfirmed."""
        return len(self.done) >= MAX_UNACKNOWLEDGED

    @property
    def unsent(self) -> int:
        """How many acknowledgements have not been sent."""
        return len(self.done) - self.sent

    @property
    def startable(self) -> bool:
        """Whether a buffered job may start now."""
        return bool(self.buffer and self._free_indexes) and not self.acknowledgements_full

    def add(self, units: Sequence[UnitOfWork]) -> None:
        """Add fetched units to the buffer."""
        # By id first: another thread may start and end a unit as soon as it is in the buffer.
        self._by_id.update(zip(map(id, units), units, strict=True))
        self.buffer.extend(units)

    def start(self, now: float) -> UnitOfWork | None:
        """Start the oldest buffered unit and return it; ``None`` without a unit or without free capacity."""
        if self.acknowledgements_full:
            return None
        try:
            index = self._free_indexes.pop()
        except IndexError:
            return None
        try:
            unit = self.buffer.popleft()
        except IndexError:
            self._free_indexes.append(index)
            return None
        unit.run_index = index
        unit.thread = get_ident()
        unit.started_at = time.time()
        self.last_started_at = now
        self._running[id(unit)] = unit
        return unit

    @property
    def waiting(self) -> int:
        """How many units have not started."""
        return len(self.buffer) + len(self._being_admitted)

    def take_next(self, most: int) -> list[UnitOfWork]:
        """Take at most ``most`` buffered units, oldest first; ``put_back_next`` must follow. They stay in flight."""
        taken: list[UnitOfWork] = []
        try:
            while len(taken) < most:
                unit = self.buffer.popleft()
                self._being_admitted[id(unit)] = unit
                taken.append(unit)
        except IndexError:  # the buffer is empty
            pass
        return taken

    def put_back_next(self, units: Sequence[UnitOfWork]) -> None:
        """Make the units the oldest in the buffer again."""
        # Buffer first: a reader of all units that have not started must not miss one.
        self.buffer.extendleft(reversed(units))
        for unit in units:
            self._being_admitted.pop(id(unit), None)

    def put_back(self, unit: UnitOfWork) -> None:
        """Undo ``start``: the unit becomes the oldest in the buffer again."""
        del self._running[id(unit)]
        self.buffer.appendleft(unit)
        self._free_indexes.append(unit.run_index)

    def end(self, unit: UnitOfWork, *, settled: bool) -> None:
        """End a unit and free its place. ``settled``: the job has left the working list; else it is to be acknowledged."""
        del self._running[id(unit)]
        if settled:
            del self._by_id[id(unit)]
        else:
            self.done.append(unit)
        self._free_indexes.append(unit.run_index)

    def take_done(self, limit: int) -> list[UnitOfWork]:
        """Return at most ``limit`` ended units to acknowledge; ``confirm`` or ``mark_unsent`` must follow."""
        taken = list(self.done)[:limit]
        self.sent = len(taken)
        return taken

    def confirm(self) -> list[UnitOfWork]:
        """Remove the units whose acknowledgements were sent, after the reply has arrived; return them."""
        confirmed: list[UnitOfWork] = []
        while self.sent:
            unit = self.done.popleft()
            self.sent -= 1
            self._by_id.pop(id(unit), None)
            confirmed.append(unit)
        return confirmed

    def mark_unsent(self) -> None:
        """Send the same acknowledgements again: their reply was lost (LREM finds nothing the second time)."""
        self.sent = 0

    @property
    def oldest_returnable(self) -> UnitOfWork | None:
        """The oldest buffered unit that can return to its queue; ``None`` if there is none."""
        return next((unit for unit in list(self.buffer) if not unit.has_moved), None)

    def take_buffer(self) -> list[UnitOfWork]:
        """Empty the buffer and return its units, oldest first; they stay in flight until ``remove``."""
        taken: list[UnitOfWork] = []
        try:
            while True:
                taken.append(self.buffer.popleft())
        except IndexError:  # the buffer is empty, or another thread has started the last unit
            return taken
        except BaseException:
            self.buffer.extendleft(reversed(taken))
            raise

    def remove(self, units: Sequence[UnitOfWork]) -> None:
        """Remove units that were returned to their queues: they have left the working list."""
        try:
            # Noted before they leave memory: the reconciler must never find them in neither.
            self.note_returned(unit.data for unit in units)
        finally:
            # Also after an error: a unit that stays here would count against the process limit of its queue for ever.
            for unit in units:
                self._by_id.pop(id(unit), None)

    def note_returned(self, payloads: Iterable[bytes]) -> None:
        """Note payloads that were returned to their queues, or are about to be."""
        with self._returned_lock:
            if self._returned is not None:
                self._returned.update(payloads)

    def swap_returned(self, noted: set[bytes] | None) -> set[bytes]:
        """Return the payloads returned since the last call; from now on note them in ``noted`` (``None``: nowhere)."""
        with self._returned_lock:
            before, self._returned = self._returned, noted
        return before or set()

    def running(self) -> list[UnitOfWork]:
        """The units whose jobs run, oldest first."""
        return list(self._running.values())

    def buffered(self) -> list[UnitOfWork]:
        """The units whose jobs have not started."""
        # In this order: a unit that goes back to the buffer meanwhile is found at least once.
        being_admitted = list(self._being_admitted.values())
        buffered = list(self.buffer)
        return [*buffered, *(unit for unit in being_admitted if unit not in buffered)]

    def unfinished(self) -> list[UnitOfWork]:
        """The units whose jobs run or have not started, in any order; none is missed if it changes its state meanwhile."""
        units = list(self._by_id.values())
        ended = set(map(id, list(self.done)))
        return [unit for unit in units if id(unit) not in ended]

    def payloads(self) -> set[bytes]:
        """The bytes of every unit in flight, those with an acknowledgement under way included."""
        return {unit.data for unit in list(self._by_id.values())}
