"""Log the stack of every thread and every async job, each with the job that it runs."""

import sys
import threading
import traceback
from collections.abc import Iterable, Mapping

from framework.errors import PayloadError
from framework.fetch.unit_of_work import UnitOfWork
from framework.telemetry import logs
from framework.wire.job import base36, decode


def log_stacks(
    running: Mapping[int, tuple[UnitOfWork, int]], async_stacks: Iterable[tuple[str | None, list[str]]]
) -> None:
    """Write a line for each thread, whose jobs are in ``running`` by thread id, and for each async job."""
    log = logs.logger()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]
        unit = running.get(ident)
        log.warning(
            "stack",
            event_name="process.stack",
            thread=names.get(ident, str(ident)),
            tid=base36(ident),
            jid=payload_field(unit[0], "jid") if unit else None,
            stack=[line.rstrip() for line in traceback.format_stack(frame)],
        )
    for jid, lines in async_stacks:
        log.warning("stack", event_name="process.stack", thread="event-loop", jid=jid, stack=lines)


def payload_field(unit: UnitOfWork, name: str) -> str | None:
    """Return a field of the payload as text, ``None`` for a malformed payload."""
    try:
        payload = decode(unit.data) if unit.payload_without_args is None else unit.payload_without_args
    except PayloadError:
        return None
    return str(payload.get(name))
