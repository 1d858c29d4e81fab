"""Decide how a failed job goes on: retry, kill or delete (Sidekiq's verbs). ``settle`` moves the job.

The decision uses the payload as stored, so that a middleware's changes for one run are not kept. It needs no class.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from framework.errors import BusinessError, JobStoppedError
from framework.process_clock import process_clock
from framework.telemetry.traceback_lines import traceback_lines
from framework.text import error_class, error_message
from framework.typeguards import has_type
from framework.types import Payload
from framework.wire.compress import COMPRESSED, ORIGINAL_SIZE, pack_backtrace
from framework.wire.job import EXPIRY, Job, timestamp, whole_number, wire_timestamp

DEFAULT_MAX_RETRIES = 25
MAX_MESSAGE = 10_000
"""Characters of an error message that are kept (Sidekiq's number)."""
MAX_BACKTRACE = 8_192
"""Bytes of a packed backtrace: many failures must not fill Redis."""
_MAX_CALLS = 200
"""The calls of one error that ``backtrace = True`` keeps, as far as they fit."""
MAX_DELAY_S = 3_155_760_000.0
"""A hundred years: every delay must be a time that Redis and every reader can store."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Run again after ``delay_s`` seconds."""

    payload: Payload
    delay_s: float


@dataclass(frozen=True, slots=True)
class Kill:
    """Move to the dead set: the retries are used up."""

    payload: Payload
    args: list[Any] | None = None
    """The arguments for death handlers, decompressed."""
    business: bool = False
    """Whether it ended by a ``BusinessError``: the dead set keeps fewer of these."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove from Redis: ``retry = False``, ``dead = False``, a ``BusinessError``, or a hook returned ``"discard"``."""

    payload: Payload
    args: list[Any] | None = None
    exhausted: bool = False
    """Whether the retries were used up: only then is ``retries_exhausted`` called (Sidekiq)."""


RetryDecision: TypeAlias = Retry | Kill | Delete


@dataclass(frozen=True)
class RetryPolicy:
    """The defaults of all classes."""

    max_retries: int = DEFAULT_MAX_RETRIES
    keeps_business_failures: bool = False
    """Whether the dead set keeps jobs that ended by a ``BusinessError``."""

    def decide(
        self,
        payload: Payload,
        worker: Any | None,
        error: BaseException,
        args: list[Any] | None = None,
        *,
        ask_class: bool = True,
    ) -> RetryDecision:
        """Return the decision for a job that failed with ``error``; ``payload`` gets Sidekiq's error fields.

        ``worker`` is the class, or ``None`` if this process lacks it. ``retry_in`` of the class may raise anything; the caller
        may then decide again with ``ask_class`` false.
        """
        limit = self._limit(payload, worker)
        count = self._count_failure(payload, worker, error)
        if has_type(error, JobStoppedError):
            # The order of an operator, also for a class that keeps no dead jobs.
            payload.pop(EXPIRY, None)
            return Kill(payload, args)
        if limit is None:
            return Delete(payload, args)
        # No retry changes a refusal by the business; in the dead set refusals hid real deaths, in stat:failed they raised alarms.
        if has_type(error, BusinessError):
            return self._kill_or_delete(payload, worker, error, args, business=True)
        if self._exhausted(payload, worker, count, limit):
            return self._kill_or_delete(payload, worker, error, args)
        chosen = (
            worker.retry_in(count, error, job_for_hooks(payload, args)) if worker is not None and ask_class else None
        )
        if chosen == "discard":
            return Delete(self.mark_discarded(payload), args)
        if chosen == "kill":
            return self._kill_or_delete(payload, worker, error, args)
        delay = self._delay_s(chosen, count, worker)
        queue = _field(payload, worker, "retry_queue")
        if isinstance(queue, str) and queue:
            payload["queue"] = queue
        return Retry(payload, delay)

    def _kill_or_delete(
        self,
        payload: Payload,
        worker: Any | None,
        error: BaseException,
        args: list[Any] | None,
        *,
        business: bool = False,
    ) -> Kill | Delete:
        if _field(payload, worker, "dead") is False or (business and not self.keeps_business_failures):
            return Delete(self.mark_discarded(payload), args, exhausted=True)
        # A job that an operator retries from the dead set is to run: its time to wait begins at that enqueue.
        payload.pop(EXPIRY, None)
        if _field(payload, worker, "backtrace") is None:
            _keep_backtrace(payload, traceback_lines(error))
        return Kill(payload, args, business)

    def mark_discarded(self, payload: Payload) -> Payload:
        """Add the field that informs death handlers that the job is kept nowhere (Sidekiq 8); return the payload."""
        payload["discarded_at"] = wire_timestamp(process_clock.now())
        return payload

    def _limit(self, payload: Payload, worker: Any | None) -> int | None:
        """Return the most retries; ``None`` for no retry and no dead set (``retry: false``)."""
        retry = payload.get("retry")
        if retry is None and worker is not None:
            limit: int | None = worker.declaration().retry_limit(self.max_retries)
            return limit
        if retry is False:
            return None
        number = whole_number(retry)
        return self.max_retries if number is None else number

    def _count_failure(self, payload: Payload, worker: Any | None, error: BaseException) -> int:
        now = wire_timestamp(process_clock.now())
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
        _keep_backtrace(payload, backtrace(error, _field(payload, worker, "backtrace")))
        return count

    def _exhausted(self, payload: Payload, worker: Any | None, count: int, limit: int) -> bool:
        retry_for = _field(payload, worker, "retry_for")
        if isinstance(retry_for, timedelta):
            retry_for = retry_for.total_seconds()
        first = timestamp(payload.get("failed_at"))
        if isinstance(retry_for, int | float) and not isinstance(retry_for, bool) and first is not None:
            # Since Sidekiq 8.1 `retry_for` replaces the count.
            return retry_for < process_clock.now() - first
        return count >= limit

    def _delay_s(self, chosen: object, count: int, worker: Any | None) -> float:
        """Return the delay that ``retry_in`` chose if it is positive, else that of the class, else Sidekiq's.

        Jitter spreads jobs that failed together, except for a class that declares its delays.
        """
        if isinstance(chosen, timedelta):
            chosen = chosen.total_seconds()
        if isinstance(chosen, int | float) and not isinstance(chosen, bool) and 0 < chosen < math.inf:
            return float(min(chosen, MAX_DELAY_S)) + jitter_s(count, random.random)
        declared = None if worker is None else worker.declaration().retry_delay
        if declared is not None:
            return float(min(declared[min(count, len(declared) - 1)].total_seconds(), MAX_DELAY_S))
        return min(retry_delay_s(count, random.random), MAX_DELAY_S)


def job_for_hooks(payload: Payload, args: list[Any] | None) -> Job:
    """Return a copy of the job for hooks, with ``args``, the decompressed arguments of the run."""
    if args is None:
        return Job(payload)
    marks = (COMPRESSED, ORIGINAL_SIZE)
    return Job({**{name: value for name, value in payload.items() if name not in marks}, "args": args})


def _keep_backtrace(payload: Payload, lines: list[str]) -> None:
    """Add the first lines of a traceback in Sidekiq's form, as many as fit."""
    packed = pack_backtrace(lines) if lines else ""
    while len(packed) > MAX_BACKTRACE:
        # Compressed, so the size of a number of lines cannot be computed; a half is tried instead.
        lines = lines[: len(lines) // 2]
        packed = pack_backtrace(lines) if lines else ""
    if packed:
        payload["error_backtrace"] = packed


def backtrace(error: BaseException, wanted: object) -> list[str]:
    """Return the lines of the traceback: all for ``True``, the first N for a number, none otherwise."""
    if not wanted:
        return []
    number = whole_number(wanted)
    return traceback_lines(error, _MAX_CALLS) if number is None else traceback_lines(error, number)[: max(0, number)]


def _field(payload: Payload, worker: Any | None, name: str) -> Any:
    """Return a field of the payload, or else the attribute of its class (Ruby does not know Python attributes)."""
    value = payload.get(name)
    if value is None and worker is not None:
        return getattr(worker.declaration(), name)
    return value


JITTER_S = 10
_MAX_COUNT = 900
"""A delay of twenty thousand years. A payload may hold any number, and its fourth power must stay a float."""


def retry_delay_s(count: int, draw: Callable[[], float]) -> float:
    """Return the seconds until the next attempt after failure number ``count`` (0 = the first). Sidekiq 8's formula.

    The result is in [count**4 + 15, count**4 + 15 + 10 * (count + 1)); ``draw`` returns a number in [0, 1).
    """
    return float(_bounded(count) ** 4 + 15) + jitter_s(count, draw)


def jitter_s(count: int, draw: Callable[[], float]) -> float:
    """Return the jitter alone, for a delay that a class chooses."""
    return float(int(draw() * JITTER_S * (_bounded(count) + 1)))


def _bounded(count: int) -> int:
    return min(max(count, 0), _MAX_COUNT)
