"""Call jobs: push one, and wait for what its ``perform`` returns; read the result of a job by its id."""

import asyncio
import time
from collections.abc import Coroutine, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, overload

from framework.declare import port, validators
from framework.declare.declaration import Declaration
from framework.declare.policy_options import Deduplicate
from framework.declare.pushed import running_loop
from framework.declare.request import NO_OPTIONS, P, PushRequest
from framework.declare.setter import run_in_thread
from framework.declare.validators import InvalidValue
from framework.errors import (
    ArgumentsError,
    MisuseError,
    ResultExpiredError,
    ResultTimeoutError,
    UnknownResultError,
)
from framework.feature import Late
from framework.features.results.payload import MAX_TTL_S, RESULT, result_request, state_ttl_s
from framework.typeguards import short_repr
from framework.types import Jid
from framework.wire.answers import CallEnd, stored_end, value_of
from framework.wire.job import check_jid

if TYPE_CHECKING:
    from framework.features.results.store import JobResults

# Late: a class of workers has calls, and most programs make none.
RESULTS: "Late[type[JobResults]]" = Late("framework.features.results.store:JobResults")

R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

RESULT_TTL_S = 3_600
"""For how long an answer is kept, unless ``set(result_ttl=...)`` says otherwise."""

WAIT_S = 60.0
"""For how long a caller waits, unless it says otherwise."""


class Returns(Protocol[P, R_co]):
    """Represent a worker whose ``perform`` takes P and returns R. Type checkers compare calls with it."""

    def perform(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class JobCall(Generic[R]):
    """A job that was called. Its result is what ``perform`` returns, as JSON brings it back."""

    def __init__(self, worker: str, jid: Jid | None, request: PushRequest) -> None:
        self.worker = worker
        self.jid = jid
        """The id of the job; ``None`` if deduplication or a client middleware dropped it."""
        self._request = request
        self._end: CallEnd | None = None if jid is not None else CallEnd("dropped", reason="it was dropped at its push")

    def result(self, timeout: timedelta | float = WAIT_S) -> R:
        """Return the result of the job, after a wait of at most ``timeout``. A job that waits for its retry is waited for.

        Raises:
            JobEndedError: the job has ended without a result; its subclasses say how.
            ResultTimeoutError: it has not ended in time. It may still end; call this again.
        """
        if self._end is None:
            if running_loop() is not None:
                raise MisuseError(
                    self.worker, "result() would stop the event loop: write await call, or await call.aresult()"
                )
            seconds, results = seconds_of(self.worker, timeout), port.current().service(RESULTS)
            future = results.watch(self._known_jid, self._request)
            try:
                self._end = stored_end(future.result(seconds))
            except FutureTimeoutError as error:
                raise ResultTimeoutError(self.worker, self._known_jid, seconds) from error
            finally:
                results.leave(self._known_jid, future)
        return self._value(self._end)

    async def aresult(self, timeout: timedelta | float = WAIT_S) -> R:  # noqa: ASYNC109
        """Return the result as ``result``, while the event loop goes on. ``await call`` is the same. It may be cancelled."""
        if self._end is None:
            seconds, results = seconds_of(self.worker, timeout), port.current().service(RESULTS)
            future = await _watched(results, self._known_jid, self._request)
            try:
                self._end = stored_end(await asyncio.wait_for(_in_loop(future), seconds))
            except TimeoutError as error:
                raise ResultTimeoutError(self.worker, self._known_jid, seconds) from error
            finally:
                results.leave(self._known_jid, future)
        return self._value(self._end)

    def __await__(self) -> Generator[Any, None, R]:
        return self.aresult().__await__()

    @property
    def _known_jid(self) -> Jid:
        assert self.jid is not None, "a dropped job has ended"  # noqa: S101
        return self.jid

    def _value(self, end: CallEnd) -> R:
        return cast("R", value_of(self.worker, self.jid, end))


class ResultCalls:
    """The calls of a worker class."""

    @overload
    @classmethod
    def call(cls: type[Returns[P, Coroutine[Any, Any, R]]], *args: P.args, **kwargs: P.kwargs) -> JobCall[R]: ...
    @overload
    @classmethod
    def call(cls: type[Returns[P, R]], *args: P.args, **kwargs: P.kwargs) -> JobCall[R]: ...
    @classmethod
    def call(cls: type[Returns[P, Any]], *args: P.args, **kwargs: P.kwargs) -> JobCall[Any]:
        """Push the job; return an object whose ``result()`` waits for what ``perform`` returns.

        Raises:
            ArgumentsError: as ``perform_async``; or the class declares ``encrypt``, and results are not encrypted; or it debounces or
                accumulates its pushes, so that one job runs for several.
            ExceedLimitError, ShardUnavailableError: as ``perform_async``.
        """
        return push_call(_declaration_of(cls), NO_OPTIONS, args, kwargs)

    @overload
    @classmethod
    async def acall(cls: type[Returns[P, Coroutine[Any, Any, R]]], *args: P.args, **kwargs: P.kwargs) -> JobCall[R]: ...
    @overload
    @classmethod
    async def acall(cls: type[Returns[P, R]], *args: P.args, **kwargs: P.kwargs) -> JobCall[R]: ...
    @classmethod
    async def acall(cls: type[Returns[P, Any]], *args: P.args, **kwargs: P.kwargs) -> JobCall[Any]:
        """Push as ``call``, while the event loop goes on; ``await`` the returned object for the result."""
        return await apush_call(_declaration_of(cls), NO_OPTIONS, args, kwargs)


class SetterCalls(Generic[P]):
    __slots__ = ()

    if TYPE_CHECKING:
        _declaration: Declaration
        _options: Mapping[str, Any]

    def call(self, *args: P.args, **kwargs: P.kwargs) -> JobCall[Any]:
        """Push the job; ``result()`` of the returned object waits for what ``perform`` returns."""
        return push_call(self._declaration, self._options, args, kwargs)

    async def acall(self, *args: P.args, **kwargs: P.kwargs) -> JobCall[Any]:
        """Push as ``call``, while the event loop goes on."""
        return await apush_call(self._declaration, self._options, args, kwargs)


class FunctionCalls(SetterCalls[P], Generic[P, R_co]):
    """The calls of a registered function: the result has the type that the function returns."""

    __slots__ = ()

    @overload
    def call(self: "FunctionCalls[P, Coroutine[Any, Any, T]]", *args: P.args, **kwargs: P.kwargs) -> JobCall[T]: ...
    @overload
    def call(self, *args: P.args, **kwargs: P.kwargs) -> JobCall[R_co]: ...
    def call(self, *args: P.args, **kwargs: P.kwargs) -> JobCall[Any]:
        """Push the job; ``result()`` of the returned object waits for what the function returns."""
        return super().call(*args, **kwargs)

    @overload
    async def acall(
        self: "FunctionCalls[P, Coroutine[Any, Any, T]]", *args: P.args, **kwargs: P.kwargs
    ) -> JobCall[T]: ...
    @overload
    async def acall(self, *args: P.args, **kwargs: P.kwargs) -> JobCall[R_co]: ...
    async def acall(self, *args: P.args, **kwargs: P.kwargs) -> JobCall[Any]:
        """Push as ``call``, while the event loop goes on."""
        return await super().acall(*args, **kwargs)


def push_call(
    declaration: Declaration, options: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> JobCall[Any]:
    """Push one job whose caller waits."""
    name = declaration.qualified_name
    reason = refused_result(declaration.deduplicate, encrypts=declaration.encrypt)
    if reason is not None:
        raise ArgumentsError(name, reason)
    if options.get("sync"):
        raise ArgumentsError(name, "set(sync=True) runs the job here and now; leave out sync, or use perform_inline")
    client = port.current()
    ttl_s = _kept_for_s(declaration, options)
    if not 0 < ttl_s <= MAX_TTL_S:
        raise ArgumentsError(name, f"result_ttl is {ttl_s:,} s. Allowed: from 1 s to 7 days")
    bound = declaration.signature.bind(args, kwargs)
    request = PushRequest(
        declaration, bound, None, kept_options(declaration, options, ttl_s, client.service(RESULTS).caller)
    )
    return JobCall(declaration.wire_name, client.push(request), request)


def refused_result(policy: Deduplicate | None, *, encrypts: bool) -> str | None:
    """Return why no result of a class may be kept, ``None`` if it may."""
    if encrypts:
        return "declares encrypt, and results are not encrypted: let the job store its result itself"
    if policy is not None and policy.has_window:
        return (
            f"declares Deduplicate({policy.strategy!r}): a later push takes the place of the job, or is added to it, so no caller "
            "has a result of its own"
        )
    return None


def kept_options(
    declaration: Declaration, options: Mapping[str, Any], ttl_s: int, caller: str = ""
) -> Mapping[str, Any]:
    """Return the options of a push whose result is kept for ``ttl_s``."""
    # The state tells a job that has not ended from an unknown one, for framework.result(jid).
    kept = options.get("status_expiration", declaration.status_expiration) or timedelta(0)
    expiration = max(kept, timedelta(seconds=state_ttl_s(ttl_s)))
    return {**options, RESULT: result_request(ttl_s, caller), "status_expiration": expiration}


def _kept_for_s(declaration: Declaration, options: Mapping[str, Any]) -> int:
    span: timedelta | None = options.get("result_ttl", declaration.facts.get("keep_result"))
    return RESULT_TTL_S if span is None else round(span.total_seconds())


async def apush_call(
    declaration: Declaration, options: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> JobCall[Any]:
    push = partial(push_call, declaration, options, args, kwargs)
    return await run_in_thread(declaration, options, push, is_bulk=False)


def _declaration_of(worker: Any) -> Declaration:
    found: Declaration = worker.declaration()
    return found


def seconds_of(worker: str, timeout: object) -> float:
    """Return the seconds of a time-out. Raises ArgumentsError."""
    try:
        seconds: float = validators.wait(timeout)
    except InvalidValue as error:
        raise ArgumentsError(worker, f"timeout = {short_repr(timeout)} is not allowed. Allowed: {error}") from None
    return seconds


async def _watched(results: "JobResults", jid: Jid, request: PushRequest) -> "Future[bytes]":
    """Return the future of an answer. A wait that is cancelled meanwhile leaves no future behind, for which a thread would wait."""
    watching = asyncio.ensure_future(asyncio.to_thread(results.watch, jid, request))

    def leave(watched: "asyncio.Future[Future[bytes]]") -> None:
        if not watched.cancelled() and watched.exception() is None:
            results.leave(jid, watched.result())

    try:
        return await asyncio.shield(watching)
    except asyncio.CancelledError:
        watching.add_done_callback(leave)
        raise


async def _in_loop(future: "Future[bytes]") -> bytes:
    # Shielded: the end of one waiter must not end the future of another.
    return await asyncio.shield(asyncio.wrap_future(future))


_NOT_ENDED = frozenset({"queued", "running", "retrying"})
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 1.0
_WAITING = object()
"""The job has not ended."""


def result(jid: Jid, timeout: timedelta | float | None = None) -> Any:
    """Return the result of a job that was pushed with ``call``, or whose class has ``keep_result``.

    Without a ``timeout`` it looks once and does not wait: what a browser needs that asks again. Each look is one round trip to each
    shard, and a wait looks more and more seldom, at least once a second.

    Raises:
        ResultTimeoutError: the job has not ended: it waits, runs, or waits for its retry.
        JobEndedError: it has ended without a result; its subclasses say how.
        ResultExpiredError: it has ended, and its result is not kept any more.
        UnknownResultError: no job that keeps its result has this id.
        ShardUnavailableError: a shard does not answer, and no other one has the result.
    """
    if timeout is not None and running_loop() is not None:
        raise MisuseError(
            "framework.result", "a wait would stop the event loop: write await framework.aresult(jid, timeout)"
        )
    for pause_s in _pauses(check_jid(jid), timeout):
        found = _look(jid)
        if found is not _WAITING:
            return found
        time.sleep(pause_s)
    raise _late(jid, timeout)


async def aresult(jid: Jid, timeout: timedelta | float | None = None) -> Any:  # noqa: ASYNC109
    """Return the result as ``result``, while the event loop goes on. It may be cancelled."""
    for pause_s in _pauses(check_jid(jid), timeout):
        found = await asyncio.to_thread(_look, jid)
        if found is not _WAITING:
            return found
        await asyncio.sleep(pause_s)
    raise _late(jid, timeout)


def _look(jid: Jid) -> Any:
    """Return the result, or ``_WAITING`` if the job has not ended. Raises as ``result``."""
    answer, state = port.current().service(RESULTS).find(jid)
    if answer is not None:
        return value_of("", jid, stored_end(answer))
    if state in _NOT_ENDED:
        return _WAITING
    raise UnknownResultError(jid) if state == "unknown" else ResultExpiredError(jid, state)


def _pauses(jid: Jid, timeout: timedelta | float | None) -> Iterator[float]:
    """Yield the pause after each look: none after the last one, which is at the end of the time-out."""
    left_s = 0.0 if timeout is None else seconds_of(f"framework.result({jid!r})", timeout)
    ends_at, pause_s = time.monotonic() + left_s, _FIRST_WAIT_S
    while left_s > 0:
        yield min(pause_s, left_s)
        left_s, pause_s = ends_at - time.monotonic(), min(2 * pause_s, _LONGEST_WAIT_S)
    yield 0.0


def _late(jid: Jid, timeout: timedelta | float | None) -> ResultTimeoutError:
    return ResultTimeoutError("", jid, 0.0 if timeout is None else seconds_of("", timeout))
