"""Let the end of a job count in its batch, in the step that ends the job."""

from typing import NamedTuple

from framework.types import Jid, Payload
from framework.wire.batch_fields import KEPT, answer_of_batch, bid_of
from framework.wire.waiters import JobEnd, Waiter


class BatchPlace(NamedTuple):
    """The batch of a job."""

    bid: str
    kept: int | None
    """The place of its result, if its batch keeps results; ``None`` for most jobs."""


class BatchWaiter(Waiter[BatchPlace]):
    """The batches of jobs. The Lua function is in ``scripts/parts/batch.lua``."""

    def read(self, payload: Payload) -> BatchPlace | None:
        """Return the batch; ``None`` for one of another program (Sidekiq Pro)."""
        bid, kept = bid_of(payload), payload.get(KEPT)
        return BatchPlace(bid, kept if type(kept) is int else None) if bid else None

    def wants_answer(self, value: BatchPlace) -> bool:
        """Return whether the batch keeps the results of its jobs."""
        return value.kept is not None

    def named(self, value: BatchPlace, answer: str) -> str:
        """Return the answer with the batch that keeps it, and its place there."""
        return answer if value.kept is None else answer_of_batch(answer, value.bid, value.kept)

    def told(self, value: BatchPlace, jid: Jid, end: JobEnd, answer: str) -> list[str]:
        """Return the arguments of ``release_batch``."""
        told = [value.bid, jid, end]
        return told if value.kept is None else [*told, answer, str(value.kept)]


WAITER: Waiter[BatchPlace] = BatchWaiter()
