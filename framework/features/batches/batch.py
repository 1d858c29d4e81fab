"""Define ``Batch``: jobs whose common end matters, with callbacks, which are jobs of their own."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

from framework.async_twin import async_twin
from framework.declare.request import P, Performs
from framework.declare.setter import CoreSetter
from framework.declare.validators import InvalidValue, queue
from framework.errors import BatchError
from framework.features.batches.calls import BatchFacts, as_setter, batches, collecting, current_block
from framework.features.batches.payload import EVENTS, BatchEventName, kept_values, new_bid
from framework.text import format_count
from framework.typeguards import is_text, short_repr
from framework.types import Jid
from framework.wire.job import BATCH_EVENT, bid_of, is_bid

if TYPE_CHECKING:
    from framework.features.batches.push import BatchBlock

AUTOFLUSH = 2_000
"""Jobs of a block that are written in one step."""

EXPIRES_IN = timedelta(days=30)
"""How long a batch is kept after its last change (Sidekiq Pro)."""

_MOST_AUTOFLUSH = 50_000


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


class Batch:
    """Jobs whose common end matters (Sidekiq Pro's Batch).

    ``Batch()`` is a new one, which is written by its first block ``with batch.jobs():``; ``Batch(bid)`` is one that exists. A new
    batch that is made inside of a block is nested in the batch of the block, which waits for it and for its callbacks.

    ``callback_queue`` is the queue of callbacks that name none themselves; without it their classes are routed as usual.
    ``expires_in`` is how long the batch is kept after the last change. A batch is stored on the shard of its
    jobs, which must all be of one shard: only a batch without jobs needs ``shard``. With ``keep_results`` the results of its jobs
    are kept for its callbacks (``results``): at most 256 KiB each and 16 MiB together.

    Raises:
        TypeError, ValueError: an argument is invalid.
    """

    def __init__(
        self,
        bid: str | None = None,
        *,
        description: str = "",
        callback_queue: str | None = None,
        expires_in: timedelta | float = EXPIRES_IN,
        shard: str | None = None,
        keep_results: bool = False,
    ) -> None:
        if bid is not None:
            given = description or callback_queue is not None or expires_in != EXPIRES_IN or shard is not None
            if given or keep_results:
                raise TypeError("Batch(bid) is a batch that exists, and takes no other argument")
            self._facts = BatchFacts(_check_bid(bid), exists=True)
            return
        block = current_block.get()
        self._facts = BatchFacts(
            new_bid(),
            check_text("description", description),
            "" if callback_queue is None else _check_queue(callback_queue),
            check_expiry(expires_in),
            shard,
            keeps_results=keep_results,
        )
        if block is not None:
            self._facts.parent, self._facts.parent_block = block.facts, block

    @property
    def bid(self) -> str:
        """Its id."""
        return self._facts.bid

    def __repr__(self) -> str:
        return f"Batch({self.bid!r})"

    def on_complete(self, callback: type[Performs[P]] | CoreSetter[P], *args: P.args, **kwargs: P.kwargs) -> None:
        """Enqueue a job of this class when every job of the batch has run, successfully or not.

        ``callback`` is a worker class, or ``Worker.set(...)``. The errors are those of ``perform_async``.

        Raises:
            BatchError: the event has happened already, or the callback of a nested batch is of another shard.
            UnknownBatchError: the batch was deleted, or has expired.
        """
        self._on("complete", callback, *args, **kwargs)

    def on_success(self, callback: type[Performs[P]] | CoreSetter[P], *args: P.args, **kwargs: P.kwargs) -> None:
        """Enqueue a job of this class when all jobs of the batch have succeeded; never after ``cancel``. As ``on_complete``."""
        self._on("success", callback, *args, **kwargs)

    def on_death(self, callback: type[Performs[P]] | CoreSetter[P], *args: P.args, **kwargs: P.kwargs) -> None:
        """Enqueue a job of this class when the first job of the batch dies. Otherwise as ``on_complete``."""
        self._on("death", callback, *args, **kwargs)

    def on_finished(self, callback: type[Performs[P]] | CoreSetter[P], *args: P.args, **kwargs: P.kwargs) -> None:
        """Enqueue a job of this class when every job of the batch has ended: succeeded, died or removed. As ``on_complete``."""
        self._on("finished", callback, *args, **kwargs)

    def jobs(self, *, autoflush: int = AUTOFLUSH) -> "JobsBlock":
        """Return a block, ``with`` or ``async with``, whose pushes are jobs of the batch.

        They are written when the block ends, in one step: all with their counts, or none, as after an error in the block. More
        than ``autoflush`` jobs are written in steps of ``autoflush``, and the events of the batch wait for the last step.

        Raises (at the end of the block, or in a push of it):
            BatchError: a job belongs to another shard, or the batch has succeeded.
            BatchCancelledError: the batch was cancelled. In a job this is no failure: the job ends as cancelled.
            UnknownBatchError: the batch was deleted, or has expired.
            BacklogFullError: a class with ``max_waiting`` has no room for all of its jobs, or is held back.
            ShardUnavailableError: Redis does not answer or refuses the write.
        """
        return JobsBlock(self._facts, _check_autoflush(autoflush))

    @property
    def status(self) -> BatchStatus:
        """The status of the batch, read now.

        Raises:
            UnknownBatchError: the batch has no jobs yet, was deleted, or has expired.
            ShardUnavailableError: Redis does not answer.
        """
        return batches().status(self.bid)

    async def astatus(self) -> BatchStatus:
        """Return ``status`` without blocking the event loop, with its errors."""
        return await asyncio.to_thread(lambda: self.status)

    @property
    def valid(self) -> bool:
        """Whether neither the batch nor one around it was invalidated or cancelled (Sidekiq's ``valid_within_batch?``).

        A job asks at its start, and returns if it is false: it then counts as succeeded. A batch that is unknown is not valid. Each
        read is a round trip. Raises ShardUnavailableError.
        """
        return batches().is_valid(self.bid)

    async def avalid(self) -> bool:
        """Return ``valid`` without blocking the event loop, with its errors."""
        return await asyncio.to_thread(lambda: self.valid)

    def invalidate(self) -> None:
        """Tell the jobs that ask (``self.batch.valid``) that they need not run (Sidekiq's ``invalidate_all``). Ends no job.

        Raises:
            UnknownBatchError: the batch has no jobs yet, was deleted, or has expired.
            ShardUnavailableError: Redis does not answer.
        """
        batches().change(self.bid, "invalidate")

    def cancel(self) -> None:
        """Cancel every job of the batch and of the nested ones: none begins later than five seconds after this call.

        A job that waits ends without running: in a queue when its turn comes, in the schedule set when it is due.
        ``self.cancelled`` of a running job becomes true within five seconds. The events ``complete`` and ``finished`` happen when
        all have ended; ``success`` never happens. From this call on the batch takes no jobs (``BatchCancelledError``). If it is a
        step of a workflow, the workflow is cancelled. A batch that has succeeded stays as it is. Raises as ``invalidate``.
        """
        batches().change(self.bid, "cancel")

    def delete(self) -> None:
        """Delete the state of the batch: its jobs stay, and no event happens any more. Its parent does not wait for it any more.

        Raises as ``invalidate``.
        """
        batches().change(self.bid, "delete")

    def results(self) -> list[Any]:
        """Return what the jobs that have succeeded have returned, in the order of their pushes.

        A callback reads those of its batch: ``self.batch_event.batch.results()``. A job that was discarded or dropped has none.

        Raises:
            BatchError: the batch was made without ``keep_results``, or the results have more than 16 MiB.
            ResultRefusedError: a job has returned what is not JSON, or has more than 256 KiB.
            UnknownBatchError: the batch was deleted, or has expired: a day after its success.
            ShardUnavailableError: Redis does not answer.
        """
        return kept_values(batches().results(self.bid))

    def failed_jids(self) -> Iterator[Jid]:
        """Yield the ids of its jobs that failed in their last run: those that will be retried, and the dead ones."""
        yield from batches().members(self.bid, "failed")
        yield from self.dead_jids()

    def dead_jids(self) -> Iterator[Jid]:
        """Yield the ids of its jobs that died."""
        yield from batches().members(self.bid, "dead")

    def children(self) -> "Iterator[Batch]":
        """Yield the batches that are nested in it."""
        for bid in batches().members(self.bid, "children"):
            yield Batch(bid)

    aresults = async_twin(results)
    ainvalidate = async_twin(invalidate)
    acancel = async_twin(cancel)
    adelete = async_twin(delete)

    def _on(
        self,
        event: BatchEventName,
        callback: type[Performs[P]] | CoreSetter[P],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        setter = cast("CoreSetter[P]", _check_callback(event, callback))
        service, facts = batches(), self._facts
        built = service.build_callback(facts, event, setter.request(*args, **kwargs))
        if built is None:
            return
        if not facts.exists:
            facts.callbacks.setdefault(event, []).append(built)
        elif not service.add_callback(facts, event, built):
            raise BatchError(
                self.bid,
                f"the event {event} has happened already, so on_{event} has no effect: add it before the jobs",
            )


class JobsBlock(AbstractContextManager["JobsBlock"]):
    """A block of pushes to a batch; see ``Batch.jobs``. May be entered once."""

    def __init__(self, facts: BatchFacts, autoflush: int) -> None:
        self._facts = facts
        self._autoflush = autoflush
        self._stack = ExitStack()
        self._block: BatchBlock | None = None

    def __enter__(self) -> Self:
        if self._block is not None:
            raise BatchError(self._facts.bid, "this block was entered before; call jobs() again")
        self._block = batches().block(self._facts, self._autoflush)
        self._stack.enter_context(collecting(self._block))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
        if error is None:
            self._finish()
        else:
            self._note(error)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
        if error is None:
            await asyncio.to_thread(self._finish)
        else:
            self._note(error)

    def _finish(self) -> None:
        assert self._block is not None, "the block was entered"  # noqa: S101
        try:
            self._block.finish()
        except BaseException as error:
            self._note(error)
            raise

    def _note(self, error: BaseException) -> None:
        assert self._block is not None, "the block was entered"  # noqa: S101
        self._block.abandon()
        if self._facts.left_open:
            error.add_note(
                f"(batch {self._facts.bid}: {format_count(self._block.written, 'job', 'is')} written of the block, and the batch "
                "stays open: its events do not happen. Cancel it, or write the other jobs in another block jobs() of this object.)"
            )


class BatchEvent(NamedTuple):
    """Why a callback runs: the event, and the batch that it happened to."""

    name: BatchEventName
    batch: Batch


def batch_of(job: dict[str, object] | None) -> Batch | None:
    bid = bid_of(job)
    return Batch(bid) if bid else None


def event_of(job: dict[str, object] | None) -> BatchEvent | None:
    """Return the event that enqueued a callback, ``None`` for any other job."""
    match (job or {}).get(BATCH_EVENT):
        case [str(bid), str(name)] if is_bid(bid) and name in EVENTS:
            return BatchEvent(name, Batch(bid))
        case _:
            return None


def _check_bid(bid: object) -> str:
    if not is_bid(bid):
        raise ValueError(
            f"Batch({short_repr(bid)}): this is no id of a batch of this framework; use batch.bid, such as 'aw-1gE2oQJ4xZ0a'"
        )
    return str(bid)


def check_text(name: str, text: object) -> str:
    """Return an argument that is a text. Raises TypeError, and ValueError for half of a surrogate pair."""
    if not isinstance(text, str):
        raise TypeError(f"{name}={short_repr(text)}: give a str")
    if not is_text(text):
        raise ValueError(f"{name}={short_repr(text)} is not Unicode text: decode it with errors='replace'")
    return text


def _check_autoflush(count: object) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST_AUTOFLUSH:
        raise ValueError(f"autoflush={short_repr(count)}: give a number from 1 to {_MOST_AUTOFLUSH:,}")
    return count


def _check_callback(event: str, callback: object) -> CoreSetter[Any]:
    setter = as_setter(callback)
    if setter is None:
        raise TypeError(f"on_{event}({short_repr(callback)}): give a worker class, or Worker.set(...)")
    return setter


def _check_queue(name: object) -> str:
    try:
        return str(queue(name))
    except InvalidValue as error:
        raise ValueError(f"callback_queue={short_repr(name)}. Allowed: {error}") from None


def check_expiry(expires_in: object) -> int:
    """Return the seconds of an argument ``expires_in``. Raises ValueError."""
    seconds = expires_in.total_seconds() if isinstance(expires_in, timedelta) else expires_in
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 60 <= seconds <= 10 * 365 * 86_400:
        raise ValueError(
            f"expires_in={short_repr(expires_in)}: give a timedelta or seconds, from a minute to ten years"
        )
    return ceil(seconds)
