"""What one push may override (``Worker.set``), and when a job is due."""

import math
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypedDict

from framework.declare import values
from framework.declare.values import Invalid, Rule
from framework.errors import ArgumentsError
from framework.settings.suggest import did_you_mean

EPOCH_FROM = 1_000_000_000
"""Numbers below are seconds from now, numbers from here on are epoch seconds (Sidekiq)."""


class PushOptions(TypedDict, total=False):
    """The options of ``set``; each stands for this push only, over the attribute of the same name."""

    queue: str
    retry: bool | int
    retry_for: timedelta | float
    retry_queue: str
    dead: bool
    backtrace: bool | int
    tags: tuple[str, ...]


_RULES: Mapping[str, Rule] = {
    "queue": values.queue,
    "retry": values.switch_or_count(0),
    "retry_for": values.duration,
    "retry_queue": values.queue,
    "dead": values.boolean,
    "backtrace": values.switch_or_count(1),
    "tags": values.tags,
}
_DELAYS = ("wait", "wait_until", "at", "delay")


def check_options(worker: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, normalised; raises ArgumentsError for an unknown name or a value that is not allowed."""
    return {name: _check_option(worker, name, value) for name, value in options.items()}


def _check_option(worker: str, name: str, value: Any) -> Any:
    if name not in _RULES:
        hint = did_you_mean(name, _RULES)
        advice = " Use perform_in or perform_at." if name in _DELAYS else f" Options: {', '.join(_RULES)}."
        raise ArgumentsError(worker, f"set() has no option {name!r}{hint}.{advice}", argument=None)
    try:
        return _RULES[name](value)
    except Invalid as error:
        raise ArgumentsError(worker, f"set({name}={value!r}) is not allowed. Allowed: {error}.") from None


def due_at(worker: str, when: object, clock: Callable[[], float]) -> float | None:
    """Epoch seconds at which a job is due, or None when that is now or past (Sidekiq: it is pushed at once).

    A timedelta counts from now, and so does a number below 1,000,000,000; a larger one is epoch seconds. Raises
    ArgumentsError for a datetime without a time zone, NaN, infinity and anything else.
    """
    now = clock()
    due = _epoch(worker, when, now)
    if not math.isfinite(due):
        raise ArgumentsError(worker, f"cannot be due at {due}; give a finite time")
    return due if due > now else None


def _epoch(worker: str, when: object, now: float) -> float:
    if isinstance(when, timedelta):
        return now + when.total_seconds()
    if isinstance(when, datetime):
        if when.tzinfo is None or when.utcoffset() is None:
            raise ArgumentsError(
                worker, "is due at a datetime without a time zone; use datetime.now(UTC), or .replace(tzinfo=...)"
            )
        return when.timestamp()
    if isinstance(when, (int, float)) and not isinstance(when, bool):
        try:
            seconds = float(when)
        except OverflowError:
            seconds = math.inf
        return now + seconds if seconds < EPOCH_FROM else seconds
    raise ArgumentsError(
        worker, f"is due at a {type(when).__name__}; give a timedelta, an aware datetime or a number of seconds"
    )


def bulk_times(
    worker: str,
    count: int,
    delay: object,
    batch_size: int | None,
    batch_delay: timedelta | float | None,
    clock: Callable[[], float],
) -> list[float] | float | None:
    """When each of ``count`` jobs is due: all at ``delay``, or ``batch_size`` of them every ``batch_delay`` (GitLab).

    Raises ArgumentsError when only one of the two is given, which would silently pace nothing.
    """
    if batch_size is None and batch_delay is None:
        return due_at(worker, delay, clock)
    if batch_size is None or batch_delay is None:
        raise ArgumentsError(worker, "batch_size and batch_delay belong together; give both or neither")
    if type(batch_size) is not int or batch_size < 1:
        raise ArgumentsError(worker, f"batch_size = {batch_size!r} is not allowed. Allowed: a whole number >= 1")
    try:
        step = values.duration(batch_delay).total_seconds()
    except Invalid as error:
        raise ArgumentsError(worker, f"batch_delay = {batch_delay!r} is not allowed. Allowed: {error}") from None
    now = clock()
    first = due_at(worker, delay, lambda: now) or now
    return [first + (index // batch_size) * step for index in range(count)]
