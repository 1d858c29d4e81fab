"""Run a job in the caller's thread: the same way as in a process, without queue, retries and log lines."""

from contextvars import copy_context
from typing import Any

from framework.execute.event_loop import EventLoop
from framework.execute.execution import call, new_instance
from framework.middleware.chain import Call, Passage
from framework.push.strictness import Strictness
from framework.telemetry import context
from framework.types import Payload
from framework.wire.compress import decompress_arguments
from framework.wire.job import decode

_LOOP = EventLoop()
"""One for all inline runs of this process; its thread starts with the first async one."""


def run_inline(
    worker: Any, data: bytes, middleware: tuple[Call, ...], decompressed_limit: int, strictness: Strictness
) -> None:
    """Run the job that ``data`` holds; raises what it raises."""
    payload = decode(data)
    decompress_arguments(payload, decompressed_limit)
    # A context of its own, as in a process: what the job sets is not left behind in the caller's.
    copy_context().run(_run, worker, payload, middleware, strictness)


def _run(worker: Any, payload: Payload, middleware: tuple[Call, ...], strictness: Strictness) -> None:
    instance = new_instance(worker, payload)
    context.enter_job(payload)
    with Passage(middleware, instance, payload, payload["queue"]) as open_:
        if open_:
            coroutine = call(instance, worker.declaration(), payload, strictness)
            if coroutine is not None:
                _LOOP.run(coroutine)
