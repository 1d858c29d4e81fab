"""Run a job in the caller's thread as a worker process would, without queue, retries and log lines.

A tracked job has its states too: the caller gets its id (``set(sync=True)``) and may look it up.
"""

import os
from collections.abc import Coroutine
from contextlib import ExitStack
from contextvars import copy_context
from typing import Any

from framework.errors import BatchCancelledError, Discard
from framework.execute.event_loop import EventLoop
from framework.execute.perform import JobCaller, new_instance
from framework.finish.status_writer import StatusWriter
from framework.middleware.chain import Call, ChainInvocation
from framework.push.argument_checks import StrictArgumentsCheck
from framework.telemetry import context
from framework.telemetry.usage import usage_records
from framework.typeguards import has_type
from framework.types import Jid, JobState, Payload
from framework.wire.compress import decompress_arguments
from framework.wire.footprint import DECODED_LIMIT
from framework.wire.job import decode
from framework.wire.protected import ProtectedArguments
from framework.wire.status_key import tracked_job

_loops = [EventLoop()]
"""The last loop serves all inline runs of this process; its thread starts with the first async run."""


def _reset_after_fork() -> None:
    # The thread of the old loop exists only in the parent. The old loop is kept, since its collection would close the epoll
    # descriptor that it shares with the parent.
    _loops.append(EventLoop())


os.register_at_fork(after_in_child=_reset_after_fork)


def run_inline(
    worker: Any,
    data: bytes,
    middleware: tuple[Call, ...],
    decompressed_limit: int,
    strictness: StrictArgumentsCheck,
    status_writer: StatusWriter,
    decoded_limit: int = DECODED_LIMIT,
    protected: ProtectedArguments | None = None,
) -> Jid:
    """Run the job in ``data`` and return its id; raises what the job raises."""
    # No wait for the memory budget: the caller has the arguments in memory already, and may be a job that holds a share.
    payload = decode(data, decoded_limit)
    decompress_arguments(payload, decompressed_limit, decoded_limit, protected=protected)
    found = tracked_job(payload)
    if found is None:
        _run(worker, payload, middleware, strictness)
        return str(payload["jid"])
    status_writer.write(found, "running")
    try:
        performed = _run(worker, payload, middleware, strictness)
    except BaseException as error:
        status_writer.write(found, _state_after(error))
        raise
    status_writer.write(found, "completed" if performed else "discarded")
    return found.jid


def _state_after(error: BaseException) -> JobState:
    if has_type(error, Discard):
        return "discarded"
    return "cancelled" if has_type(error, BatchCancelledError) else "failed"


def _run(worker: Any, payload: Payload, middleware: tuple[Call, ...], strictness: StrictArgumentsCheck) -> bool:
    """Run the job in a context of its own, as in a process; return whether every middleware yielded."""
    own = copy_context()
    try:
        yielded, coroutine = own.run(_begin, worker, payload, middleware, strictness)
        if coroutine is not None:
            _loops[-1].run(coroutine, own)
    finally:
        usage_records.pass_to_caller(payload)
    return yielded


def _begin(
    worker: Any, payload: Payload, middleware: tuple[Call, ...], strictness: StrictArgumentsCheck
) -> tuple[bool, Coroutine[Any, Any, Any] | None]:
    """Run the job to its end, or return the coroutine of an async job; its middlewares end in the coroutine."""
    instance = new_instance(worker, payload)
    context.enter_job(payload)
    with ExitStack() as exits:
        yielded = exits.enter_context(ChainInvocation(middleware, instance, payload, payload["queue"]))
        if yielded:
            coroutine = JobCaller(strictness).call(instance, worker.declaration(), payload)
            if coroutine is not None:
                return True, _complete(coroutine, exits.pop_all())
    return yielded, None


async def _complete(coroutine: Coroutine[Any, Any, Any], exits: ExitStack) -> None:
    with exits:
        await coroutine
