"""The jobs of the cases. Each notes its start and its end."""

from collections.abc import Callable, Iterable
from typing import Any

from framework import ApplicationWorker, Deduplicate, Discard, IterableWorker, RetryLater
from framework.errors import Shutdown
from framework.handlers import on_death
from tests.proofs.crash_points.job_notes import JobNotes, count

QUEUE = "points"
SUB_QUEUE = f"{QUEUE}~tenant"
SECOND = "second"
"""The other shard, and its queue, to which ``AwayWorker`` is routed."""

KEPT_S = 600
RETIRED = "Points::Retired"
BATCH = "aw-points"
"""The batch of the jobs of a scenario."""

SAMPLE: dict[str, Any] = {"big": 2**70 + 1, "exact": 1700000000.123456, "none": [], "map": {}, "text": 'ü "\\\u2028'}
"""Arguments that a careless rewrite would change: no script may decode a payload."""

MOST_TICKS = 8
"""The entries of the schedule, each with the serial of its jobs as its argument."""

_notes: list[JobNotes] = []


def open_notes(notes: JobNotes) -> None:
    """Open the notes to which all jobs of this process, and of its forks, write."""
    _notes[:] = [notes]


class _Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue: str | None = QUEUE

    def perform(self, serial: int, sample: dict[str, Any]) -> None:
        """Run as job ``serial``."""
        (notes,) = _notes
        notes.note("begun", serial, str(self.jid))
        if sample != SAMPLE:
            notes.note("changed", serial, repr(sample))
        self.act(serial, notes)
        notes.note("ended", serial)

    def act(self, serial: int, notes: JobNotes) -> None:
        """Do the special work of the class; the plain one does nothing."""


class PlainWorker(_Base):
    """Succeeds."""


def declare_fair() -> None:
    """Declare a class that makes its queue, which is that of all, one with sub-queues. For this process only."""

    class FairWorker(PlainWorker):
        """Its jobs wait in the sub-queue of their serial."""

        fair_by = _serial

    del FairWorker


def _serial(arguments: tuple[Any, ...]) -> int:
    return int(arguments[0])


class TrackedWorker(_Base):
    """Succeeds, and its status is kept."""

    status_expiration = KEPT_S


class SyncWorker(_Base):
    """Succeeds, and is acknowledged before the next job starts."""

    ack = "sync"


class OnceWorker(_Base):
    """Succeeds; equal jobs are deduplicated."""

    idempotent = True
    deduplicate = Deduplicate("until_executed")


class RerunWorker(OnceWorker):
    """Succeeds; runs once more if an equal job comes meanwhile."""

    deduplicate = Deduplicate("until_executed", if_deduplicated="reschedule_once")


class TickWorker(OnceWorker):
    """Succeeds; a schedule pushes it, with a lock and a status."""

    status_expiration = KEPT_S


class LimitedWorker(_Base):
    """Succeeds; one at a time."""

    concurrency_limit = 1


class AwayWorker(_Base):
    """Succeeds; its rule routes it to the other shard."""

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
        """Fail in the first run."""
        if not count(notes.read(), "failed")[serial]:
            notes.note("failed", serial)
            raise ValueError(f"job {serial}")


class DeadWorker(_Failing):
    """Fails, and moves to the dead set after the first run; its status is kept."""

    retry = 0
    status_expiration = KEPT_S


class DroppedWorker(_Failing):
    """Fails, and is kept nowhere."""

    retry = False


class DiscardedWorker(_Base):
    """Is discarded; its status is kept."""

    status_expiration = KEPT_S

    def act(self, serial: int, notes: JobNotes) -> None:
        """Discard the job."""
        notes.note("failed", serial)
        raise Discard(f"job {serial}")


class LaterWorker(_Base):
    """Snoozes once, for an hour."""

    def act(self, serial: int, notes: JobNotes) -> None:
        """Snooze in the first run."""
        if not count(notes.read(), "failed")[serial]:
            notes.note("failed", serial)
            raise RetryLater(3600, "not yet")


class StoppedWorker(_Base):
    """Stops its process in the first run, and returns early."""

    _overdue = False

    def act(self, serial: int, notes: JobNotes) -> None:
        """Stop the process in the first run."""
        if not count(notes.read(), "failed")[serial]:
            notes.note("failed", serial)
            stop_process[0](self._overdue)
            raise Shutdown


class CutOffWorker(StoppedWorker):
    """Like ``StoppedWorker``, but returns only after the deadline."""

    _overdue = True


class IteratedWorker(IterableWorker):
    """Iterates two items, and puts itself back into its queue between them."""

    feature_category = "not_owned"
    queue = QUEUE
    max_iteration_runtime = 0.000001
    _completed = False

    def build_enumerator(self, serial: int, sample: dict[str, Any], *, cursor: int | None) -> Iterable[tuple[int, int]]:
        """Note the run, and return the items from the cursor on."""
        (notes,) = _notes
        notes.note("begun", serial, str(self.jid))
        if sample != SAMPLE:
            notes.note("changed", serial, repr(sample))
        return [(item, item) for item in range(cursor or 0, 2)]

    def each_iteration(self, item: int, serial: int, _sample: dict[str, Any]) -> None:
        """Note the item."""
        _notes[0].note("item", serial, str(item))
        self._completed = item == 1

    def on_stop(self, serial: int, _sample: dict[str, Any]) -> None:
        """Note how the run has ended."""
        _notes[0].note("ended" if self._completed else "failed", serial)


stop_process: list[Callable[[bool], None]] = []
"""Set by the stepped worker: stops the process from within a job; the argument says whether the deadline has passed."""


@on_death
def _note_death(job: Any, _error: BaseException) -> None:
    _notes[0].note("death handled", job["args"][0])
