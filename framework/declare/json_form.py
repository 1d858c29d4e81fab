"""The JSON form of a value: what arrives where strict arguments are not required."""

import dataclasses
import enum
from collections.abc import Iterable
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

from pydantic import BaseModel
from pydantic_core import to_json, to_jsonable_python

from framework.declare.strict_json import MAX_DEPTH, TOO_DEEP_MESSAGE, NotJsonError, check_strict_json
from framework.text import with_article

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
