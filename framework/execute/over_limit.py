"""Decide the outcome of a job that ``OverLimit`` ends: it runs again later, it fails, or it is dropped (the limiter's policy)."""

import math
import random
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from framework.errors import OverLimit
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.endings import OVER_LIMIT_JOBS
from framework.finish.outcome import Discarded, Failed, Snoozed
from framework.finish.retry import MAX_DELAY_S
from framework.telemetry.counters import counters
from framework.types import Payload
from framework.wire.job import OVER_LIMIT_BY, OVER_LIMIT_COUNT, count_of

# Sidekiq Enterprise's back-off: five minutes more each time, spread over five minutes. A concurrent limiter does not know when a
# holder ends, and an error of the application has no turn.
_STEP_S = 300.0


def over_limit_outcome(
    unit: UnitOfWork, payload: Payload, error: OverLimit, draw: Callable[[], float] = random.random
) -> Snoozed | Failed | Discarded:
    """Return the outcome of the job. After the most reschedules it fails as by any error.

    Each outcome counts in ``OVER_LIMIT_JOBS``: a reschedule by its ending, the others here, whose endings have other causes too.
    """
    count = count_of(payload, OVER_LIMIT_COUNT) + 1
    ended: Failed | Discarded | None = None
    if error.policy == "skip":
        ended = Discarded(f"limiter {error.limiter} is at its limit", "limiter")
    elif error.policy == "raise" or count > error.reschedules:
        ended = Failed(error)
    if ended is not None:
        counters.add(OVER_LIMIT_JOBS, str(payload.get("class")))
        return ended
    unit.add_fields({**(unit.extra_fields or {}), OVER_LIMIT_COUNT: count, OVER_LIMIT_BY: error.limiter})
    fields = {"snoozed_by": "limiter", "limiter": error.limiter, "over_limit_count": count}
    delay_s = error.turn_s
    if delay_s is None:
        delay_s = _backoff_s(error, count, draw)
        if error.retry_after_s is not None and error.retry_after_s > delay_s:
            # Jobs that were refused together must not come back together.
            delay_s = error.retry_after_s + draw() * delay_s
    return Snoozed(min(delay_s, MAX_DELAY_S), str(error), fields)


def call_backoff(payload: Payload, error: OverLimit) -> None:
    """Call the limiter's own function of the delay now: an error that is sent to another process cannot have it."""
    error.backoff_s = _own_backoff_s(error, count_of(payload, OVER_LIMIT_COUNT) + 1)


def _backoff_s(error: OverLimit, count: int, draw: Callable[[], float]) -> float:
    """Return the delay of the limiter's own function, or Sidekiq's if there is none, or it raises or returns no valid delay."""
    own_s = error.backoff_s if error.backoff is None else _own_backoff_s(error, count)
    return _STEP_S * count + _STEP_S * draw() + 1 if own_s is None else own_s


def _own_backoff_s(error: OverLimit, count: int) -> float | None:
    if error.backoff is not None:
        with suppress(Exception):
            chosen = error.backoff(count)
            seconds = chosen.total_seconds() if isinstance(chosen, timedelta) else float(chosen)
            if math.isfinite(seconds) and seconds >= 0:
                return seconds
    return None
