"""The jobs of the cases. Each tells the notes that it began, and how it ended."""

from collections.abc import Callable
from typing import Any

from framework import ApplicationWorker, Deduplicate, Discard, RetryLater
from framework.errors import Shutdown
from framework.handlers import on_death
from tests.proofs.crash_points.job_notes import JobNotes, count

QUEUE = "points"
SECOND = "second"
"""The shard, and there the queue, that ``AwayWorker`` is routed to."""

KEPT_S = 600
RETIRED = "Points::Retired"

CARGO: dict[str, Any] = {"big": 2**70 + 1, "exact": 1700000000.123456, "none": [], "map": {}, "text": 'ü "\\\u2028'}
"""Arguments that a careless hand would change: no script may take a payload apart."""

_notes: list[JobNotes] = []


def open_notes(notes: JobNotes) -> None:
    """All jobs of this process, and of those forked from it, write there."""
    _notes[:] = [notes]


class _Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue: str | None = QUEUE

    def perform(self, serial: int, cargo: dict[str, Any]) -> None:
        """Run as job ``serial``."""
        (notes,) = _notes
        notes.note("begun", serial, str(self.jid))
        if cargo != CARGO:
            notes.note("spoilt", serial, repr(cargo))
        self.act(serial, notes)
        notes.note("ended", serial)

    def act(self, serial: int, notes: JobNotes) -> None:
        """What the class is for; the plain one does nothing."""


class PlainWorker(_Base):
    """Succeeds."""


class TrackedWorker(_Base):
    """Succeeds, and its state is kept."""

    status_expiration = KEPT_S


class SyncWorker(_Base):
    """Succeeds, and is acknowledged before the next job begins."""

    ack = "sync"


class OnceWorker(_Base):
    """Succeeds; of equal ones there is one at a time."""

    idempotent = True
    deduplicate = Deduplicate("until_executed")


class LimitedWorker(_Base):
    """Succeeds; one at a time."""

    concurrency_limit = 1


class AwayWorker(_Base):
    """Succeeds; its rule leads to the other shard."""

    queue = None
    tags = ("away",)


class _Failing(_Base, abstract=True):
    def act(self, serial: int, notes: JobNotes) -> None:
        """Fail."""
        notes.note("failed", serial)
        raise ValueError(f"job {serial}")


class FailsOnceWorker(_Base):
    """Fails in its first run."""

    def act(self, serial: int, notes: JobNotes) -> None:
        """Fail unless it did so before."""
        if not count(notes.read(), "failed")[serial]:
            notes.note("failed", serial)
            raise ValueError(f"job {serial}")


class DeadWorker(_Failing):
    """Fails, and is given up after the first run; its state is kept."""

    retry = 0
    status_expiration = KEPT_S


class DroppedWorker(_Failing):
    """Fails, and is kept nowhere."""

    retry = False


class DiscardedWorker(_Base):
    """Asks to be forgotten; its state is kept."""

    status_expiration = KEPT_S

    def act(self, serial: int, notes: JobNotes) -> None:
        """Ask."""
        notes.note("failed", serial)
        raise Discard(f"job {serial}")


class LaterWorker(_Base):
    """Asks once to run again in an hour."""

    def act(self, serial: int, notes: JobNotes) -> None:
        """Ask unless it did so before."""
        if not count(notes.read(), "failed")[serial]:
            notes.note("failed", serial)
            raise RetryLater(3600, "not yet")


class StoppedWorker(_Base):
    """The process is told to stop in its first run, and it gives way."""

    _overdue = False

    def act(self, serial: int, notes: JobNotes) -> None:
        """Stop the process, unless that was done."""
        if not count(notes.read(), "failed")[serial]:
            notes.note("failed", serial)
            stop_process[0](self._overdue)
            raise Shutdown


class CutOffWorker(StoppedWorker):
    """The same, but it gives way after the deadline only."""

    _overdue = True


stop_process: list[Callable[[bool], None]] = []
"""How a job tells its process to stop, and whether the deadline is to have passed."""


@on_death
def _mourn(job: Any, _error: BaseException) -> None:
    _notes[0].note("mourned", job["args"][0])
