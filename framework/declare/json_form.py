"""The form JSON gives a value: what arrives where strict arguments are not insisted on."""

import dataclasses
import enum
from collections.abc import Iterable
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

from pydantic import BaseModel
from pydantic_core import to_json, to_jsonable_python

from framework.declare.exact_json import MAX_DEPTH, TOO_DEEP, InexactError, check_exact

_TEXTS = (date, time, timedelta, Decimal, UUID)
"""What has one usual text: ISO 8601, the digits, the hexadecimal form. (A datetime is a date.)"""

_KEY_WORDS = {True: "true", False: "false", None: "null"}


def json_form(value: Any, room: int = MAX_DEPTH) -> Any:
    """``value`` as it arrives, made of the plain types alone; sets are sorted, so that equal ones arrive equal.

    Raises InexactError for what JSON cannot carry at all: NaN, bytes, half a surrogate pair, what holds itself, and
    objects that are neither dataclasses nor pydantic models.
    """
    if isinstance(value, enum.Enum):
        return json_form(value.value, room)
    if isinstance(value, _TEXTS):
        return to_jsonable_python(value)
    if isinstance(value, list | tuple):
        return _list(cast("Iterable[Any]", value), room)
    if isinstance(value, set | frozenset):
        return sorted(_list(cast("Iterable[Any]", value), room), key=to_json)
    if isinstance(value, dict):
        return _object(cast("dict[Any, Any]", value), room)
    if isinstance(value, BaseModel):
        return json_form(_dumped(value), room)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _object({field.name: getattr(value, field.name) for field in dataclasses.fields(value)}, room)
    plain = _plain(value)
    check_exact(plain)
    return plain


def _plain(value: Any) -> Any:
    """A text or number of somebody's own class as its base; everything else as it is."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else value


def _list(items: Iterable[Any], room: int) -> list[Any]:
    if not room:
        raise InexactError(TOO_DEEP)
    found: list[Any] = []
    for index, item in enumerate(items):
        try:
            found.append(json_form(item, room - 1))
        except InexactError as error:
            raise error.inside(index) from None
    return found


def _object(members: dict[Any, Any], room: int) -> dict[str, Any]:
    if not room:
        raise InexactError(TOO_DEEP)
    found: dict[str, Any] = {}
    for key, member in members.items():
        try:
            name = _key(key)
            if name in found:
                raise InexactError("has two keys that are the same text in JSON; one would be lost")
            found[name] = json_form(member, room - 1)
        except InexactError as error:
            raise error.inside(key) from None
    return found


def _key(key: Any) -> str:
    if key is None or isinstance(key, bool):
        return _KEY_WORDS[key]
    form = json_form(key) if isinstance(key, str | int | float | enum.Enum | date | time | Decimal | UUID) else key
    if isinstance(form, str):
        return form
    if type(form) is int or type(form) is float:
        return str(form)
    raise InexactError(f"has a key of type {type(key).__name__}; a JSON object's keys are str")


def _dumped(model: BaseModel) -> Any:
    try:
        return model.model_dump(mode="json")
    except Exception as error:  # noqa: BLE001 - a model's own serialisers may raise anything
        kind = type(model).__name__
        raise InexactError(f"is a {kind} that cannot be written as JSON ({type(error).__name__})") from None
