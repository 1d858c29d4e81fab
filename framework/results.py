"""Read the result of a job by its id: ``framework.result(jid)``, and ``await framework.aresult(jid)``."""

import asyncio
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from framework.declare import port
from framework.declare.pushed import running_loop
from framework.errors import MisuseError, ResultExpiredError, ResultTimeoutError, UnknownResultError
from framework.features.results.calls import RESULTS, seconds_of
from framework.types import Jid
from framework.wire.answers import stored_end, value_of
from framework.wire.job import check_jid

__all__ = ["aresult", "result"]

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
