"""Read and write JSON for the wire: exact integers, no NaN, nothing that a Ruby or Python reader would refuse.

Read numbers that Redis keeps as text. Any program may have written the text, so none of these functions raises.
"""

import math
import re
from collections.abc import Callable, Collection
from functools import partial
from gc import is_tracked
from typing import Any, cast

from pydantic_core import PydanticSerializationError, from_json, to_json

from framework.errors import PayloadError
from framework.wire.footprint import DECODED_LIMIT, LARGE_PAYLOAD, is_nested_deeper, may_exceed, measure, pieces

MAX_NESTING = 64
"""The most nested arrays and objects that this framework writes, below the limits of pydantic_core (200) and of Ruby's JSON (100).
``loads`` reads what other programs push up to the limit of pydantic_core, which protects the stack of the process."""

_class_of: Callable[[Any], type[Any]] = type
_TOO_DEEP = f"it is nested deeper than {MAX_NESTING} levels"
# Python refuses to read an integer of more than 4,300 digits. Shorter JSON cannot contain one.
_UNCHECKED_BYTES = 4_000
_FEW_TEXTS = 8
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
        # Parsing finds the values that the walk misses, such as NaN in a tuple of a middleware.
        loads(data, None)
    # Counting two bytes is far cheaper than parsing: only data that may be too deep or too long is checked.
    if len(data) > _UNCHECKED_BYTES or data.count(b"[") + data.count(b"{") > MAX_NESTING:
        _refuse_unreadable(data)
    return data


def dumps_ordered(value: object) -> bytes:
    """Return ``value`` as JSON with the names of every object sorted: equal values have equal bytes. Raises as ``dumps``."""
    return dumps(_ordered(value))


def dumps_exact(value: object, *, outer_levels: int) -> bytes:
    """Return as JSON a value already checked except for its nesting, which will be inside of ``outer_levels`` levels.

    Raises:
        PayloadError: the nesting is deeper than readers allow, or another thread has changed the value meanwhile.
    """
    data = _encode(value)
    room = MAX_NESTING - outer_levels
    # Each level takes at least two bytes.
    if len(data) > 2 * room and data.count(b"[") + data.count(b"{") > room and _deeper_than(value, room):
        raise PayloadError(_TOO_DEEP)
    return data


def dumps_parsed(value: object) -> bytes:
    """Return as JSON a value that ``loads`` has returned: it may be nested as deep as another program wrote it.

    Raises:
        PayloadError: a number is not finite.
    """
    data = _encode(value)
    if b"NaN" in data or b"Infinity" in data:
        _refuse_non_finite(value)
    return data


def dumps_known(value: object) -> bytes:
    """Return as JSON a value of texts and whole numbers whose depth is known. Raises PayloadError for a text that is not Unicode."""
    return _encode(value)


def loads(data: bytes, decoded_limit: int | None = DECODED_LIMIT, reserve: Callable[[int], None] | None = None) -> Any:
    """Return the value in ``data``; integers of any size stay exact.

    ``reserve`` is called before parsing with the bytes of memory that a large value takes. Data checked before needs no
    ``decoded_limit``.

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


def loads_object(data: bytes, decoded_limit: int | None = DECODED_LIMIT) -> dict[str, Any]:
    """Return the JSON object in ``data``, or an empty dict if it is anything else."""
    try:
        value = loads(data, decoded_limit)
    except PayloadError:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def json_contains(texts: Collection[str]) -> Callable[[bytes], object]:
    """Return a fast test whether JSON may contain one of the texts, also with escapes: all other JSON need not be parsed."""
    words = [rb"\u00", *(text.encode(errors="surrogatepass") for text in texts)]
    if len(words) > _FEW_TEXTS:
        return re.compile(b"|".join(map(re.escape, words))).search
    # The search for one text at a time is twenty times as fast as that for any of them, and a loop takes longer than a search.
    if len(words) == 2:
        escape, word = words
        return lambda data: word in data or escape in data
    return lambda data: any(word in data for word in words)


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
    """Raise PayloadError for JSON that readers refuse, by its bytes: parsing it would take its memory a second time."""
    # Each level takes one of these bytes: with few of them the depth needs no check.
    if data.count(b"[") + data.count(b"{") > MAX_NESTING and is_nested_deeper(data, MAX_NESTING):
        raise PayloadError(_TOO_DEEP)
    # A long row of digits may be inside of a text: only parsing shows which.
    if len(data) > _UNCHECKED_BYTES and _DIGITS_IN_A_ROW in data.translate(_ALL_DIGITS_TO_ZERO):
        loads(data, None)


def _deeper_than(value: object, levels: int) -> bool:
    """Return whether ``value`` is nested deeper than ``levels``, level by level, so that a deep value costs no stack."""
    layer: list[Any] = [value] if isinstance(value, list | dict) else []
    for left in range(levels, 0, -1):
        # Exact types, for speed: this loop visits every value of a large payload. The garbage collector tracks every list and, up to
        # Python 3.13, only those objects that contain a list or an object. An untracked object has no deeper level: it can be too
        # deep only at the last level.
        layer = [
            child
            for parent in layer
            for child in (parent.values() if _class_of(parent) is dict else parent)
            if (left == 1 or is_tracked(child)) and (_class_of(child) is list or _class_of(child) is dict)
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
        raise PayloadError(f"the number {value} is not finite: JSON cannot represent it")
    for child in _children(value):
        _refuse_non_finite(child)


# A loop of a process, and a page of an operator, must go on past such a text. What is no finite number, or one that no clock and no
# counter reaches, reads as a missing one.

_MOST_COUNT = 2.0**53
"""Lua's numbers represent whole numbers exactly up to this one."""

_LATEST_S = 253_402_300_799.0
"""The last second of the year 9999, in epoch seconds: later ones have no date."""

_LONGEST = 64
"""The most characters of a number. Reading a text of megabytes as a number would take long."""


def stored_time(value: bytes | str | float | None) -> float | None:
    """Return a time in seconds, ``None`` if there is none."""
    return _number(value, _LATEST_S)


def stored_number(value: bytes | str | float | None) -> float:
    """Return a number, 0 if there is none."""
    return _number(value, _MOST_COUNT) or 0.0


def stored_count(value: bytes | str | float | None) -> int:
    """Return a whole number that is not negative, 0 if there is none."""
    return max(0, int(stored_number(value)))


def _number(value: bytes | str | float | None, most: float) -> float | None:
    if value is None or (isinstance(value, bytes | str) and len(value) > _LONGEST):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) and abs(number) <= most else None
