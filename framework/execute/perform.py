"""Make the instance of one job, and call the method that runs its version, within what features do in the runs of jobs."""

import asyncio
import os
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import CoroutineType
from typing import Any, ClassVar, NoReturn, TypeAlias, cast

from framework.declare.declaration import Declaration
from framework.declare.job_limiter import JobPermit
from framework.errors import ArgumentsError, ArgumentsMismatchError
from framework.execute.timeouts import Timeouts, await_within, timeout_of
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import Failed, RunOutcome
from framework.push.argument_checks import StrictArgumentsCheck
from framework.telemetry import logs
from framework.telemetry.context import META_PREFIX
from framework.telemetry.stacks import StackCall
from framework.typeguards import has_type
from framework.types import Jid, Payload
from framework.wire.job import TIMEOUT, version_of

RunCall: TypeAlias = Callable[[], Coroutine[Any, Any, Any] | None]
"""Calls ``perform``; returns the coroutine of an async method, which has not started."""


class AroundRun(ABC):
    """Runs jobs with a payload field within something. Safe from any thread."""

    field: ClassVar[str]
    """The payload field of these jobs, whose value is true. Other jobs pay nothing."""

    @abstractmethod
    def run(self, instance: Any, call: RunCall) -> Coroutine[Any, Any, Any] | None:
        """Make the call, or return a coroutine that awaits the one of the call. Raises what the job raises."""


class RunSpan(ABC):
    """One run of a job in a trace."""

    @abstractmethod
    def end(self, outcome: RunOutcome) -> None:
        """End it, in the context in which it began."""


class RunSpans(ABC):
    """Makes the runs of a process parts of traces. Safe from any thread."""

    @abstractmethod
    def begin(self, payload: Payload, unit: UnitOfWork, declaration: Declaration) -> RunSpan:
        """Begin the span of a run that is admitted, in the context of the job, before its start line and its middlewares.

        It writes the trace of the run to the trace fields of the decoded payload: log lines and the jobs that the run pushes read
        them there. The stored payload stays as it is.
        """


class CursorStore(ABC):
    """Stores how far the iterable jobs of one capsule are. Safe from any thread."""

    @abstractmethod
    def prepare(self, instance: Any, unit: UnitOfWork, payload: Payload) -> None:
        """Let the instance of an iterable job store its cursor. Sends nothing."""


class DetachedRuns(ABC):
    """Runs the jobs of a worker process that run neither in its threads nor on its event loop. Safe from any thread."""

    @abstractmethod
    def prepare(self) -> None:
        """Do what the first run needs, before the turn of a suspect. Raises nothing."""

    @abstractmethod
    def run(self, payload: Payload, queue: str, instance: Any, capsule: str) -> bool:
        """Run ``perform``; return whether every server middleware, of the capsule if it has one, yielded.

        Raises what the job raises. The processor time of the run is in ``instance._aw_extra``.
        """

    @abstractmethod
    def kill_all(self, timeout_s: float) -> None:
        """End every run, and wait at most ``timeout_s`` for their ends. No run begins from now on."""

    @abstractmethod
    def stop(self, jid: Jid) -> bool:
        """End the run of this job now; its caller gets CancelledError. Return whether it runs here."""

    @abstractmethod
    def stacks(self, timeout_s: float) -> dict[Jid, tuple[int, list[list[StackCall]]]]:
        """Return the process and the stacks of each run's threads and tasks; no stacks for one that does not answer in time."""

    @abstractmethod
    def close(self) -> None:
        """Free what the runs have used, after the last one."""

    @abstractmethod
    def after_fork_in_child(self) -> None:
        """Leave the runs to their process, in a child that a job has forked."""


class JobCaller:
    """Calls ``perform`` of jobs. Without ``timeouts`` a run may last for any time; ``around`` is what features do around runs."""

    def __init__(
        self, strictness: StrictArgumentsCheck, timeouts: Timeouts | None = None, around: Sequence[AroundRun] = ()
    ) -> None:
        self._strictness = strictness
        self._timeouts = timeouts
        self._around = around
        self._has_plain_run = frozenset({TIMEOUT, *(one.field for one in around)}).isdisjoint

    def call(
        self, instance: Any, declaration: Declaration, payload: Payload, *, surely_strict: bool = False
    ) -> Coroutine[Any, Any, Any] | None:
        """Check the arguments against the method for this version of the job, and call it. Raises what it raises.

        ``surely_strict``: only the types of the arguments have to be checked.

        Returns the coroutine of an async method, which has not started.
        """
        arguments, signature, perform = payload["args"], declaration.signature, instance.perform
        if declaration.version_handlers:
            handler = declaration.version_handlers.get(instance.job_version)
            if handler is not None:
                signature, perform = handler.signature, getattr(instance, handler.method)
        try:
            signature.check(arguments, parsed=True, surely_strict=surely_strict)
        except ArgumentsError as error:
            if not self._strictness.allows_run(declaration, signature, arguments, instance.jid):
                reason = f"argument '{error.argument}' {error.reason}" if error.argument else error.reason
                name, version = declaration.wire_name, instance.job_version
                raise ArgumentsMismatchError(name, reason, method=signature.method, version=version) from error
        if declaration.bounded or not self._has_plain_run(payload):
            timeout_s = None if self._timeouts is None else timeout_of(declaration, payload)
            permit = None if declaration.limiter is None else declaration.limiter.admit_job(payload, META_PREFIX)
            if permit is None:
                return self._call_within(perform, arguments, timeout_s, instance)
            return self._call_admitted(perform, arguments, timeout_s, instance, permit)
        result: Any = perform(*arguments)
        # The result decides, not the class: a plain decorator around an `async def` returns a coroutine too.
        if type(result) is CoroutineType:
            return cast("Coroutine[Any, Any, Any]", result)
        # Most jobs return none. Whether a caller waits for it is asked at the end of the run.
        if result is not None:
            instance._aw_returned = result
        return None

    def _call_admitted(
        self, perform: Any, arguments: list[Any], timeout_s: float | None, instance: Any, permit: JobPermit
    ) -> Coroutine[Any, Any, Any] | None:
        """Call ``perform``, and end the permit of the limiter after the run. If the run never ends, the permit's lock expires."""
        coroutine = None
        try:
            coroutine = self._call_within(perform, arguments, timeout_s, instance)
        finally:
            if coroutine is None:
                permit.release()
        return None if coroutine is None else _await_admitted(coroutine, permit)

    def _call_within(
        self, perform: Any, arguments: list[Any], timeout_s: float | None, instance: Any
    ) -> Coroutine[Any, Any, Any] | None:
        call: RunCall = partial(self._call_timed, perform, arguments, timeout_s, instance)
        # Around the timeout: its error comes while the job's own code runs, never while a feature is at work.
        for one in self._around:
            if (instance._aw_job or {}).get(one.field) is True:
                call = partial(one.run, instance, call)
        return call()

    def _call_timed(
        self, perform: Any, arguments: list[Any], timeout_s: float | None, instance: Any
    ) -> Coroutine[Any, Any, Any] | None:
        # The call of an `async def` only makes the coroutine.
        if self._timeouts is None or timeout_s is None or instance.declaration().is_async:
            result: Any = perform(*arguments)
        else:
            result = self._timeouts.call(perform, arguments, timeout_s)
        if type(result) is not CoroutineType:
            if result is not None:
                instance._aw_returned = result
            return None
        coroutine = cast("Coroutine[Any, Any, Any]", result)
        return coroutine if timeout_s is None else await_within(coroutine, timeout_s)


async def _await_admitted(coroutine: Coroutine[Any, Any, Any], permit: JobPermit) -> Any:
    try:
        return await coroutine
    finally:
        await asyncio.shield(asyncio.to_thread(permit.release))


@contextmanager
def admitted(declaration: Declaration, payload: Payload) -> Generator[None]:
    """Hold the permit of the class's limiter, if it has one, for the run of a job outside of this process. Raises OverLimit."""
    permit = None if declaration.limiter is None else declaration.limiter.admit_job(payload, META_PREFIX)
    try:
        yield
    finally:
        if permit is not None:
            permit.release()


def new_instance(worker: Any, payload: Payload) -> Any:
    """Return a new instance with the fields of its job; threads share no instance."""
    instance: Any = worker()
    instance.jid = payload.get("jid", "")
    if "version" in payload or worker.version:
        # A payload without the field was written when the class had no version: version 0, whatever the class has today.
        instance.job_version = version_of(payload)
    instance._aw_job = payload
    return instance


def exit_forked_child(error: BaseException | None) -> NoReturn:
    """Exit with the status of a plain program that ended so."""
    status = 0
    with suppress(BaseException):
        if error is not None:
            status = 1
            if has_type(error, SystemExit):
                status = error.code if type(error.code) is int else int(error.code is not None)
            else:
                traceback.print_exception(error)
    logs.flush_output()
    # Not `sys.exit`: the parent's exit handlers, threads and connections must not end here.
    os._exit(status)


def exit_with_outcome(outcome: RunOutcome | None) -> NoReturn:
    """Exit as the run of a job has ended. Nothing is settled."""
    exit_forked_child(outcome.error if isinstance(outcome, Failed) else None)


_span_errors = logs.LogRateLimit(60.0)


def span_failed(error: Exception) -> None:
    """Log, at a limited rate, that a run could not be made part of a trace."""
    _span_errors.error(
        "span", "a run is missing in a trace; the job goes on. Look at the error", "trace.failed", error=error
    )
