"""Recognize parsed JSON that surely passes the check of strict arguments, without a visit of each value."""

import gc
from collections.abc import Callable
from typing import Any

_LEVELS = 63
"""The most nested arrays and objects that are visited. An argument may have one more (``declare/strict_json``): an empty object."""

_class_of: Callable[[Any], type[Any]] = type
# Digits and a plus become 0, so that two searches find each number that may be too large. They also find some texts.
_NUMBERS = bytes.maketrans(b"123456789E+", b"000000000e0")
_LONG, _LARGE = b"0" * 200, b"0e000"


# A number of fewer than 200 digits with an exponent below 100 is finite, and no integer is long.
def is_surely_strict(data: bytes, value: Any) -> bool:
    """Return whether ``value``, parsed from ``data``, surely passes ``check_strict_json``.

    ``False`` means that the check has to visit each value.
    """
    marks = data.translate(_NUMBERS)
    return _LARGE not in marks and _LONG not in marks and _is_shallow(value)


def _is_shallow(value: Any) -> bool:
    layer: list[Any] = [value]
    for _ in range(_LEVELS):
        # The garbage collector tracks every list and, up to Python 3.13, only those objects that contain a list or an object. So
        # the values of most objects are not visited.
        layer = [
            child
            for parent in layer
            for child in (parent.values() if _class_of(parent) is dict else parent)
            if gc.is_tracked(child)
        ]
        if not layer:
            return True
    return False
