"""The jobs that this process has taken and not finished: what memory says, to be held against the working list."""

import threading

from framework.fetch.unit_of_work import UnitOfWork


class Custody:
    """The units in hand. ``held`` counts those that occupy a slot; finished ones wait only for their acknowledgement."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[int, UnitOfWork] = {}
        self._finished: dict[int, UnitOfWork] = {}

    @property
    def held(self) -> int:
        """How many slots are taken."""
        return len(self._running)

    def take(self, unit: UnitOfWork) -> None:
        """The unit has been fetched and occupies a slot."""
        with self._lock:
            self._running[id(unit)] = unit

    def finish(self, unit: UnitOfWork, *, settled: bool) -> None:
        """The unit frees its slot. ``settled`` units have left the working list, others still await acknowledgement."""
        with self._lock:
            self._running.pop(id(unit), None)
            if not settled:
                self._finished[id(unit)] = unit

    def release(self, units: list[UnitOfWork]) -> None:
        """The units have left the working list."""
        with self._lock:
            for unit in units:
                self._finished.pop(id(unit), None)

    def running(self) -> list[UnitOfWork]:
        """The units whose jobs have not come to an end, oldest first."""
        with self._lock:
            return list(self._running.values())

    def known(self) -> set[bytes]:
        """The bytes of everything in hand, acknowledgements under way included."""
        with self._lock:
            return {unit.data for unit in (*self._running.values(), *self._finished.values())}
