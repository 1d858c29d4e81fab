"""Iterate the items of a job, and stop between two items: after the last, at a cancellation, or when the slot is needed.

The cursor of an item is noted before the item runs. It is saved at each ``flush_interval``, when the run stops, and when it fails. So
the next run begins with the item that was about to run, or that failed. Nothing here waits for Redis but the methods of
``IterationRun``, which an async job calls in a thread.
"""

import asyncio
import inspect
import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, aclosing, closing, nullcontext
from typing import Any, cast

from framework.declare.declaration import Declaration
from framework.declare.progress import JobProgress, StopReason
from framework.errors import IterationError
from framework.typeguards import short_repr
from framework.wire.iteration_state import CursorError, SavedIteration, decode_cursor, encode_cursor

_NOTHING: Any = object()
_PAIR_TYPES = (tuple, list)
_PAIR = 2


class IterationRun:
    """One run of an iterating job. Outside of a process (``perform_inline``, a unit test) nothing stores it or asks it to stop."""

    def __init__(self) -> None:
        self.stopped_by: StopReason | None = None
        """Why the run has ended; ``None`` while it goes on, and after the last item."""
        self.items = 0
        """The items of this run."""
        self.progress: JobProgress | None = None
        """The progress of the job; ``None`` until the run has begun."""
        self.max_runtime_s = math.inf
        """For how long a class without ``max_iteration_runtime`` iterates."""

    def begin(self) -> SavedIteration:
        """Begin the run, and return the stored state. Sets ``stopped_by`` if the job is cancelled or lost."""
        return SavedIteration()

    def stop_reason(self) -> StopReason | None:
        """Return whether the run is asked to stop. Waits for nothing."""
        return None

    def save(self, cursor: bytes, progress: JobProgress) -> StopReason | None:
        """Save the cursor; return whether the job turned out to be cancelled or lost. Waits until Redis answers, or a stop."""
        del cursor, progress
        return None

    def save_failed(self, cursor: bytes, progress: JobProgress) -> None:
        """Save the cursor of a run that has failed, if Redis takes it. Raises nothing."""

    def end(self) -> None: ...


class _Steps:
    """The steps of one run that sync and async jobs share."""

    def __init__(self, worker: Any, args: tuple[Any, ...]) -> None:
        declaration: Declaration = worker.declaration()
        self.worker = worker
        self.args = args
        self.name = declaration.wire_name
        self.run: IterationRun = worker._aw_iteration or IterationRun()
        self.item: Any = None
        self.flush_s = declaration.facts["flush_interval"].total_seconds()
        own = declaration.facts["max_iteration_runtime"]
        self.max_runtime_s = self.run.max_runtime_s if own is None else own.total_seconds()
        self.cursor: Any = None
        self.position: Any = _NOTHING
        self._wake_at = -math.inf
        self._save_at = self._yield_at = math.inf

    def begin(self) -> None:
        """Read where the last run stopped."""
        began = time.monotonic()
        saved = self.run.begin()
        self.progress = JobProgress(saved.done, saved.total, saved.runtime_s)
        try:
            self.cursor = decode_cursor(saved.cursor)
        except CursorError as error:
            raise IterationError(self.name, f"the stored cursor {error}. {_begin_again(self.worker)}") from None
        self.worker._aw_progress = self.run.progress = self.progress
        self.worker._aw_cursor = self.cursor
        self._save_at, self._yield_at = began + self.flush_s, began + self.max_runtime_s

    @property
    def has_not_begun(self) -> bool:
        """Whether the run ends before its hooks: the job is lost, or the process stops while Redis does not answer."""
        return self.run.stopped_by in ("lost", "stop")

    def build(self) -> Any:
        """Return what ``build_enumerator`` returns, which may have to be awaited."""
        return self.worker.build_enumerator(*self.args, cursor=self.cursor)

    def check(self, enumerator: Any, *kinds: str) -> Any:
        """Return the enumerator if it can be iterated. Raises IterationError."""
        if enumerator is None:
            reason = "build_enumerator returned None: return an iterator of (item, cursor), an empty list if there is no work"
            raise IterationError(self.name, reason, cursor=self.cursor)
        if not any(hasattr(enumerator, kind) for kind in kinds):
            fact = f"build_enumerator returned {short_repr(enumerator)}, which cannot be iterated"
            reason = f"{fact}: return an iterator of (item, cursor)"
            raise IterationError(self.name, reason, cursor=self.cursor)
        total, done = getattr(enumerator, "total", None), getattr(enumerator, "done", None)
        if type(total) is int and self.progress.total is None:
            self.progress.total = total
        # Ruby counts no items: those of its runs are known by the cursor alone.
        if type(done) is int:
            self.progress.done = max(self.progress.done, done)
        return enumerator

    def first_hook(self) -> str:
        """Return the hook that begins this run: a run without a saved cursor is the first."""
        return "on_start" if self.cursor is None else "on_resume"

    def call(self, hook: str) -> Any:
        """Call a hook, with the arguments of the job if it takes them; an async hook has to be awaited."""
        method = getattr(self.worker, hook)
        return method(*self.args) if hook in type(self.worker)._aw_hooks_with_arguments else method()

    def take(self, pair: Any) -> bool:
        """Note the next item; return whether ``must_stop`` is to be asked before it runs."""
        if not isinstance(pair, _PAIR_TYPES) or len(cast("list[Any]", pair)) != _PAIR:
            reason = f"the enumerator gave {short_repr(pair)}: each element must be a pair (item, cursor)"
            raise IterationError(self.name, reason, cursor=self.position)
        self.item, cursor = cast("tuple[Any, Any]", pair)
        first = self.position is _NOTHING
        self.worker._aw_cursor = self.position = cursor
        if first:
            # Before the item runs, so that a wrong cursor costs no work.
            self._encoded()
            self._wake_at = min(self._save_at, self._yield_at)
        return self.run.stop_reason() is not None or time.monotonic() >= self._wake_at

    def must_stop(self) -> bool:
        """Save the cursor if it is time or the run stops; return whether it stops. May wait for Redis."""
        now, reason = time.monotonic(), self.run.stop_reason()
        # Each run finishes one item at least.
        if reason is None and now >= self._yield_at and self.run.items:
            reason = "max_runtime"
        if reason is not None or now >= self._save_at:
            reason = self.run.save(self._encoded(), self.progress) or reason or self.run.stop_reason()
            self._save_at = time.monotonic() + self.flush_s
        self.run.stopped_by = reason
        self._wake_at = min(self._save_at, self._yield_at if self.run.items else math.inf)
        return reason is not None

    def count(self, before: int) -> None:
        """Count an item that has ended; ``before`` is what ``done`` was before it."""
        self.run.items += 1
        if self.progress.done == before:
            self.progress.done = before + 1
        if self.run.items == 1:
            self._wake_at = min(self._save_at, self._yield_at)

    def save_failure(self) -> None:
        """Save the cursor of the item that failed. Raises nothing."""
        if self.position is _NOTHING:
            return
        try:
            cursor = self._encoded()
        except IterationError:
            # It is the failure, or a second one: the last saved cursor stays.
            return
        self.run.save_failed(cursor, self.progress)

    def _encoded(self) -> bytes:
        try:
            return encode_cursor(self.position)
        except CursorError as error:
            reason = f"the cursor {short_repr(self.position)} {error}"
            raise IterationError(self.name, reason, cursor=self.position) from None

    def explain(self, error: BaseException) -> None:
        """Note the cursor on the error of a run that failed before its first item: another release may have written it.

        Raises IterationError in place of a CursorError.
        """
        if isinstance(error, CursorError):
            reason = f"the cursor {short_repr(self.cursor)} {error}. {_begin_again(self.worker)}"
            raise IterationError(self.name, reason, cursor=self.cursor) from error
        if self.position is _NOTHING and self.cursor is not None and not isinstance(error, IterationError):
            error.add_note(f"The job resumed at the cursor {short_repr(self.cursor)}. {_begin_again(self.worker)}")


def _begin_again(worker: Any) -> str:
    return (
        "If an earlier release wrote it in another form, let build_enumerator read that form too, or let the job begin again: "
        f"framework.admin.reset_iteration({worker.jid!r})"
    )


def iterate(worker: Any, args: tuple[Any, ...]) -> None:
    """Run the items of a sync job. Raises what its code raises, and IterationError."""
    steps = _Steps(worker, args)
    steps.begin()
    if steps.has_not_begun:
        return
    try:
        try:
            if steps.run.stopped_by is None:
                _run_items(steps)
            if steps.run.stopped_by == "cancelled":
                steps.call("on_cancel")
        finally:
            steps.call("on_stop")
        if steps.run.stopped_by is None:
            steps.call("on_complete")
    except BaseException as error:
        steps.save_failure()
        steps.explain(error)
        raise
    finally:
        steps.run.end()


def _run_items(steps: _Steps) -> None:
    enumerator = steps.check(steps.build(), "__iter__")
    pairs: Iterator[Any] = iter(enumerator)
    with _closing(pairs):
        steps.call(steps.first_hook())
        each, args, progress = steps.worker.each_iteration, steps.args, steps.progress
        for pair in pairs:
            if steps.take(pair) and steps.must_stop():
                return
            before = progress.done
            each(steps.item, *args)
            steps.count(before)


async def iterate_async(worker: Any, args: tuple[Any, ...]) -> None:
    """Run the items of an async job. Raises what its code raises, and IterationError."""
    steps = _Steps(worker, args)
    await asyncio.to_thread(steps.begin)
    if steps.has_not_begun:
        return
    try:
        try:
            try:
                if steps.run.stopped_by is None:
                    await _run_items_async(steps)
            except asyncio.CancelledError:
                # The task of a cancelled job is cancelled, too.
                if steps.run.stop_reason() != "cancelled":
                    raise
                steps.run.stopped_by = "cancelled"
            if steps.run.stopped_by == "cancelled":
                await _awaited(steps.call("on_cancel"))
        finally:
            await _awaited(steps.call("on_stop"))
        if steps.run.stopped_by is None:
            await _awaited(steps.call("on_complete"))
    except BaseException as error:
        await asyncio.to_thread(steps.save_failure)
        steps.explain(error)
        raise
    finally:
        steps.run.end()


async def _run_items_async(steps: _Steps) -> None:
    enumerator = steps.check(await _awaited(steps.build()), "__iter__", "__aiter__")
    pairs: AsyncIterator[Any] = aiter(enumerator) if hasattr(enumerator, "__aiter__") else _as_async(iter(enumerator))
    async with AsyncExitStack() as stack:
        if hasattr(pairs, "aclose"):
            await stack.enter_async_context(aclosing(cast("Any", pairs)))
        await _awaited(steps.call(steps.first_hook()))
        each, args, progress = steps.worker.each_iteration, steps.args, steps.progress
        async for pair in pairs:
            if steps.take(pair) and await asyncio.to_thread(steps.must_stop):
                return
            before = progress.done
            await _awaited(each(steps.item, *args))
            steps.count(before)


async def _as_async(pairs: Iterator[Any]) -> AsyncIterator[Any]:
    with _closing(pairs):
        for pair in pairs:
            yield pair


def _closing(pairs: Iterator[Any]) -> AbstractContextManager[Any]:
    """Return a block that closes a generator, whose files and connections must not wait for the garbage collection."""
    return closing(cast("Any", pairs)) if hasattr(pairs, "close") else nullcontext()


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result
