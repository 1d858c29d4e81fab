"""The jobs that this process has taken and not finished: what memory says, to be held against the working list.

A unit is buffered, then running, then done; it is held all the time, until its removal from the working list has been
confirmed. Every step is one operation on a deque or dict, atomic under the interpreter's lock: no lock of ours. Whatever is
iterated is a copy, which is one such operation too (decision 150).
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from threading import Lock, get_ident

from framework.fetch.reply_tracker import ReplyTracker
from framework.fetch.unit_of_work import UnitOfWork

MAX_UNACKNOWLEDGED = 32
"""Most jobs that have ended and whose acknowledgement is not confirmed; beyond the running ones, a kill repeats no more."""


class InFlight:
    """The units in flight, by state. ``start`` may be called from any thread, and so may ``end``."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.buffer: deque[UnitOfWork] = deque()
        self.done: deque[UnitOfWork] = deque()
        """Ended and unconfirmed, oldest first; of the first ``sent`` the acknowledgements are under way."""
        self.sent = 0
        self.replies = ReplyTracker()
        self.last_started_at = 0.0
        self._returned: set[bytes] | None = None
        self._returned_lock = Lock()
        self._free_indexes = deque(range(concurrency))
        self._running: dict[int, UnitOfWork] = {}
        self._by_id: dict[int, UnitOfWork] = {}

    @property
    def free_capacity(self) -> int:
        """How many slots are free."""
        return len(self._free_indexes)

    @property
    def acknowledgements_full(self) -> bool:
        """Whether so many acknowledgements are unconfirmed that no job may start."""
        return len(self.done) >= MAX_UNACKNOWLEDGED

    @property
    def unsent(self) -> int:
        """How many acknowledgements are to be sent."""
        return len(self.done) - self.sent

    @property
    def startable(self) -> bool:
        """Whether a buffered job could start now."""
        return bool(self.buffer and self._free_indexes) and not self.acknowledgements_full

    def add(self, units: Sequence[UnitOfWork]) -> None:
        """The units have been fetched and wait for a slot."""
        # Held first: what is in the buffer may end at once, in another thread.
        self._by_id.update(zip(map(id, units), units, strict=True))
        self.buffer.extend(units)

    def start(self, now: float) -> UnitOfWork | None:
        """Return the oldest buffered unit with a slot of its own, ``None`` when there is no unit or no slot."""
        if self.acknowledgements_full:
            return None
        try:
            slot = self._free_indexes.pop()
        except IndexError:
            return None
        try:
            unit = self.buffer.popleft()
        except IndexError:
            self._free_indexes.append(slot)
            return None
        unit.run_index = slot
        unit.thread = get_ident()
        unit.started_at = time.time()
        self.last_started_at = now
        self._running[id(unit)] = unit
        return unit

    def put_back(self, unit: UnitOfWork) -> None:
        """The unit that ``start`` has just returned is not to run: it is the oldest in the buffer again."""
        del self._running[id(unit)]
        self.buffer.appendleft(unit)
        self._free_indexes.append(unit.run_index)

    def end(self, unit: UnitOfWork, *, settled: bool) -> None:
        """The unit's job has ended and frees its slot. ``settled``: it has left the working list; else it is to be acknowledged."""
        del self._running[id(unit)]
        if settled:
            del self._by_id[id(unit)]
        else:
            self.done.append(unit)
        self._free_indexes.append(unit.run_index)

    def take_done(self, limit: int) -> list[UnitOfWork]:
        """Return at most ``most`` ended units, whose acknowledgement is to be sent; ``confirm`` or ``mark_unsent`` follows."""
        taken = list(self.done)[:limit]
        self.sent = len(taken)
        return taken

    def confirm(self) -> list[UnitOfWork]:
        """The acknowledgements that were sent have arrived; return their units."""
        confirmed: list[UnitOfWork] = []
        while self.sent:
            unit = self.done.popleft()
            self.sent -= 1
            self._by_id.pop(id(unit), None)
            confirmed.append(unit)
        return confirmed

    def mark_unsent(self) -> None:
        """Whether the acknowledgements that were sent have arrived is not known: they will be sent again (harmless)."""
        self.sent = 0

    def take_buffer(self) -> list[UnitOfWork]:
        """Return every buffered unit, oldest first, to be given back; they stay held until ``drop``."""
        taken: list[UnitOfWork] = []
        try:
            while True:
                taken.append(self.buffer.popleft())
        except IndexError:  # all, or a slot was faster
            return taken
        except BaseException:
            self.buffer.extendleft(reversed(taken))
            raise

    def remove(self, units: Sequence[UnitOfWork]) -> None:
        """The units have been given back: they have left the working list."""
        self.note_returned(unit.data for unit in units)
        for unit in units:
            self._by_id.pop(id(unit), None)

    def note_returned(self, payloads: Iterable[bytes]) -> None:
        """These have been given back, or are about to be."""
        with self._returned_lock:
            if self._returned is not None:
                self._returned.update(payloads)

    def swap_returned(self, noted: set[bytes] | None) -> set[bytes]:
        """Return what has been given back since the last call, and note it in ``noted`` from now on (``None``: nowhere)."""
        with self._returned_lock:
            before, self._returned = self._returned, noted
        return before or set()

    def running(self) -> list[UnitOfWork]:
        """The units whose jobs run, oldest first."""
        return list(self._running.values())

    def buffered(self) -> list[UnitOfWork]:
        """The units whose jobs have not begun, oldest first."""
        return list(self.buffer)

    def unfinished(self) -> list[UnitOfWork]:
        """The units whose jobs run or have not begun, in any order; one that moves on meanwhile is not missed."""
        held = list(self._by_id.values())
        ended = set(map(id, list(self.done)))
        return [unit for unit in held if id(unit) not in ended]

    def payloads(self) -> set[bytes]:
        """The bytes of everything in flight, acknowledgements under way included."""
        return {unit.data for unit in list(self._by_id.values())}
