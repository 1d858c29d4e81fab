"""Take the jobs that start next along with one that is about to start, so that one script answers for all of them.

At a crash: nothing moves here. Jobs that were taken along stay in the working list, and in flight.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from time import monotonic as clock
from typing import NamedTuple

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import PayloadError
from framework.execute.decoding import PayloadDecoder
from framework.fetch.fetcher import Fetcher
from framework.fetch.unit_of_work import Preparation, UnitOfWork
from framework.recover.suspects import is_suspect
from framework.types import Payload
from framework.wire.compress import COMPRESSED
from framework.wire.job import EXPIRES_IN
from framework.wire.resources import resource_fields, resources_of


class Neighbours(NamedTuple):
    """Buffered jobs, oldest first, which are neighbours in the working list."""

    units: Sequence[UnitOfWork]
    of_class: Sequence[tuple[int, UnitOfWork]]
    """Those of the class that was asked for, each with its position among them, from 1."""


class NextJobs:
    """The buffered jobs that start next. Safe from any thread."""

    def __init__(self, fetcher: Fetcher, decoding: PayloadDecoder) -> None:
        self._fetcher = fetcher
        self._decoding = decoding
        self._resource_fields = resource_fields()

    @contextmanager
    def taken(self, declaration: Declaration) -> Generator[Neighbours, None, None]:
        """Take them for one call to Redis about the jobs of a class. None of them starts meanwhile."""
        units = self._fetcher.take_next()
        asked_at = clock()
        try:
            # Others are not decoded: a policy of their own class asks for them together.
            name = b'"class":"%b"' % declaration.wire_name.encode()
            of_class = [
                (position, unit)
                for position, unit in enumerate(units, 1)
                if name in unit.data and self._is_of(unit, declaration)
            ]
            asked_at = clock()
            yield Neighbours(units, of_class)
        finally:
            self._fetcher.put_back(units, clock() - asked_at)

    def payload_of(self, unit: UnitOfWork) -> Payload | None:
        """Return the payload of a job, which is kept for its start; ``None`` for one that is to be asked for alone.

        A version may be unknown here; a suspect starts in its turn; compressed arguments may need memory. A job that may be too
        old takes no slot before that is known.
        """
        if unit.prepared is not None:
            return None
        try:
            payload = self._decoding.decode_small(unit)
        except PayloadError:
            return None
        if payload is None:
            return None
        unit.prepared = Preparation(payload)
        alone = "version" in payload or EXPIRES_IN in payload or payload.get(COMPRESSED) or is_suspect(payload)
        return None if alone else payload

    def note_resources(self, unit: UnitOfWork, payload: Payload, declaration: Declaration) -> None:
        """Note what the job holds."""
        if not payload.keys().isdisjoint(self._resource_fields):
            name, lock_ttl_s = declaration.wire_name, declaration.lock_ttl_s
            unit.note_resources(resources_of(payload, unit.data, unit.queue, lock_ttl_s, name))

    def _is_of(self, unit: UnitOfWork, declaration: Declaration) -> bool:
        payload = self.payload_of(unit)
        worker = None if payload is None else registry.find(payload["class"])
        if payload is None or worker is None or worker.declaration() is not declaration:
            return False
        self.note_resources(unit, payload, declaration)
        return True
