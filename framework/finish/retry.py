"""What to do with a failed job: retry it, bury it, or drop it. Decides only; ``settle`` moves.

Works on the payload as it was stored, so that what a middleware changed for one run is not kept, and needs no class.
"""

import math
import random
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from framework.errors import BusinessError, error_class, error_message
from framework.finish.backoff import jitter_s, retry_delay_s
from framework.types import Payload
from framework.wire.compress import COMPRESSED, ORIGINAL_SIZE, pack_backtrace
from framework.wire.job import Job, stamp, timestamp, whole_number

DEFAULT_MAX_RETRIES = 25
MAX_MESSAGE = 10_000
"""Characters of an error message that are kept (Sidekiq's figure)."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Run again after ``delay_s`` seconds."""

    payload: Payload
    delay_s: float


@dataclass(frozen=True, slots=True)
class Bury:
    """The retries are used up: into the dead set."""

    payload: Payload


@dataclass(frozen=True, slots=True)
class Drop:
    """Out of Redis: ``retry = False``, ``dead = False``, or the class's hook said so."""

    payload: Payload
    exhausted: bool = False
    """Whether retries were used up: only then ``retries_exhausted`` is asked (Sidekiq)."""


Verdict: TypeAlias = Retry | Bury | Drop


@dataclass(frozen=True)
class RetryPolicy:
    """The fleet's defaults, the clock and the dice."""

    max_retries: int = DEFAULT_MAX_RETRIES
    clock: Callable[[], float] = time.time
    draw: Callable[[], float] = random.random

    def verdict(
        self, payload: Payload, worker: Any | None, error: BaseException, args: list[Any] | None = None
    ) -> Verdict:
        """Return what becomes of a job that failed with ``error``; ``payload`` gets Sidekiq's error fields.

        ``worker`` is the class, or ``None`` when it is unknown here. Errors of its hooks are the caller's to catch.
        """
        limit = self._limit(payload, worker)
        count = self._count_failure(payload, error)
        if limit is None:
            return Drop(payload)
        if isinstance(error, BusinessError) or self._exhausted(payload, count, limit):
            return Drop(payload, exhausted=True) if payload.get("dead") is False else Bury(payload)
        chosen = worker.retry_in(count, error, shown(payload, args)) if worker is not None else None
        if chosen == "discard":
            return Drop(payload)
        if chosen == "kill":
            return Bury(payload)
        delay = self._delay_s(chosen, count)
        if isinstance(payload.get("retry_queue"), str) and payload["retry_queue"]:
            payload["queue"] = payload["retry_queue"]
        return Retry(payload, delay)

    def _limit(self, payload: Payload, worker: Any | None) -> int | None:
        """Most retries; ``None`` = none and no dead set either (``retry: false``)."""
        retry = payload.get("retry")
        if retry is None and worker is not None:
            limit: int | None = worker.declaration().retry_limit(self.max_retries)
            return limit
        if retry is False:
            return None
        number = whole_number(retry)
        return self.max_retries if number is None else number

    def _count_failure(self, payload: Payload, error: BaseException) -> int:
        now = stamp(self.clock())
        previous = whole_number(payload.get("retry_count"))
        count = 0 if previous is None else previous + 1
        payload["retry_count"] = count
        # Sidekiq's pages need failed_at on the first failure and retried_at on every later one.
        if previous is None or "failed_at" not in payload:
            payload["failed_at"] = now
        if previous is not None:
            payload["retried_at"] = now
        payload["error_class"] = error_class(error)
        payload["error_message"] = error_message(error, MAX_MESSAGE)
        payload.pop("error_backtrace", None)
        lines = backtrace(error, payload.get("backtrace"))
        if lines:
            payload["error_backtrace"] = pack_backtrace(lines)
        return count

    def _exhausted(self, payload: Payload, count: int, limit: int) -> bool:
        retry_for = payload.get("retry_for")
        first = timestamp(payload.get("failed_at"))
        if isinstance(retry_for, int | float) and not isinstance(retry_for, bool) and first is not None:
            return retry_for < self.clock() - first  # excludes the count since Sidekiq 8.1
        return count >= limit

    def _delay_s(self, chosen: object, count: int) -> float:
        """Return the class's own delay if it gave a positive one (jittered, so that a burst does not return as one), else ours."""
        if isinstance(chosen, timedelta):
            chosen = chosen.total_seconds()
        if isinstance(chosen, int | float) and not isinstance(chosen, bool) and 0 < chosen < math.inf:
            return float(chosen) + jitter_s(count, self.draw)
        return retry_delay_s(count, self.draw)


def shown(payload: Payload, args: list[Any] | None) -> Job:
    """Return a job as hooks see it: with ``args``, the arguments as they were pushed, where the payload has them compressed."""
    if args is None or not payload.get(COMPRESSED):
        return Job(payload)
    marks = (COMPRESSED, ORIGINAL_SIZE)
    return Job({**{name: value for name, value in payload.items() if name not in marks}, "args": args})


def backtrace(error: BaseException, wanted: object) -> list[str]:
    """Return the innermost lines of the traceback: all for ``True``, the last N for a number, none otherwise."""
    if not wanted:
        return []
    try:
        lines = [
            f"{frame.filename}:{frame.lineno}:in `{frame.name}'" for frame in traceback.extract_tb(error.__traceback__)
        ]
    except BaseException:  # noqa: BLE001 - as above
        return []
    lines.reverse()
    number = whole_number(wanted)
    return lines if number is None else lines[: max(0, number)]
