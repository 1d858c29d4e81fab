"""JSON as the wire needs it: exact integers, no NaN, nothing that a reader in Ruby or Python would refuse."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from pydantic_core import PydanticSerializationError, from_json, to_json

from framework.errors import PayloadError
from framework.wire.footprint import DECODED_LIMIT, LARGE_PAYLOAD, is_nested_deeper, may_exceed, measure, pieces

MAX_NESTING = 64
"""Levels of arrays and objects allowed in a payload. pydantic_core reads 200, Ruby's JSON 100; both are out of reach here."""

_class_of: Callable[[Any], type[Any]] = type
_TOO_DEEP = f"it is nested deeper than {MAX_NESTING} levels"
_UNCHECKED_BYTES = 4_000  # an integer of over 4,300 digits cannot be read back; below this size there is room for none
_ALL_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"0" * 9)
_DIGITS_IN_A_ROW = b"0" * _UNCHECKED_BYTES


def dumps(value: object) -> bytes:
    """Return ``value`` as compact UTF-8 JSON.

    Raises:
        PayloadError: a number is not finite, a string is not Unicode, or the nesting is deeper than readers allow.
    """
    data = _encode(value)
    if b"NaN" in data or b"Infinity" in data:
        _refuse_non_finite(value)
        loads(data, None)  # whatever that walk does not know, such as a tuple of a middleware's
    # Counting two bytes is far cheaper than looking at each; only what might be too deep or too long is looked at.
    if len(data) > _UNCHECKED_BYTES or data.count(b"[") + data.count(b"{") > MAX_NESTING:
        _refuse_unreadable(data)
    return data


def dumps_ordered(value: object) -> bytes:
    """Return like ``dumps``, with the names of every object in order: equal values have equal bytes."""
    return dumps(_ordered(value))


def dumps_exact(value: object, *, outer_levels: int) -> bytes:
    """Return like ``dumps`` what is known to be exact JSON but for its nesting, ``inside`` levels of a payload.

    Raises:
        PayloadError: the nesting is deeper than readers allow, or another thread has put something else in meanwhile.
    """
    data = _encode(value)
    room = MAX_NESTING - outer_levels
    # A level takes two bytes at least.
    if len(data) > 2 * room and data.count(b"[") + data.count(b"{") > room and _deeper_than(value, room):
        raise PayloadError(_TOO_DEEP)
    return data


def loads(data: bytes, decoded_limit: int | None = DECODED_LIMIT, reserve: Callable[[int], None] | None = None) -> Any:
    """Return the value that ``data`` holds; integers of any size stay exact.

    ``reserve`` is called before parsing with the bytes of memory that the value takes, if they are many. What was read before
    needs no ``decoded_limit``.

    Raises:
        PayloadError: ``data`` is not strict JSON (NaN, trailing bytes, invalid UTF-8, too deep).
        PayloadLimitError: the value would take more memory than ``decoded_limit``.
    """
    size = len(data)
    if decoded_limit is not None and (
        may_exceed(size, decoded_limit) or (reserve is not None and may_exceed(size, LARGE_PAYLOAD))
    ):
        memory = measure(partial(pieces, data), decoded_limit).memory
        if reserve is not None and memory > LARGE_PAYLOAD:
            reserve(memory)
    try:
        return from_json(data, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise PayloadError(str(error)) from error


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {name: _ordered(members[name]) for name in sorted(members)}
    return [_ordered(one) for one in cast("list[Any]", value)] if isinstance(value, list) else value


def _encode(value: object) -> bytes:
    try:
        return to_json(value)
    except (PydanticSerializationError, RecursionError, ValueError) as error:
        raise PayloadError(f"it cannot be written as JSON: {error}") from error


def _refuse_unreadable(data: bytes) -> None:
    """By its bytes: to read it back would take its memory a second time."""
    # Each level takes one of these bytes, so that fewer of them need no look at their depth.
    if data.count(b"[") + data.count(b"{") > MAX_NESTING and is_nested_deeper(data, MAX_NESTING):
        raise PayloadError(_TOO_DEEP)
    # Digits in a row may stand in a text; what they are, reading says.
    if len(data) > _UNCHECKED_BYTES and _DIGITS_IN_A_ROW in data.translate(_ALL_DIGITS_TO_ZERO):
        loads(data, None)


def _deeper_than(value: object, levels: int) -> bool:
    """Level by level, so that a deep value costs no stack."""
    layer: list[Any] = [value] if isinstance(value, list | dict) else []
    for _ in range(levels):
        # By exact type, without a call: this looks at every value of a large payload.
        layer = [
            child
            for parent in layer
            for child in (parent.values() if _class_of(parent) is dict else parent)
            if _class_of(child) is list or _class_of(child) is dict
        ]
        if not layer:
            return False
    return True


def _children(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(cast("dict[str, object]", value).values())
    return cast("list[object]", value) if isinstance(value, list) else []


def _refuse_non_finite(value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise PayloadError(f"the number {value} is not finite, and JSON has no word for it")
    for child in _children(value):
        _refuse_non_finite(child)
