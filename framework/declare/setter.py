"""Push jobs with options (``Worker.set(...)``), or without options for the methods of the class."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, Never, Self, TypeVar

from framework.call_threads import CallThreads
from framework.declare import port
from framework.declare.declaration import Declaration
from framework.declare.misuse import add_foreign_methods
from framework.declare.options import (
    Moment,
    bulk_schedule,
    check_context,
    check_options,
    due_at,
    linking_options,
    spread_schedule,
    times_schedule,
)
from framework.declare.pushed import not_awaitable, running_loop
from framework.declare.request import (
    BulkPacing,
    BulkRequest,
    BulkStream,
    DueTime,
    JobRequest,
    JobTimes,
    P,
    Performs,
    PushRequest,
    RandomSpread,
)
from framework.declare.validators import InvalidValue
from framework.errors import ArgumentsError
from framework.process_clock import process_clock
from framework.text import format_count, with_article
from framework.types import Jid, Json

T = TypeVar("T")
R = TypeVar("R")


class CoreSetter(Generic[P]):
    """Push jobs of one worker class with options."""

    __slots__ = ("_declaration", "_options", "_worker")

    def __init__(self, worker: type[Any], declaration: Declaration, options: Mapping[str, Any]) -> None:
        self._worker = worker
        self._declaration = declaration
        self._options = options

    @property
    def declaration(self) -> Declaration:
        return self._declaration

    @property
    def options(self) -> Mapping[str, Any]:
        return self._options

    def _with(self, options: Mapping[str, Any]) -> Self:
        """Return a setter with these options in addition. Raises ArgumentsError."""
        checked = check_options(self._declaration.qualified_name, options)
        return type(self)(self._worker, self._declaration, {**self._options, **checked})

    def perform_async(self, *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        """Push the job; return its id, or None when it was dropped.

        With ``sync`` the job runs here instead, as with ``perform_inline``, and its exception is raised.

        Raises:
            PushError: the job could not be written.
        """
        return self._push(None, args, kwargs)

    def perform_in(self, delay: timedelta | float, /, *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        """Push the job, due after ``delay`` by Redis's clock.

        Raises:
            PushError: the job could not be written.
        """
        return self._push(self._due(delay), args, kwargs)

    def perform_at(self, when: datetime | float, /, *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        """Push the job, due at ``when``.

        Raises:
            PushError: the job could not be written.
        """
        return self._push(self._due(when), args, kwargs)

    def perform_bulk(
        self,
        jobs: Iterable[Sequence[Any]],
        /,
        *,
        at: Moment | Iterable[Moment] | None = None,
        spread_interval: timedelta | float | None = None,
    ) -> list[Jid | None]:
        """Push one job per tuple of arguments; return the ids in the same order.

        ``at`` is the time of all jobs, or an iterable with the time of each. With ``spread_interval`` each job is due at a random
        time within it. With ``sync`` the jobs run here instead, one after the other. The first exception is raised, and later
        jobs do not run.

        Raises:
            BulkPushError: a chunk failed.
        """
        if at is not None and not isinstance(at, datetime | timedelta | int | float):
            jobs, at = list(jobs), list(at)
            self._check_times(len(jobs), len(at))
        return self._push_bulk(jobs, *self._times_of_bulk(at, spread_interval))

    def perform_bulk_stream(
        self, jobs: Iterable[Sequence[Any]], /, *, spread_interval: timedelta | float | None = None
    ) -> int:
        """Push the jobs of an iterator as they come, 1,000 at a time; return the number of written jobs.

        Raises:
            BulkPushError: a chunk failed.
        """
        return self._push_stream(self._stream(jobs, spread_interval))

    def perform_bulk_in(
        self,
        delay: timedelta | float,
        jobs: Iterable[Sequence[Any]],
        /,
        *,
        batch_size: int | None = None,
        batch_delay: timedelta | float | None = None,
    ) -> list[Jid | None]:
        """Push like ``perform_bulk``, due after ``delay``; with the other two, ``batch_size`` jobs every ``batch_delay``."""
        return self._push_bulk(jobs, *self._bulk_schedule(delay, batch_size, batch_delay))

    def perform_bulk_for(
        self,
        objects: Iterable[T],
        *,
        arguments: Callable[[T], JobRequest[P]],
        context: Callable[[T], Mapping[str, Json]] | None = None,
        delay: timedelta | float | None = None,
        batch_size: int | None = None,
        batch_delay: timedelta | float | None = None,
        at: Callable[[T], Moment] | None = None,
        spread_interval: timedelta | float | None = None,
    ) -> list[Jid | None]:
        """Push one job per object: ``arguments`` returns ``Worker.arguments(...)``, ``context`` the job's ``meta.*`` fields.

        With a ``delay`` the jobs are due later, as in ``perform_bulk_in``; ``at`` returns the time of each job.
        """
        is_paced = delay is not None or batch_size is not None or batch_delay is not None
        if is_paced and (at is not None or spread_interval is not None):
            self._refuse_times(
                "at and spread_interval exclude delay, batch_size and batch_delay; give the one or the other"
            )
        due: DueTime | None = None
        pace: BulkPacing | RandomSpread | JobTimes | None = None
        if is_paced:
            due, pace = self._bulk_schedule(0 if delay is None else delay, batch_size, batch_delay)
        args: list[list[Any]] = []
        times: list[Moment] = []
        contexts: list[Mapping[str, Json]] | None = None if context is None else []
        for index, item in enumerate(objects):
            request = _call_with_index_note(index, arguments, item)
            self._check_same_worker(index, request)
            args.append(request.args)
            if context is not None and contexts is not None:
                contexts.append(self._checked_context(index, _call_with_index_note(index, context, item)))
            if at is not None:
                times.append(_call_with_index_note(index, at, item))
        if not is_paced:
            due, pace = self._times_of_bulk(None if at is None else times, spread_interval)
        return self._push_bulk(args, due, pace, contexts)

    def perform_inline(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Run the job in this process, through both middleware chains. Its exception reaches the caller."""
        self._run_inline(self._declaration.signature.bind(args, kwargs), self._options)

    async def aperform_async(self, *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        """Push as ``perform_async``, while the event loop goes on. A push whose task is cancelled may have been made."""
        return await self._in_thread(partial(self.perform_async, *args, **kwargs))

    async def aperform_in(self, delay: timedelta | float, /, *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        """Push as ``perform_in``, while the event loop goes on."""
        return await self._in_thread(partial(self.perform_in, delay, *args, **kwargs))

    async def aperform_at(self, when: datetime | float, /, *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        """Push as ``perform_at``, while the event loop goes on."""
        return await self._in_thread(partial(self.perform_at, when, *args, **kwargs))

    async def aperform_bulk(
        self,
        jobs: Iterable[Sequence[Any]],
        /,
        *,
        at: Moment | Iterable[Moment] | None = None,
        spread_interval: timedelta | float | None = None,
    ) -> list[Jid | None]:
        """Push as ``perform_bulk``, while the event loop goes on. The iterables are read in another thread."""
        push = partial(self.perform_bulk, jobs, at=at, spread_interval=spread_interval)
        return await self._in_thread(push, is_bulk=True)

    async def aperform_bulk_stream(
        self, jobs: Iterable[Sequence[Any]], /, *, spread_interval: timedelta | float | None = None
    ) -> int:
        """Push as ``perform_bulk_stream``, while the event loop goes on. Cancelled, it ends after the chunk in progress."""
        stream = self._stream(jobs, spread_interval)
        try:
            return await self._in_thread(partial(self._push_stream, stream), is_bulk=True)
        finally:
            stream.stop()

    async def aperform_bulk_in(
        self,
        delay: timedelta | float,
        jobs: Iterable[Sequence[Any]],
        /,
        *,
        batch_size: int | None = None,
        batch_delay: timedelta | float | None = None,
    ) -> list[Jid | None]:
        """Push as ``perform_bulk_in``, while the event loop goes on."""
        push = partial(self.perform_bulk_in, delay, jobs, batch_size=batch_size, batch_delay=batch_delay)
        return await self._in_thread(push, is_bulk=True)

    async def aperform_bulk_for(
        self,
        objects: Iterable[T],
        *,
        arguments: Callable[[T], JobRequest[P]],
        context: Callable[[T], Mapping[str, Json]] | None = None,
        delay: timedelta | float | None = None,
        batch_size: int | None = None,
        batch_delay: timedelta | float | None = None,
        at: Callable[[T], Moment] | None = None,
        spread_interval: timedelta | float | None = None,
    ) -> list[Jid | None]:
        """Push as ``perform_bulk_for``, while the event loop goes on. The functions are called in another thread."""
        push = partial(
            self.perform_bulk_for,
            objects,
            arguments=arguments,
            context=context,
            delay=delay,
            batch_size=batch_size,
            batch_delay=batch_delay,
            at=at,
            spread_interval=spread_interval,
        )
        return await self._in_thread(push, is_bulk=True)

    def request(self, *args: P.args, **kwargs: P.kwargs) -> PushRequest:
        """Return the request of one push, checked like a call of ``perform``, without pushing.

        Raises:
            ArgumentsError: the arguments do not fit ``perform``.
        """
        return PushRequest(self._declaration, self._declaration.signature.bind(args, kwargs), None, self._options)

    async def _in_thread(self, push: Callable[[], R], *, is_bulk: bool = False) -> R:
        """Call ``push`` in a thread of the shard; one that runs jobs here, in a thread of the event loop."""
        if self._options.get("sync"):
            return await asyncio.to_thread(push)
        return await run_in_thread(self._declaration, self._options, push, is_bulk=is_bulk)

    def _push(self, due: DueTime | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Jid | None:
        bound, options = self._declaration.signature.bind(args, kwargs), self._options
        if options and options.get("sync"):
            jid = self._run_inline(bound, options)
        elif options and not linking_options.isdisjoint(options):
            jid = self._push_linked(PushRequest(self._declaration, bound, due))
        else:
            # Not current(): that is a call, and every push comes through here.
            client = port.client.bound or port.current()
            jid = client.push(PushRequest(self._declaration, bound, due, options))
        return jid if running_loop() is None else not_awaitable(self._declaration.qualified_name, jid)

    def _push_linked(self, request: PushRequest) -> Jid | None:
        """Push a job, and carry out the options of ``linking_options``. The feature that declares them has the method."""
        raise NotImplementedError

    def _push_bulk(
        self,
        args: Iterable[Any],
        due: DueTime | None = None,
        pacing: BulkPacing | RandomSpread | JobTimes | None = None,
        contexts: list[Mapping[str, Json]] | None = None,
        start: int = 0,
    ) -> list[Jid | None]:
        request = BulkRequest(self._declaration, args, due, self._options, contexts, pacing, start)
        if self._options.get("sync"):
            jids = port.current().perform_bulk_inline(self._worker, request)
        else:
            jids = port.current().push_bulk(request)
        return jids if running_loop() is None else not_awaitable(self._declaration.qualified_name, jids)

    def _stream(self, jobs: Iterable[Sequence[Any]], spread_interval: timedelta | float | None) -> BulkStream:
        # Checked before the first job is read.
        self._times_of_bulk(None, spread_interval)

        def push_chunk(chunk: Sequence[Any], start: int) -> list[Jid | None]:
            # A spread begins with each chunk: the last one may be read an hour after the first.
            return self._push_bulk(chunk, *self._times_of_bulk(None, spread_interval), start=start)

        return BulkStream(jobs, push_chunk)

    def _push_stream(self, stream: BulkStream) -> int:
        count = stream.run()
        return count if running_loop() is None else not_awaitable(self._declaration.qualified_name, count)

    def _run_inline(self, args: list[Any], options: Mapping[str, Any]) -> Jid | None:
        return port.current().perform_inline(self._worker, PushRequest(self._declaration, args, None, options))

    def _due(self, when: object) -> DueTime | None:
        self._reject_delay_with_sync()
        return due_at(self._declaration.qualified_name, when, process_clock.now())

    def _bulk_schedule(
        self, delay: object, batch_size: int | None, batch_delay: timedelta | float | None
    ) -> tuple[DueTime | None, BulkPacing | None]:
        self._reject_delay_with_sync()
        return bulk_schedule(self._declaration.qualified_name, delay, batch_size, batch_delay, process_clock.now())

    def _times_of_bulk(
        self, at: Moment | list[Moment] | None, spread_interval: timedelta | float | None
    ) -> tuple[DueTime | None, RandomSpread | JobTimes | None]:
        if at is None and spread_interval is None:
            return None, None
        if at is not None and spread_interval is not None:
            self._refuse_times("at and spread_interval exclude each other; give one of them")
        self._reject_delay_with_sync()
        name = self._declaration.qualified_name
        if isinstance(at, list):
            return times_schedule(name, at, process_clock.now())
        if at is not None:
            return due_at(name, at, process_clock.now()), None
        return spread_schedule(name, spread_interval, process_clock.now())

    def _check_times(self, jobs: int, times: int) -> None:
        if jobs != times:
            self._refuse_times(
                f"at has {format_count(times, 'time')} for {format_count(jobs, 'job')}; give one for each job"
            )

    def _refuse_times(self, reason: str) -> Never:
        raise ArgumentsError(self._declaration.qualified_name, reason)

    def _reject_delay_with_sync(self) -> None:
        if self._options.get("sync"):
            reason = (
                "set(sync=True) runs the job here and now, and it cannot wait; leave out sync, or use perform_async"
            )
            raise ArgumentsError(self._declaration.qualified_name, reason)

    def _checked_context(self, index: int, facts: object) -> Mapping[str, Json]:
        try:
            return check_context(facts)
        except InvalidValue as error:
            reason = f"context(...) of job {index} is not allowed. Allowed: {error}"
            raise ArgumentsError(self._declaration.qualified_name, reason) from None

    def _check_same_worker(self, index: int, request: object) -> None:
        # Compared by identity: two workers with equal signatures look alike to a type checker.
        if not isinstance(request, JobRequest):
            reason = f"arguments(...) of job {index} gave {with_article(type(request).__name__)}; return Worker.arguments(...)"
            raise ArgumentsError(self._declaration.qualified_name, reason)
        if request.declaration.qualified_name != self._declaration.qualified_name:
            owner, other = self._declaration, request.declaration.qualified_name
            reason = f"arguments(...) of job {index} made a job of {other}; call {owner.class_name}.arguments"
            raise ArgumentsError(self._declaration.qualified_name, reason)


add_foreign_methods(CoreSetter, "method")


def setter_of(worker: type[Performs[P]]) -> CoreSetter[P]:
    """Return the setter without options of a worker class. Raises DeclarationError for an abstract class."""
    cls: Any = worker
    made: CoreSetter[P] | None = cls._aw_setter
    # An abstract class has no declaration either, and says so.
    return cls.declaration() if made is None else made


def declaration_of(worker: type[Any] | CoreSetter[...]) -> Declaration:
    """Return the declaration of a worker class, of ``Worker.set(...)``, or of a function that is registered as a job."""
    found: Declaration = worker.declaration if isinstance(worker, CoreSetter) else worker.declaration()
    return found


def _call_with_index_note(index: int, make: Callable[[T], R], item: T) -> R:
    """Call the function for one object. Its exception reaches the caller with a note that names the index of the job."""
    try:
        return make(item)
    except Exception as error:
        error.add_note(f"(for job {index} of the bulk; nothing was written)")
        raise


# Each shard has its own threads: a silent shard stops no push to another.
_MAX_THREADS, _MAX_BULK_THREADS = 12, 4
"""Together as many as a shard keeps idle connections: no thread needs a connection for one push only."""

# A single push never waits behind a bulk. The first push of the process builds the client, which takes some 100 ms.
_building = CallThreads(1)
_threads: dict[tuple[str, bool], CallThreads] = {}


# An awaited push is a push in a thread of its shard: the same code, and no second client to prove.
async def run_in_thread(
    declaration: Declaration, options: Mapping[str, Any], push: Callable[[], R], *, is_bulk: bool
) -> R:
    """Call ``push`` in a thread of the shard of the class with these options; return its result or raise its error.

    The shard of a job of a class with several is found in the thread, so such classes have threads of their own.
    """
    client = port.client.bound
    if client is None:
        client = await _building.run(port.current)
    shard = options.get("shard") or str(declaration.several_shards or client.route(declaration).shard)
    threads = _threads.get((shard, is_bulk))
    if threads is None:
        made = CallThreads(_MAX_BULK_THREADS if is_bulk else _MAX_THREADS)
        # Two event loops may ask at once: both use the threads that are in the dict.
        threads = _threads.setdefault((shard, is_bulk), made)
    return await threads.run(push)
