"""The jobs that this process has taken and not finished: what memory says, to be held against the working list.

A unit is buffered, then running, then done, then sent; it is held all the time, until its removal from the working list
has been confirmed. Every step is one operation on a deque or dict, atomic under the interpreter's lock: no lock of ours.
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from threading import get_ident

from framework.fetch.replies import Replies
from framework.fetch.unit_of_work import UnitOfWork

UNACKNOWLEDGED = 32
"""Most jobs that have ended and whose acknowledgement is not confirmed; beyond the running ones, a kill repeats no more."""


class Custody:
    """The units in hand, by state. ``start`` may be called from any thread, and so may ``end``."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.buffer: deque[UnitOfWork] = deque()
        self.done: deque[UnitOfWork] = deque()
        self.sent: list[UnitOfWork] = []
        self.replies = Replies()
        self.last_start = 0.0
        self.returned: set[bytes] | None = None
        """What has been given back since somebody wanted to know: the same bytes may come again."""
        self._free = deque(range(slots))
        self._running: dict[int, UnitOfWork] = {}
        self._held: dict[int, UnitOfWork] = {}

    @property
    def free(self) -> int:
        """How many slots are free."""
        return len(self._free)

    @property
    def full(self) -> bool:
        """Whether so many acknowledgements are unconfirmed that no job may start."""
        return len(self.done) + len(self.sent) >= UNACKNOWLEDGED

    @property
    def startable(self) -> bool:
        """Whether a buffered job could start now."""
        return bool(self.buffer and self._free) and not self.full

    def add(self, units: Sequence[UnitOfWork]) -> None:
        """The units have been fetched and wait for a slot."""
        # Held first: what is in the buffer may end at once, in another thread.
        self._held.update(zip(map(id, units), units, strict=True))
        self.buffer.extend(units)

    def start(self, now: float) -> UnitOfWork | None:
        """Return the oldest buffered unit with a slot of its own, ``None`` when there is no unit or no slot."""
        if self.full:
            return None
        try:
            slot = self._free.pop()
        except IndexError:
            return None
        try:
            unit = self.buffer.popleft()
        except IndexError:
            self._free.append(slot)
            return None
        unit.slot = slot
        unit.thread = get_ident()
        unit.started_at = time.time()
        self.last_start = now
        self._running[id(unit)] = unit
        return unit

    def unstart(self, unit: UnitOfWork) -> None:
        """The unit that ``start`` has just returned is not to run: it is the oldest in the buffer again."""
        del self._running[id(unit)]
        self.buffer.appendleft(unit)
        self._free.append(unit.slot)

    def end(self, unit: UnitOfWork, *, settled: bool) -> None:
        """The unit's job has ended and frees its slot. ``settled``: it has left the working list; else it is to be acknowledged."""
        del self._running[id(unit)]
        if settled:
            del self._held[id(unit)]
        else:
            self.done.append(unit)
        self._free.append(unit.slot)

    def take_done(self, most: int) -> list[UnitOfWork]:
        """Return at most ``most`` ended units, whose acknowledgement is to be sent; ``confirm`` or ``unsend`` follows."""
        self.sent = sent = list(islice(self.done, most))  # in both for a moment rather than in neither: see `full`
        for _ in sent:
            self.done.popleft()
        return sent

    def confirm(self) -> list[UnitOfWork]:
        """The acknowledgements that were sent have arrived; return their units."""
        sent, self.sent = self.sent, []
        for unit in sent:
            del self._held[id(unit)]
        return sent

    def unsend(self) -> None:
        """Whether the acknowledgements that were sent have arrived is not known: they will be sent again (harmless)."""
        self.done.extendleft(reversed(self.sent))
        self.sent = []

    def take_buffer(self) -> list[UnitOfWork]:
        """Return every buffered unit, oldest first, to be given back; they stay held until ``drop``."""
        taken: list[UnitOfWork] = []
        while self.buffer:
            try:
                taken.append(self.buffer.popleft())
            except IndexError:  # a slot was faster
                break
        return taken

    def drop(self, units: Sequence[UnitOfWork]) -> None:
        """The units have been given back: they have left the working list."""
        self.note_returned(unit.data for unit in units)
        for unit in units:
            self._held.pop(id(unit), None)

    def note_returned(self, payloads: Iterable[bytes]) -> None:
        """These have been given back, or are about to be."""
        if self.returned is not None:
            self.returned.update(payloads)

    def running(self) -> list[UnitOfWork]:
        """The units whose jobs run, oldest first."""
        return list(self._running.values())

    def unfinished(self) -> list[UnitOfWork]:
        """The units whose jobs run or have not begun, oldest first."""
        return [*self._running.values(), *self.buffer]

    def unended(self) -> list[UnitOfWork]:
        """The units whose jobs run or have not begun, in any order; one that moves on meanwhile is not missed."""
        held = list(self._held.values())
        ended = {id(unit) for unit in (*self.done, *self.sent)}
        return [unit for unit in held if id(unit) not in ended]

    def known(self) -> set[bytes]:
        """The bytes of everything in hand, acknowledgements under way included."""
        return {unit.data for unit in list(self._held.values())}
