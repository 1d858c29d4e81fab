"""Make limiters, one function for each kind: the functions of ``framework.limiter``."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, TypeAlias, get_args

from framework.declare import validators
from framework.declare.validators import InvalidValue, Validator, validate_value
from framework.features.limiters.limiter import (
    CallLimiter,
    LimiterKind,
    LimiterRule,
    OverLimitPolicy,
    PointsLimiter,
    WithoutShard,
)

Interval: TypeAlias = Literal["second", "minute", "hour", "day"] | timedelta | float
Backoff: TypeAlias = Callable[[int], timedelta | float]

_INTERVALS = {"second": 1.0, "minute": 60.0, "hour": 3_600.0, "day": 86_400.0}
# Not with a dash in front: a command would read it as an option.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
_WAIT_S = 5.0
_LOCK_S = 30.0
_MAX_LIMIT = 10**9


def concurrent(
    name: str,
    limit: int,
    *,
    wait_timeout: timedelta | float = _WAIT_S,
    lock_timeout: timedelta | float = _LOCK_S,
    policy: OverLimitPolicy = "reschedule",
    reschedules: int = 20,
    backoff: Backoff | None = None,
    shard: str | None = None,
    without_shard: WithoutShard = "raise",
) -> CallLimiter:
    """Limit how many blocks run at a time. A limit of 1 is a lock for all processes.

    ``lock_timeout`` (a timedelta or seconds) is the most time that a block may take: then its place is free for another block, as
    after the death of its process.

    Raises:
        DeclarationError: a value is not allowed; so do all functions of this module.
    """
    lock_s = _span(name, "lock_timeout", lock_timeout)
    options = _options(name, wait_timeout, policy, reschedules, backoff, shard, without_shard)
    return CallLimiter(_rule(name, "concurrent", limit, lock_s=lock_s, **options))


def bucket(
    name: str,
    limit: int,
    interval: Interval,
    *,
    wait_timeout: timedelta | float = _WAIT_S,
    policy: OverLimitPolicy = "reschedule",
    reschedules: int = 20,
    backoff: Backoff | None = None,
    shard: str | None = None,
    without_shard: WithoutShard = "raise",
) -> CallLimiter:
    """Limit the calls in each interval of the clock, such as each minute. Around the end of an interval twice the limit may come."""
    options = _options(name, wait_timeout, policy, reschedules, backoff, shard, without_shard)
    return CallLimiter(_rule(name, "bucket", limit, interval_s=_interval(name, interval), **options))


def window(
    name: str,
    limit: int,
    interval: Interval,
    *,
    wait_timeout: timedelta | float = _WAIT_S,
    policy: OverLimitPolicy = "reschedule",
    reschedules: int = 20,
    backoff: Backoff | None = None,
    shard: str | None = None,
    without_shard: WithoutShard = "raise",
) -> CallLimiter:
    """Limit the calls in any span of this length: the span slides, and no span has more than ``limit``."""
    options = _options(name, wait_timeout, policy, reschedules, backoff, shard, without_shard)
    return CallLimiter(_rule(name, "window", limit, interval_s=_interval(name, interval), **options))


def leaky(
    name: str,
    size: int,
    drain: Interval,
    *,
    wait_timeout: timedelta | float = _WAIT_S,
    policy: OverLimitPolicy = "reschedule",
    reschedules: int = 20,
    backoff: Backoff | None = None,
    shard: str | None = None,
    without_shard: WithoutShard = "raise",
) -> CallLimiter:
    """Admit ``size`` calls at once, then one for each that has drained: a full bucket drains evenly in ``drain``."""
    options = _options(name, wait_timeout, policy, reschedules, backoff, shard, without_shard)
    return CallLimiter(_rule(name, "leaky", size, interval_s=_interval(name, drain), **options))


def points(
    name: str,
    capacity: int,
    refill: float,
    *,
    wait_timeout: timedelta | float = _WAIT_S,
    policy: OverLimitPolicy = "reschedule",
    reschedules: int = 20,
    backoff: Backoff | None = None,
    shard: str | None = None,
    without_shard: WithoutShard = "raise",
) -> PointsLimiter:
    """Limit the cost of calls, in points: at most ``capacity`` are available, and ``refill`` come back each second."""
    rate = validate_value(_title(name), "refill", refill, _REFILL)
    options = _options(name, wait_timeout, policy, reschedules, backoff, shard, without_shard)
    return PointsLimiter(_rule(name, "points", capacity, refill=rate, **options))


def unlimited(name: str = "unlimited") -> CallLimiter:
    """Admit every call, and send nothing: for tests, and for customers without a limit."""
    return CallLimiter(_rule(name, "unlimited", 1))


def _rule(name: str, kind: LimiterKind, limit: int, **facts: Any) -> LimiterRule:
    name = validate_value("framework.limiter", "name", name, _NAMED)
    word = {"leaky": "size", "points": "capacity"}.get(kind, "limit")
    return LimiterRule(name, kind, validate_value(_title(name), word, limit, _LIMIT), **facts)


def _options(
    name: str,
    wait_timeout: object,
    policy: object,
    reschedules: object,
    backoff: object,
    shard: object,
    without_shard: object,
) -> dict[str, Any]:
    title = _title(name)
    return {
        "wait_s": validate_value(title, "wait_timeout", wait_timeout, validators.wait),
        "policy": validate_value(title, "policy", policy, validators.one_of("reschedule", "raise", "skip")),
        "reschedules": validate_value(title, "reschedules", reschedules, validators.integer(0)),
        "backoff": validate_value(title, "backoff", backoff, _BACKOFF),
        "shard": validate_value(title, "shard", shard, validators.optional(validators.shard)),
        "without_shard": validate_value(
            title, "without_shard", without_shard, validators.one_of(*get_args(WithoutShard))
        ),
    }


def _title(name: object) -> str:
    return f"limiter {name!r}"


def _span(name: str, option: str, value: object) -> float:
    span: timedelta = validate_value(_title(name), option, value, validators.duration)
    return span.total_seconds()


def _interval(name: str, value: object) -> float:
    seconds: float = validate_value(_title(name), "interval", value, _INTERVAL)
    return seconds


def _check_interval(value: Any) -> float:
    if isinstance(value, str) and value in _INTERVALS:
        return _INTERVALS[value]
    try:
        span: timedelta = validators.duration(value)
    except InvalidValue:
        raise InvalidValue(_INTERVAL.allowed) from None
    if timedelta(milliseconds=10) <= span <= timedelta(days=366):
        return span.total_seconds()
    raise InvalidValue(_INTERVAL.allowed)


def _check_name(value: Any) -> str:
    # Also a jid that a push on an event loop has returned.
    if isinstance(value, str) and _NAME.fullmatch(value):
        return str(value)
    raise InvalidValue(_NAMED.allowed)


def _check_limit(value: Any) -> int:
    if type(value) is int and 1 <= value <= _MAX_LIMIT:
        return value
    raise InvalidValue(_LIMIT.allowed)


def _check_refill(value: Any) -> float:
    if type(value) in (int, float) and 1e-6 <= value <= _MAX_LIMIT:
        return float(value)
    raise InvalidValue(_REFILL.allowed)


def _check_backoff(value: Any) -> Any:
    if value is None or callable(value):
        return value
    raise InvalidValue(_BACKOFF.allowed)


_INTERVAL = Validator(
    "'second', 'minute', 'hour', 'day', or a timedelta or a number of seconds, from 10 ms to 366 days", _check_interval
)
_NAMED = Validator("a name of at most 100 letters, digits, _ and -, without a - in front", _check_name)
_LIMIT = Validator(f"a whole number from 1 to {_MAX_LIMIT:,}", _check_limit)
_REFILL = Validator(f"a number of points per second from 0.000001 to {_MAX_LIMIT:,}", _check_refill)
_BACKOFF = Validator(
    "a function of the count of reschedules that returns seconds or a timedelta, or None", _check_backoff
)
