"""Check that a value is exactly JSON, and arrives unchanged in Python and in Ruby; or return the JSON form in which it arrives."""

import dataclasses
import enum
import math
from collections.abc import Callable, Iterable
from datetime import date, time, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any, cast
from uuid import UUID

from pydantic import BaseModel
from pydantic_core import to_json, to_jsonable_python

from framework.declare.pushed import NotAwaitable, PushedJid
from framework.text import with_article
from framework.typeguards import short_repr

MAX_DEPTH = 64
"""Levels of lists and objects in an argument of a push of this framework. Ruby's parser stops at 100, pydantic_core's at 200."""

MAX_PARSED_DEPTH = 200
"""Levels in an argument that another program pushed: what the parser reads, so that a job of Ruby, of up to 100, is run."""

MAX_DIGITS = 4_000
"""Digits of a whole number. pydantic_core's parser and Python's own conversion stop at 4,300."""

CONTAINERS: frozenset[type[Any]] = frozenset({list, dict})
PLAIN_TYPES: frozenset[type[Any]] = frozenset({str, int, float, bool, NoneType})
"""The types without parts: a list of such values is never too deep, and to_json checks the rest."""
_PLAIN: frozenset[type[Any]] = CONTAINERS | PLAIN_TYPES

TOO_DEEP_MESSAGE = f"is nested deeper than {MAX_DEPTH} levels; pass it flatter, or as a str of JSON"

_class_of: Callable[[Any], type[Any]] = type
_INTEGER_LIMIT = 10**MAX_DIGITS
# From so many values on, a check by levels takes less time. A list that it does not accept is visited value by value.
_MANY = 32
_OBJECT_ADVICE = "pass an id, or a dict of plain values"
_ADVICE = {
    "tuple": "it would arrive as a list; pass a list",
    "set": "pass a sorted list",
    "frozenset": "pass a sorted list",
    "bytes": "pass a str, for example base64",
    "bytearray": "pass a str, for example base64",
    "datetime": "pass epoch seconds or an ISO 8601 str",
    "date": "pass an ISO 8601 str",
    "time": "pass an ISO 8601 str",
    "timedelta": "pass a number of seconds",
    "Decimal": "pass a str",
    "UUID": "pass str(value)",
}


class NotJsonError(Exception):
    """A value that JSON cannot carry; ``path`` leads from the argument to it, such as ``['tags'][3]``."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.path = ""
        super().__init__(reason)

    def prepend_step(self, step: object) -> "NotJsonError":
        """Return the same error, with one more step at the front of its path."""
        self.path = f"[{short_repr(step)}]{self.path}"
        return self


def check_strict_json(value: Any, depth_left: int = MAX_DEPTH) -> None:
    """Raise NotJsonError unless ``value`` survives the wire unchanged.

    Only plain types pass. A subclass (an IntEnum, an application's own str) arrives as its base type, so it is refused.
    """
    kind = _class_of(value)
    if kind is str:
        if not value.isascii():
            _check_text(value)
    elif kind is int:
        if not -_INTEGER_LIMIT < value < _INTEGER_LIMIT:
            raise NotJsonError(f"is a whole number of more than {MAX_DIGITS:,} digits; pass it as a str")
    elif kind is bool or value is None:
        return
    elif kind is float:
        if not math.isfinite(value):
            raise NotJsonError(f"is {value}, which JSON cannot write; pass None or a str")
    elif kind is list:
        _check_list(value, depth_left)
    elif kind is dict:
        _check_object(value, depth_left)
    else:
        _check_rare(value, kind, depth_left)


def _check_rare(value: Any, kind: type[Any], depth_left: int) -> None:
    if not issubclass(kind, NotAwaitable):
        raise NotJsonError(_rejection_reason(kind))
    check_strict_json(value.plain(value), depth_left)


def is_strict_parsed(value: list[Any] | dict[str, Any]) -> bool:
    """Return whether a value that a JSON parser made passes ``check_strict_json``, in less than half of its time.

    A parser makes plain types and Unicode texts; only its numbers and its depth may be refused.
    """
    return _are_levels_strict(value, MAX_PARSED_DEPTH, parsed=True)


def _are_levels_strict(value: Any, depth_left: int, *, parsed: bool) -> bool:
    """Return whether a list or an object passes, level by level: a call per level and not per value.

    ``False`` may be wrong, ``True`` never is. Keys and texts of a ``parsed`` value need no check.
    """
    level: list[Any] = [value]
    for _ in range(depth_left):
        values: list[Any] = []
        names: list[Any] = []
        for container in level:
            if _class_of(container) is dict:
                values += container.values()
                if not parsed:
                    names += container
            else:
                values += container
        kinds = set(map(_class_of, values))
        if not (kinds <= _PLAIN and _are_finite(values, kinds)):
            return False
        if not (parsed or _are_texts(names, [one for one in values if _class_of(one) is str])):
            return False
        if kinds.isdisjoint(CONTAINERS):
            return True
        level = [one for one in values if _class_of(one) in CONTAINERS]
        if not parsed:
            # Each once: of a list that holds itself several times each level would be a multiple of the last.
            level = list({id(one): one for one in level}.values())
    return False


def _are_finite(values: list[Any], kinds: set[type[Any]]) -> bool:
    if float in kinds and not all(map(math.isfinite, [one for one in values if _class_of(one) is float])):
        return False
    if int not in kinds:
        return True
    numbers = [one for one in values if _class_of(one) is int]
    return bool(min(numbers) > -_INTEGER_LIMIT and max(numbers) < _INTEGER_LIMIT)


def _are_texts(names: list[Any], texts: list[str]) -> bool:
    """Return whether all names are texts, and no text has half of a surrogate pair."""
    if not set(map(_class_of, names)) <= {str}:
        return False
    for whole in ("".join(names), "".join(texts)):
        if not whole.isascii():
            try:
                whole.encode()
            except UnicodeEncodeError:
                return False
    return True


def _check_list(items: list[Any], depth_left: int) -> None:
    if not depth_left:
        raise NotJsonError(TOO_DEEP_MESSAGE)
    if len(items) > _MANY and _are_levels_strict(items, depth_left, parsed=False):
        return
    index = 0
    try:
        for index, item in enumerate(items):  # noqa: B007 - read by the handler
            check_strict_json(item, depth_left - 1)
    except NotJsonError as error:
        raise error.prepend_step(index) from None


def _check_object(members: dict[Any, Any], depth_left: int) -> None:
    if not depth_left:
        raise NotJsonError(TOO_DEEP_MESSAGE)
    if len(members) > _MANY and _are_levels_strict(members, depth_left, parsed=False):
        return
    key: Any = None
    try:
        for key, member in members.items():
            if type(key) is not str or not key.isascii():
                _check_key(key)
            check_strict_json(member, depth_left - 1)
    except NotJsonError as error:
        raise error.prepend_step(key) from None


def _check_key(key: Any) -> None:
    if type(key) not in (str, PushedJid):
        raise NotJsonError(f"has a key of type {type(key).__name__}; a JSON object's keys are str")
    _check_text(key)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise NotJsonError(
            f"holds half of a surrogate pair at character {error.start}, which is no Unicode text; decode it with errors='replace'"
        ) from None


def _rejection_reason(kind: type[Any]) -> str:
    name = with_article(kind.__name__)
    for ancestor in kind.__mro__:
        if ancestor.__name__ in _ADVICE:
            return f"is {name}, which JSON cannot carry: {_ADVICE[ancestor.__name__]}"
    plain = next((base for base in (bool, int, float, str, list, dict) if issubclass(kind, base)), None)
    if plain is None:
        return f"is {name}, which JSON cannot carry: {_OBJECT_ADVICE}"
    advice = "its .value" if issubclass(kind, enum.Enum) else f"{plain.__name__}(value)"
    return f"is {name}, which would arrive as a plain {plain.__name__}; pass {advice}"


_TEXT_TYPES = (date, time, timedelta, Decimal, UUID)
"""Types with one usual text: ISO 8601, the digits, the hexadecimal form. (A datetime is a date.)"""

_KEY_LITERALS = {True: "true", False: "false", None: "null"}


def to_json_value(value: Any, depth_left: int = MAX_DEPTH) -> Any:
    """Return ``value`` as it arrives, made of plain types; sets are sorted, so that equal sets arrive equal.

    Raises NotJsonError for a value that JSON cannot carry: NaN, bytes, half a surrogate pair, a container that holds itself, and
    objects that are neither dataclasses nor pydantic models.
    """
    # The serialiser of pydantic-core would accept bytes, NaN and two keys of one text, and change them silently.
    if isinstance(value, enum.Enum):
        return to_json_value(value.value, depth_left)
    if isinstance(value, _TEXT_TYPES):
        return to_jsonable_python(value)
    if isinstance(value, list | tuple):
        return _list_to_json(cast("Iterable[Any]", value), depth_left)
    if isinstance(value, set | frozenset):
        return sorted(_list_to_json(cast("Iterable[Any]", value), depth_left), key=to_json)
    if isinstance(value, dict):
        return _object_to_json(cast("dict[Any, Any]", value), depth_left)
    if isinstance(value, BaseModel):
        return to_json_value(_dump_model(value), depth_left)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _object_to_json(
            {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}, depth_left
        )
    plain = _to_builtin(value)
    check_strict_json(plain)
    return plain


def _to_builtin(value: Any) -> Any:
    """Return a text or number of a subclass as its base type; everything else unchanged."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else value


def _list_to_json(items: Iterable[Any], depth_left: int) -> list[Any]:
    if not depth_left:
        raise NotJsonError(TOO_DEEP_MESSAGE)
    found: list[Any] = []
    for index, item in enumerate(items):
        try:
            found.append(to_json_value(item, depth_left - 1))
        except NotJsonError as error:
            raise error.prepend_step(index) from None
    return found


def _object_to_json(members: dict[Any, Any], depth_left: int) -> dict[str, Any]:
    if not depth_left:
        raise NotJsonError(TOO_DEEP_MESSAGE)
    found: dict[str, Any] = {}
    for key, member in members.items():
        try:
            name = _key_to_json(key)
            if name in found:
                raise NotJsonError("has two keys that are the same text in JSON; one would be lost")
            found[name] = to_json_value(member, depth_left - 1)
        except NotJsonError as error:
            raise error.prepend_step(key) from None
    return found


def _key_to_json(key: Any) -> str:
    if key is None or isinstance(key, bool):
        return _KEY_LITERALS[key]
    form = to_json_value(key) if isinstance(key, str | int | float | enum.Enum | date | time | Decimal | UUID) else key
    if isinstance(form, str):
        return form
    if type(form) is int or type(form) is float:
        return str(form)
    raise NotJsonError(f"has a key of type {type(key).__name__}; a JSON object's keys are str")


def _dump_model(model: BaseModel) -> Any:
    try:
        return model.model_dump(mode="json")
    except Exception as error:  # noqa: BLE001 - a model's own serialisers may raise anything
        kind = type(model).__name__
        raise NotJsonError(f"is {with_article(kind)} that cannot be written as JSON ({type(error).__name__})") from None
