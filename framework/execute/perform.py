"""Make the instance of one job, and call the method that runs its version."""

from collections.abc import Coroutine
from types import CoroutineType
from typing import Any, cast

from framework.declare.declaration import Declaration
from framework.errors import ArgumentsError, ArgumentsMismatchError
from framework.execute.timeouts import TIMEOUT, Timeouts, await_within, timeout_of
from framework.push.strict_arguments import StrictArgumentsCheck
from framework.types import Payload
from framework.wire.job import version_of


def call_perform(
    instance: Any,
    declaration: Declaration,
    payload: Payload,
    strictness: StrictArgumentsCheck,
    timeouts: Timeouts | None = None,
) -> Coroutine[Any, Any, Any] | None:
    """Check the arguments against the method for this version of the job, and call it. Raises what it raises.

    Returns the coroutine of an async method, which has not started. Without ``timeouts`` the run may last for any time.
    """
    arguments, signature, perform = payload["args"], declaration.signature, instance.perform
    if declaration.version_handlers:
        handler = declaration.version_handlers.get(instance.job_version)
        if handler is not None:
            signature, perform = handler.signature, getattr(instance, handler.method)
    try:
        signature.check(arguments, parsed=True)
    except ArgumentsError as error:
        if not strictness.allows_run(declaration, signature, arguments, instance.jid):
            reason = f"argument '{error.argument}' {error.reason}" if error.argument else error.reason
            name, version = declaration.wire_name, instance.job_version
            raise ArgumentsMismatchError(name, reason, method=signature.method, version=version) from error
    if timeouts is not None and (declaration.timeout is not None or TIMEOUT in payload):
        return _call_within(perform, arguments, timeouts, timeout_of(declaration, payload), declaration)
    result: Any = perform(*arguments)
    # The result decides, not the class: a plain decorator around an `async def` returns a coroutine too.
    return cast("Coroutine[Any, Any, Any]", result) if type(result) is CoroutineType else None


def _call_within(
    perform: Any, arguments: list[Any], timeouts: Timeouts, timeout_s: float | None, declaration: Declaration
) -> Coroutine[Any, Any, Any] | None:
    # The call of an `async def` only makes the coroutine.
    if timeout_s is None or declaration.is_async:
        return _within(perform(*arguments), timeout_s)
    return _within(timeouts.call(perform, arguments, timeout_s), timeout_s)


def _within(result: Any, timeout_s: float | None) -> Coroutine[Any, Any, Any] | None:
    if type(result) is not CoroutineType:
        return None
    coroutine = cast("Coroutine[Any, Any, Any]", result)
    return coroutine if timeout_s is None else await_within(coroutine, timeout_s)


def new_instance(worker: Any, payload: Payload) -> Any:
    """Return a new instance with the fields of its job; threads share no instance."""
    instance: Any = worker()
    instance.jid = payload.get("jid", "")
    if "version" in payload or worker.version:
        # A payload without the field was written when the class had no version: version 0, whatever the class has today.
        instance.job_version = version_of(payload)
    instance._aw_job = payload
    return instance
