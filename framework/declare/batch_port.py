"""Define what a batch asks of the client: to collect and write its jobs, and to read and change it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from framework.declare.request import BulkRequest, PushRequest
from framework.feature import Late
from framework.types import Jid
from framework.wire.answers import stored_end, value_of
from framework.wire.batch_fields import BatchAction, BatchEventName, BatchMembers, Callback
from framework.wire.workflow_fields import StepPart


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """The known facts of a batch. Times are epoch seconds of Redis's clock; ``None`` means: not yet."""

    bid: str
    shard: str
    description: str
    parent: str
    """The id of the batch around it; empty for none."""
    total: int
    """Jobs of the batch, callbacks of nested batches included."""
    pending: int
    """Jobs that have not succeeded."""
    failures: int
    """Jobs that failed in their last run: they will be retried, or died."""
    dead: int
    """Jobs that died."""
    removed: int
    """Jobs that an operator ended: cancelled, deleted, or dropped by a flag or as a retired class."""
    children: int
    """Nested batches."""
    open: bool
    """Whether a block ``jobs()`` has written a part of its jobs, and has not ended. Until then only a death is an event."""
    callback_queue: str
    created_at: float
    expires_at: float | None
    complete_at: float | None
    success_at: float | None
    death_at: float | None
    finished_at: float | None
    invalidated_at: float | None
    cancelled_at: float | None
    keeps_results: bool = False
    """Whether the results of its jobs are kept."""

    @property
    def complete(self) -> bool:
        """Whether every job has run (Sidekiq's ``complete?``)."""
        return self.complete_at is not None

    @property
    def succeeded(self) -> bool:
        """Whether every job has succeeded."""
        return self.success_at is not None

    @property
    def finished(self) -> bool:
        """Whether every job has ended, successfully or not."""
        return self.finished_at is not None


@dataclass(slots=True)
class BuiltCallback:
    """A callback with the shard of its class."""

    shard: str
    callback: Callback


@dataclass(slots=True)
class BatchFacts:
    """The properties of a batch, before and after its first write."""

    bid: str
    description: str = ""
    callback_queue: str = ""
    expires_in_s: int = 0
    shard: str | None = None
    """Its shard; ``None`` until its first job says it."""
    exists: bool = False
    """Whether it was written, or is known by its id."""
    left_open: bool = False
    """Whether a block has ended by an error after its first write. The next block of this object closes the batch."""
    parent: "BatchFacts | None" = None
    parent_block: "JobCollector | None" = None
    """The block that it was made in."""
    keeps_results: bool = False
    """Whether the results of its jobs are kept."""
    next_place: int = 0
    """The place of the last result, in the order of the pushes."""
    part: StepPart | None = None
    """The part of a workflow's step that the block writes."""
    callbacks: dict[BatchEventName, list[BuiltCallback]] = field(
        default_factory=dict[BatchEventName, list[BuiltCallback]]
    )
    """Callbacks that the first write stores."""


class JobCollector(Protocol):
    """Collect the pushes of one block, and write them with their counts."""

    @property
    def facts(self) -> BatchFacts:
        """Return the batch of the block."""
        ...

    @property
    def written(self) -> int:
        """Return how many jobs were written before the end of the block."""
        ...

    def push(self, request: PushRequest) -> Jid | None:
        """Collect a job; return its id, or ``None`` if a client middleware dropped it."""
        ...

    def push_bulk(self, request: BulkRequest) -> list[Jid | None]:
        """Collect many jobs; return the ids in the order of the arguments."""
        ...

    def begin_open(self, shard: str) -> None:
        """Create the batch before its jobs are written: a nested one is about to be."""
        ...

    def finish(self) -> None:
        """Write the remaining jobs; the events of the batch may happen from now on."""
        ...

    def abandon(self) -> None:
        """End by an error: nothing more is written, and a batch that the block has opened stays open."""
        ...


class KeptResult(NamedTuple):
    """The stored answer of a job of a batch."""

    jid: Jid
    place: int
    """Its place among the results of the batch."""
    answer: bytes


def kept_values(results: Iterable[KeptResult]) -> list[Any]:
    """Return the values of jobs of a batch. One that was discarded has none. Raises ResultRefusedError."""
    ends = ((jid, stored_end(answer)) for jid, _, answer in results)
    return [value_of("", jid, end) for jid, end in ends if end.word in ("done", "refused")]


class BatchPort(Protocol):
    """The batches of the client."""

    def block(self, facts: BatchFacts, autoflush: int) -> JobCollector:
        """Return the collector of one block."""
        ...

    def build_callback(self, facts: BatchFacts, event: BatchEventName, request: PushRequest) -> BuiltCallback | None:
        """Return a callback, checked as a push is; ``None`` if a client middleware dropped it."""
        ...

    def add_callback(self, facts: BatchFacts, event: BatchEventName, built: BuiltCallback) -> bool:
        """Add a callback to a batch that exists; return false if the event has happened."""
        ...

    def change(self, bid: str, action: BatchAction) -> None:
        """Invalidate, cancel or delete a batch."""
        ...

    def status(self, bid: str) -> BatchStatus:
        """Return the status of a batch."""
        ...

    def is_valid(self, bid: str) -> bool:
        """Return whether neither the batch nor one around it was invalidated."""
        ...

    def results(self, bid: str) -> Sequence[KeptResult]:
        """Return the answers of its jobs that have succeeded, in the order of their pushes. Raises BatchError."""
        ...

    def members(self, bid: str, kind: BatchMembers) -> Iterator[str]:
        """Yield the ids of its failed or dead jobs, or of its nested batches."""
        ...


BATCHES: Late[type[BatchPort]] = Late("framework.features.batches.batches:Batches")
"""The batches of the client, which serves them (``ClientPort.service``)."""
