"""What one push may override (``Worker.set``), and when a job is due."""

import math
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypedDict, cast

from framework.declare import values
from framework.declare.attributes import ATTRIBUTES
from framework.declare.exact_json import InexactError, check_exact
from framework.declare.request import Due, Pace
from framework.declare.values import Invalid, Rule
from framework.errors import ArgumentsError
from framework.settings.shapes import short_repr
from framework.settings.suggest import did_you_mean
from framework.types import Json

EPOCH_FROM = 1_000_000_000
"""Numbers below are seconds from now, numbers from here on are epoch seconds (Sidekiq)."""


class PushOptions(TypedDict, total=False):
    """The options of ``set``; each stands for this push only, over the attribute of the same name.

    Three are no attributes: ``context``, facts for the ``meta.*`` fields; ``sync``, which runs the job here and now instead of
    pushing it (Sidekiq); and ``shard`` binds this one job, its retries too, whatever the rules say when it is due. ``expires_in``,
    ``timeout`` and ``track`` travel in the payload and have no effect yet: ``set`` warns of them.
    """

    queue: str
    shard: str
    retry: bool | int
    retry_for: timedelta | float
    retry_queue: str
    dead: bool
    backtrace: bool | int
    tags: tuple[str, ...]
    status_expiration: timedelta | float
    expires_in: timedelta | float
    timeout: timedelta | float
    track: bool
    context: Mapping[str, Json]
    sync: bool


_FACTS = "a mapping of names to JSON values"


def check_context(value: object) -> dict[str, Json]:
    """A copy of facts about a piece of work; raises Invalid when they are no mapping of names to JSON values."""
    if not isinstance(value, Mapping):
        raise Invalid(f"{_FACTS}; this is a {type(value).__name__}")
    facts = dict(cast("Mapping[str, Json]", value))
    try:
        check_exact(facts)  # a level of its own, as the payload is
    except InexactError as error:
        raise Invalid(f"{_FACTS}; context{error.path} {error.reason}") from None
    if "" in facts:
        raise Invalid(f"{_FACTS}; this has an empty name")
    return facts


_RULES: Mapping[str, Rule] = {
    "queue": values.queue,
    "shard": values.shard,
    "retry": values.switch_or_count(0),
    "retry_for": values.duration,
    "retry_queue": values.queue,
    "dead": values.boolean,
    "backtrace": values.switch_or_count(1),
    "tags": values.tags,
    "status_expiration": values.duration,
    "expires_in": values.duration,
    "timeout": values.duration,
    "track": values.boolean,
    "context": Rule(_FACTS, check_context),
    "sync": values.boolean,
}
_LATER = "Use perform_in or perform_at"
_SHARDS = "Name a configured shard: set(shard=...)"
_ADVICE: Mapping[str, str] = {
    **dict.fromkeys(("wait", "wait_until", "at", "delay"), _LATER),
    **dict.fromkeys(("pool", "store"), _SHARDS),
    "log_level": "The level is the process's: setting logging.level",
}


def check_options(worker: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, normalised; raises ArgumentsError for an unknown name or a value that is not allowed."""
    return {name: _check_option(worker, name, value) for name, value in options.items()}


def _check_option(worker: str, name: str, value: Any) -> Any:
    if name not in _RULES:
        raise ArgumentsError(worker, f"set() has no option {name!r}{_advice(name)}")
    try:
        return _RULES[name](value)
    except Invalid as error:
        raise ArgumentsError(worker, f"set({name}={short_repr(value)}) is not allowed. Allowed: {error}.") from None


def _advice(name: str) -> str:
    if name in _ADVICE:
        return f". {_ADVICE[name]}."
    options = f"Options: {', '.join(_RULES)}."
    if name in ATTRIBUTES:
        return f": it belongs to the class, and is the same for all its jobs. {options}"
    return f"{did_you_mean(name, _RULES)}. {options}"


def due_at(worker: str, when: object, clock: Callable[[], float]) -> Due | None:
    """When a job is due, or None when that is now or past (Sidekiq: it is pushed at once).

    A timedelta is a delay, and so is a number below 1,000,000,000; a larger one is epoch seconds. Raises
    ArgumentsError for a datetime without a time zone, NaN, infinity and anything else.
    """
    now = clock()
    due = _due(worker, when, now)
    if not math.isfinite(due.at):
        raise ArgumentsError(worker, f"cannot be due at {due.at}; give a finite time")
    if due.delay_s is not None:
        return due if due.delay_s > 0 else None
    return due if due.at > now else None


def _due(worker: str, when: object, now: float) -> Due:
    if isinstance(when, timedelta):
        return Due(now + when.total_seconds(), when.total_seconds())
    if isinstance(when, datetime):
        if when.tzinfo is None or when.utcoffset() is None:
            raise ArgumentsError(
                worker, "is due at a datetime without a time zone; use datetime.now(UTC), or .replace(tzinfo=...)"
            )
        return Due(when.timestamp())
    if isinstance(when, (int, float)) and not isinstance(when, bool):
        try:
            seconds = float(when)
        except OverflowError:
            seconds = math.inf
        return Due(now + seconds, seconds) if seconds < EPOCH_FROM else Due(seconds)
    raise ArgumentsError(
        worker, f"is due at a {type(when).__name__}; give a timedelta, an aware datetime or a number of seconds"
    )


def bulk_times(
    worker: str,
    delay: object,
    batch_size: int | None,
    batch_delay: timedelta | float | None,
    clock: Callable[[], float],
) -> tuple[Due | None, Pace | None]:
    """When the jobs of a bulk are due: all after ``delay``, or ``batch_size`` of them every ``batch_delay`` (GitLab).

    A pace whose ``delay`` is now or past begins now. Raises ArgumentsError when only one of the two is given, which would
    silently pace nothing (it does in GitLab).
    """
    if batch_size is None and batch_delay is None:
        return due_at(worker, delay, clock), None
    if batch_size is None or batch_delay is None:
        raise ArgumentsError(worker, "batch_size and batch_delay belong together; give both or neither")
    if type(batch_size) is not int or batch_size < 1:
        raise ArgumentsError(
            worker, f"batch_size = {short_repr(batch_size)} is not allowed. Allowed: a whole number >= 1"
        )
    try:
        step = values.duration(batch_delay).total_seconds()
    except Invalid as error:
        raise ArgumentsError(
            worker, f"batch_delay = {short_repr(batch_delay)} is not allowed. Allowed: {error}"
        ) from None
    now = clock()
    return due_at(worker, delay, lambda: now) or Due(now, 0.0), Pace(batch_size, step)
