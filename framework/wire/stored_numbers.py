"""Read numbers that Redis keeps as text. Any program may have written the text, so none of these functions raises.

A loop of a process, and a page of an operator, must go on past such a text. What is no finite number, or one that no clock and no
counter reaches, reads as a missing one.
"""

import math

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
