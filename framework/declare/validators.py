"""Validators of attribute values: each returns the value normalised, or says what is allowed; and the collector of their errors."""

import inspect
import math
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

from framework.cron_expression import CRON_FORMAT, MOST_SPREAD_S, TIME_ZONE_FORMAT, check_cron, check_time_zone
from framework.errors import DeclarationError
from framework.text import did_you_mean
from framework.typeguards import is_list, is_mapping, is_tuple, short_repr
from framework.types import QUEUE_NAME, WIRE_NAME, WIRE_NAME_FORMAT


@dataclass(frozen=True, slots=True)
class Validator:
    """The allowed values of an attribute. A call returns the value normalised, or raises ``InvalidValue``."""

    allowed: str
    """The allowed values in words: for messages and for the documentation."""
    check: Callable[[Any], Any]
    schema: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The same as JSON Schema, where a file can hold such a value: for ``workers/all_queues.schema.json``."""

    def __call__(self, value: Any) -> Any:
        """Return the normalised value. Raises ``InvalidValue`` otherwise."""
        return self.check(value)


_IDENTIFIER = re.compile(r"[A-Za-z0-9_]+")
_TAG = re.compile(r"[A-Za-z0-9_:]+")
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
# Without \w, so that JSON Schema's regular expressions match what Python's match.
_MAX_DIGITS = 15


class InvalidValue(Exception):
    """A value is not allowed; the text says what is."""


def validate_value(worker: str, name: str, value: Any, validator: Validator, inherited_note: str = "") -> Any:
    """Return the normalised value. Raises DeclarationError naming worker, attribute, value and the allowed values.

    ``place`` names the class of an inherited value, for the message.
    """
    try:
        return validator(value)
    except InvalidValue as error:
        message = f"{name} = {short_repr(value)}{inherited_note} is not allowed. Allowed: {error}."
        raise DeclarationError(worker, message, attribute=name) from None


def one_of(*choices: str) -> Validator:
    """Allow exactly the given words."""
    allowed = f"one of {', '.join(map(repr, choices))}"

    def check(value: Any) -> str:
        if type(value) is str and value in choices:
            return value
        raise InvalidValue(f"{allowed}{did_you_mean(value, choices)}")

    return Validator(allowed, check, {"enum": list(choices)})


def _boolean(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise InvalidValue(boolean.allowed)


boolean = Validator("True or False", _boolean, {"type": "boolean"})
"""Allows True and False, and no merely truthy value."""


def _limit_digits(number: int, allowed: str) -> int:
    # A longer number counts nothing, and would be refused later: at each push, or in a generated file.
    if abs(number) < 10**_MAX_DIGITS:
        return number
    raise InvalidValue(f"{allowed}, of at most {_MAX_DIGITS} digits")


def integer(minimum: int, maximum: int | None = None) -> Validator:
    """Allow whole numbers from ``minimum`` to ``maximum`` (``None``: no maximum), and no bool."""
    allowed = f"a whole number >= {minimum}" if maximum is None else f"a whole number from {minimum} to {maximum:,}"

    def check(value: Any) -> int:
        if type(value) is int and value >= minimum and (maximum is None or value <= maximum):
            return _limit_digits(value, allowed)
        raise InvalidValue(allowed)

    bounds = {"minimum": minimum} if maximum is None else {"minimum": minimum, "maximum": maximum}
    return Validator(allowed, check, {"type": "integer", **bounds})


def boolean_or_count(minimum: int) -> Validator:
    """Allow True, False and whole numbers from ``minimum`` on."""
    allowed = f"True, False or a whole number >= {minimum}"

    def check(value: Any) -> bool | int:
        if type(value) is bool:
            return value
        if type(value) is int and value >= minimum:
            return _limit_digits(value, allowed)
        raise InvalidValue(allowed)

    return Validator(allowed, check, {"anyOf": [boolean.schema, integer(minimum).schema]})


def _fraction(value: Any) -> float:
    if type(value) in (int, float) and 0 <= value <= 1:
        return float(value)
    raise InvalidValue(fraction.allowed)


fraction = Validator("a number from 0 to 1, for example 0.25", _fraction)


def _duration(value: Any) -> timedelta:
    try:
        if isinstance(value, timedelta):
            span = value
        elif type(value) in (int, float) and math.isfinite(value):
            span = timedelta(seconds=value)
        else:
            raise InvalidValue(duration.allowed)
    except OverflowError:
        raise InvalidValue(f"{duration.allowed}, of less than a thousand million days") from None
    if span > timedelta(0):
        return span
    raise InvalidValue(duration.allowed)


duration = Validator("a positive timedelta, or a positive number of seconds", _duration)
"""Allows spans of time, normalised to a timedelta."""


def _wait(value: Any) -> float:
    if type(value) in (int, float) and value == 0:
        return 0.0
    try:
        span: timedelta = duration(value)
    except InvalidValue as error:
        raise InvalidValue(f"0, or {error}") from None
    return span.total_seconds()


wait = Validator(f"0, or {duration.allowed}", _wait)
"""Allows spans of time and 0, normalised to seconds."""


def _delays(value: Any) -> tuple[timedelta, ...]:
    members: tuple[Any, ...] = value if is_tuple(value) else (value,)
    try:
        found = tuple(duration(one) for one in members)
    except InvalidValue:
        raise InvalidValue(delays.allowed) from None
    if not found:
        raise InvalidValue(delays.allowed)
    return found


delays = Validator("a positive timedelta or number of seconds, or a tuple of them, for example (5, 30, 300)", _delays)
"""Allows one delay, or one after the other; normalised to a tuple."""


def _spread(value: Any) -> timedelta:
    # A span that is no duration, except for 0, is refused with the words of this validator.
    try:
        span = timedelta(0) if type(value) in (int, float) and value == 0 else duration(value)
    except InvalidValue:
        raise InvalidValue(spread.allowed) from None
    if span.microseconds or span.total_seconds() > MOST_SPREAD_S:
        raise InvalidValue(spread.allowed)
    return span


spread = Validator(f"a whole number of seconds from 0 to {MOST_SPREAD_S:,}, or such a timedelta", _spread)
"""Allows the time over which the entries of the schedule spread their jobs."""


def duration_up_to(most: timedelta, words: str) -> Validator:
    """Allow a span from a second to ``most``, which ``words`` names."""
    allowed = f"a timedelta, or a number of seconds, from 1 s to {words}"

    def check(value: Any) -> timedelta:
        try:
            span: timedelta = duration(value)
        except InvalidValue:
            raise InvalidValue(allowed) from None
        if not timedelta(seconds=1) <= span <= most:
            raise InvalidValue(allowed)
        return span

    return Validator(allowed, check)


def _matching(pattern: re.Pattern[str], allowed: str) -> Validator:
    def check(value: Any) -> str:
        if type(value) is str and pattern.fullmatch(value):
            return value
        raise InvalidValue(allowed)

    return Validator(allowed, check, {"type": "string", "pattern": f"^({pattern.pattern})$"})


identifier = _matching(_IDENTIFIER, "a name of letters, digits and underscores")
queue = _matching(QUEUE_NAME, "a queue name of letters, digits and _ . : -, without a - in front")
shard = _matching(_SHARD, "a shard name of letters, digits, _ and -")
wire_name = _matching(WIRE_NAME, WIRE_NAME_FORMAT)
_tag = _matching(_TAG, "letters, digits, underscores and ':'")


def _checked_by(check: Callable[[object], str], allowed: str) -> Validator:
    """Return a validator around a check that raises ValueError with what is allowed."""

    def check_value(value: Any) -> str:
        try:
            return check(value)
        except ValueError as error:
            raise InvalidValue(str(error).removeprefix("must be ")) from None

    return Validator(allowed, check_value, {"type": "string"})


cron = _checked_by(check_cron, CRON_FORMAT)
time_zone = _checked_by(check_time_zone, TIME_ZONE_FORMAT)


def optional(validator: Validator) -> Validator:
    """Allow None, and the values of ``validator``."""

    def check(value: Any) -> Any:
        if value is None:
            return None
        try:
            return validator(value)
        except InvalidValue as error:
            raise InvalidValue(f"{error}, or None") from None

    return Validator(f"{validator.allowed}, or None", check, {"anyOf": [validator.schema, {"type": "null"}]})


def tuple_of(validator: Validator, example: str) -> Validator:
    """Allow tuples whose members all follow ``rule``. A lone string is the usual mistake, and the message says so."""
    allowed = f"a tuple, for example {example}; each member {validator.allowed}"

    def check(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str):
            raise InvalidValue(f"{allowed}. Write ({short_repr(value)},) with the comma")
        if not is_tuple(value):
            raise InvalidValue(allowed)
        for member in value:
            try:
                validator(member)
            except InvalidValue:
                raise InvalidValue(f"{allowed}; {short_repr(member)} is not") from None
        return value

    return Validator(allowed, check, {"type": "array", "items": validator.schema})


tags = tuple_of(_tag, "('gitaly',)")


def _tags_of_push(value: Any) -> tuple[str, ...]:
    found: tuple[str, ...] = tags(tuple(value) if is_list(value) else value)
    return found


tags_of_push = Validator(tags.allowed.replace("a tuple,", "a tuple or a list,"), _tags_of_push, tags.schema)
"""The tags of a push may be a list: what is in a payload is one."""
identifiers = tuple_of(identifier, "('mode',)")
queues = tuple_of(queue, "('projects',)")
wire_names = tuple_of(wire_name, "('Old::NameWorker',)")


def mapping_of(key_validator: Validator, value_validator: Validator, example: str) -> Validator:
    """Allow dicts that are not empty, whose keys follow ``key`` and whose values follow ``rule``; return a copy."""
    allowed = f"a dict, for example {example}; each key {key_validator.allowed}, each value {value_validator.allowed}"

    def check(value: Any) -> dict[str, Any]:
        if not is_mapping(value) or not value:
            raise InvalidValue(allowed)
        try:
            return {key_validator(name): value_validator(member) for name, member in value.items()}
        except InvalidValue as error:
            raise InvalidValue(f"{allowed}; this has one that is not {error}") from None

    return Validator(allowed, check, {"type": "object", "additionalProperties": value_validator.schema})


def instance_of(kind: type[Any], example: str) -> Validator:
    allowed = f"{example}, or None"

    def check(value: Any) -> Any:
        if value is None or isinstance(value, kind):
            return value
        raise InvalidValue(allowed)

    return Validator(allowed, check)


def _resolver(value: Any) -> Any:
    if not callable(value) or isinstance(value, type) or inspect.iscoroutinefunction(value):
        raise InvalidValue(resolver.allowed)
    try:
        inspect.signature(value).bind(())
    except (TypeError, ValueError):
        raise InvalidValue(f"{resolver.allowed}; this callable takes another number of arguments") from None
    return value


resolver = Validator("a callable that takes a job's arguments as one tuple and returns (database, tables)", _resolver)


def _identifier_or_callable(value: Any) -> Any:
    if callable(value) and not isinstance(value, type) and not inspect.iscoroutinefunction(value):
        return value
    try:
        return identifier(value)
    except InvalidValue:
        raise InvalidValue(identifier_or_callable.allowed) from None


identifier_or_callable = Validator(
    f"{identifier.allowed}, or a function that takes a job's arguments as one tuple", _identifier_or_callable
)


def _limit(value: Any) -> Any:
    candidate = value.__func__ if isinstance(value, staticmethod) else value
    if candidate is None:
        return candidate
    if type(candidate) is int:
        return _limit_digits(cast("int", candidate), limit.allowed)
    if not callable(candidate) or isinstance(candidate, type):
        raise InvalidValue(limit.allowed)
    if inspect.iscoroutinefunction(candidate) or inspect.isgeneratorfunction(candidate):
        raise InvalidValue(f"{limit.allowed}; this callable returns a coroutine or a generator, not a number")
    try:
        inspect.signature(candidate).bind()
    except (TypeError, ValueError):
        raise InvalidValue(f"{limit.allowed}; this callable needs arguments") from None
    return candidate


limit = Validator("a whole number (negative pauses), a callable without parameters that returns one, or None", _limit)


class ErrorCollector:
    """The faults of the class that messages call ``worker``, in the order in which they were found."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.errors: list[DeclarationError] = []

    def add(self, message: str, attribute: str) -> None:
        self.errors.append(DeclarationError(self.worker, message, attribute=attribute))

    @contextmanager
    def collect(self) -> Generator[None]:
        """Note a DeclarationError that the block raises, and go on after the block."""
        try:
            yield
        except DeclarationError as error:
            self.errors += error.problems

    def has_error_in(self, attribute: str) -> bool:
        """Whether a fault of this attribute, method or parameter has been noted."""
        return any(fault.attribute == attribute for fault in self.errors)

    def raise_errors(self) -> None:
        """Raise all noted faults as one DeclarationError; without any, return."""
        if self.errors:
            raise _combined(self.worker, self.errors)


def _combined(worker: str, errors: list[DeclarationError]) -> DeclarationError:
    """Return one error for all faults of a class: the only one, or a list of them."""
    problems = list({problem.message: problem for error in errors for problem in error.problems}.values())
    if len(problems) == 1:
        return problems[0]
    listed = "".join(f"\n  - {problem.message}" for problem in problems)
    error = DeclarationError(worker, f"{len(problems)} problems:{listed}", attribute=problems[0].attribute)
    error.problems = tuple(problems)
    return error
