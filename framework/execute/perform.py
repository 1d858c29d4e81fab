"""Make the instance of one job, and call the method that runs its version."""

import asyncio
from collections.abc import Coroutine, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from types import CoroutineType
from typing import Any, cast

from framework.declare.declaration import Declaration
from framework.declare.job_limiter import JobPermit
from framework.errors import ArgumentsError, ArgumentsMismatchError
from framework.execute.run_parts import AroundRun, RunCall
from framework.execute.timeouts import Timeouts, await_within, timeout_of
from framework.push.strict_arguments import StrictArgumentsCheck
from framework.telemetry.context import META_PREFIX
from framework.types import Payload
from framework.wire.job import TIMEOUT, version_of


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
