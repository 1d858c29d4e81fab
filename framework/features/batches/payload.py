"""Define what the payloads of a batch's jobs say, and let the end of a job count in its batch, in the step that ends the job."""

import secrets
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypeAlias

from framework.errors import PayloadError
from framework.typeguards import is_mapping
from framework.types import Jid, Payload
from framework.wire.answers import stored_end, value_of
from framework.wire.job import BID_PREFIX, bid_of
from framework.wire.json import dumps, loads
from framework.wire.waiters import JobEnd, Waiter

KEPT = "aw_kept"
"""Field of a job whose batch keeps the results of its jobs: its place among them, by which they are ordered."""

BatchEventName: TypeAlias = Literal["complete", "success", "death", "finished"]
"""Complete: every job has run. Success: all succeeded. Death: the first job died. Finished: every job has ended."""

EVENTS: tuple[BatchEventName, ...] = ("complete", "success", "death", "finished")

_KEPT_AT = "of"


def new_bid() -> str:
    return BID_PREFIX + secrets.token_urlsafe(9)


def answer_of_batch(answer: str, bid: str, place: int) -> str:
    """Return an answer that names the batch that keeps it, and its place there: a signature covers both."""
    return f"{answer[:-1]},{dumps({_KEPT_AT: [bid, place]}).decode()[1:]}"


def kept_at(answer: bytes) -> Any:
    """Return the batch and the place that an answer names, ``None`` for none."""
    try:
        fields: Any = loads(answer, None)
    except PayloadError:
        return None
    found: Any = fields.get(_KEPT_AT) if is_mapping(fields) else None
    return found


class Callback(NamedTuple):
    """A callback, ready to be enqueued: its queue, empty for a queue of another shard, and its payload without times."""

    queue: str
    payload: bytes

    def encode(self) -> list[str]:
        return [self.queue, self.payload.decode()]


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


class BatchPlace(NamedTuple):
    bid: str
    kept: int | None
    """The place of its result, if its batch keeps results; ``None`` for most jobs."""


class BatchWaiter(Waiter[BatchPlace]):
    """The batches of jobs. The Lua function is in ``scripts/parts/batch.lua``."""

    def read(self, payload: Payload) -> BatchPlace | None:
        bid, kept = bid_of(payload), payload.get(KEPT)
        return BatchPlace(bid, kept if type(kept) is int else None) if bid else None

    def wants_answer(self, value: BatchPlace) -> bool:
        return value.kept is not None

    def named(self, value: BatchPlace, answer: str) -> str:
        return answer if value.kept is None else answer_of_batch(answer, value.bid, value.kept)

    def told(self, value: BatchPlace, jid: Jid, end: JobEnd, answer: str) -> list[str]:
        told = [value.bid, jid, "removed" if end == "deleted" else end]
        return told if value.kept is None else [*told, answer, str(value.kept)]


WAITER: Waiter[BatchPlace] = BatchWaiter()
