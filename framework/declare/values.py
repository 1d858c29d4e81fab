"""Rules for the values of attributes: each takes a value and gives it back normalised, or says what is allowed."""

import inspect
import math
import re
from collections.abc import Callable
from datetime import timedelta
from reprlib import repr as short_repr
from typing import Any, TypeAlias

from framework.settings.shapes import is_tuple
from framework.settings.suggest import did_you_mean

Rule: TypeAlias = Callable[[Any], Any]
"""Returns the normalised value; raises ``Invalid`` otherwise."""

QUEUE_NAME = re.compile(r"[A-Za-z0-9_.:-]+")
WIRE_NAME = re.compile(r"[A-Za-z_]\w*(::[A-Za-z_]\w*)*", re.ASCII)
_WORD = re.compile(r"\w+", re.ASCII)
_ROUTABLE = re.compile(r"[\w:]+", re.ASCII)
_SHARD = re.compile(r"\w[\w-]*", re.ASCII)


class Invalid(Exception):
    """A value is not allowed; the text says what is."""


def one_of(*allowed: str) -> Rule:
    """Exactly one of the given words."""

    def check(value: Any) -> str:
        if type(value) is str and value in allowed:
            return value
        raise Invalid(f"one of {', '.join(map(repr, allowed))}{did_you_mean(value, allowed)}")

    return check


def boolean(value: Any) -> bool:
    """True or False, nothing merely truthy."""
    if type(value) is bool:
        return value
    raise Invalid("True or False")


def integer(minimum: int) -> Rule:
    """A whole number from ``minimum`` on; a bool is none."""

    def check(value: Any) -> int:
        if type(value) is int and value >= minimum:
            return value
        raise Invalid(f"a whole number >= {minimum}")

    return check


def switch_or_count(minimum: int) -> Rule:
    """True, False or a whole number from ``minimum`` on."""

    def check(value: Any) -> bool | int:
        if type(value) is bool or (type(value) is int and value >= minimum):
            return value
        raise Invalid(f"True, False or a whole number >= {minimum}")

    return check


def share(value: Any) -> float:
    """A number from 0 to 1."""
    if type(value) in (int, float) and 0 <= value <= 1:
        return float(value)
    raise Invalid("a number from 0 to 1, for example 0.25")


def duration(value: Any) -> timedelta:
    """A positive span: a timedelta, or a number of seconds."""
    try:
        if isinstance(value, timedelta):
            span = value
        elif type(value) in (int, float) and math.isfinite(value):
            span = timedelta(seconds=value)
        else:
            raise Invalid("a timedelta, or a number of seconds")
    except OverflowError:
        raise Invalid("a timedelta of less than a thousand million days") from None
    if span > timedelta(0):
        return span
    raise Invalid("a positive timedelta, or a positive number of seconds")


def _matching(pattern: re.Pattern[str], allowed: str) -> Rule:
    def check(value: Any) -> str:
        if type(value) is str and pattern.fullmatch(value):
            return value
        raise Invalid(allowed)

    return check


word = _matching(_WORD, "a name of letters, digits and underscores")
queue = _matching(QUEUE_NAME, "a queue name of letters, digits and _ . : -")
shard = _matching(_SHARD, "a shard name of letters, digits, _ and -")
wire_name = _matching(WIRE_NAME, "a class name as it travels: words joined by '::', for example 'Chaos::SleepWorker'")
_tag = _matching(_ROUTABLE, "letters, digits, underscores and ':'")


def optional(rule: Rule) -> Rule:
    """None, or what ``rule`` allows."""

    def check(value: Any) -> Any:
        if value is None:
            return None
        try:
            return rule(value)
        except Invalid as error:
            raise Invalid(f"{error}, or None") from None

    return check


def tuple_of(rule: Rule, example: str) -> Rule:
    """A tuple whose members all follow ``rule``; a lone string is the classic slip and is named."""

    def check(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str):
            raise Invalid(f"a tuple; write {example} with the comma")
        if not is_tuple(value):
            raise Invalid(f"a tuple, for example {example}")
        for member in value:
            try:
                rule(member)
            except Invalid as error:
                raise Invalid(f"a tuple, and each member {error}; {short_repr(member)} is not") from None
        return value

    return check


tags = tuple_of(_tag, "('gitaly',)")
words = tuple_of(word, "('mode',)")
wire_names = tuple_of(wire_name, "('Old::NameWorker',)")


def instance_of(kind: type[Any], example: str) -> Rule:
    """None, or an instance of ``kind``."""

    def check(value: Any) -> Any:
        if value is None or isinstance(value, kind):
            return value
        raise Invalid(f"{example}, or None")

    return check


def limit(value: Any) -> Any:
    """None, a whole number (negative pauses), or a callable that can be called without arguments."""
    allowed = "a whole number, a callable without parameters that returns one, or None"
    candidate = value.__func__ if isinstance(value, staticmethod) else value
    if candidate is None or type(candidate) is int:
        return candidate
    if not callable(candidate) or isinstance(candidate, type):
        raise Invalid(allowed)
    try:
        inspect.signature(candidate).bind()
    except (TypeError, ValueError):
        raise Invalid(f"{allowed}; this callable wants arguments") from None
    return candidate
