"""Run a job in the caller's thread: the same way as in a process, without queue, retries and log lines.

A tracked one has its states all the same: whoever gets its id (``set(sync=True)``), or is told of it by the job, may ask.
"""

import os
from contextvars import copy_context
from typing import Any

from framework.errors import Discard
from framework.execute.event_loop import EventLoop
from framework.execute.execution import call_perform, new_instance
from framework.finish.status_writer import StatusWriter
from framework.middleware.chain import Call, ChainInvocation
from framework.push.strict_arguments import StrictArgumentsCheck
from framework.telemetry import context
from framework.typeguards import has_type
from framework.types import Jid, Payload
from framework.wire.compress import decompress_arguments
from framework.wire.footprint import DECODED_LIMIT
from framework.wire.job import decode
from framework.wire.status_key import tracked_job

_loops = [EventLoop()]
"""The last is for all inline runs of this process; its thread starts with the first async one."""


def _reset_after_fork() -> None:
    # The thread of the loop is the parent's. The loop is kept: collected, it would be closed, and the parent's with it (epoll).
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
) -> Jid:
    """Run the job that ``data`` holds and return its id; raises what it raises."""
    # The caller has the arguments in memory already, and may run inside of a job that has its share: nothing is waited for.
    payload = decode(data, decoded_limit)
    decompress_arguments(payload, decompressed_limit, decoded_limit)
    found = tracked_job(payload)
    if found is None:
        copy_context().run(_run, worker, payload, middleware, strictness)
        return str(payload["jid"])
    status_writer.write(found, "running")
    try:
        performed = copy_context().run(_run, worker, payload, middleware, strictness)
    except BaseException as error:
        status_writer.write(found, "discarded" if has_type(error, Discard) else "failed")
        raise
    status_writer.write(found, "completed" if performed else "discarded")
    return found.jid


def _run(worker: Any, payload: Payload, middleware: tuple[Call, ...], strictness: StrictArgumentsCheck) -> bool:
    """Run in a context of its own, as in a process: what the job sets is not left behind; tell whether middlewares let it."""
    instance = new_instance(worker, payload)
    context.enter_job(payload)
    with ChainInvocation(middleware, instance, payload, payload["queue"]) as open_:
        if open_:
            coroutine = call_perform(instance, worker.declaration(), payload, strictness)
            if coroutine is not None:
                _loops[-1].run(coroutine)
    return open_
