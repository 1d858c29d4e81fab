"""Define a fuzz target: it makes inputs from a random source, and checks the framework with one."""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple


class WrongError(AssertionError):
    """The result contradicts a property of every input."""


class Target(NamedTuple):
    """One target. ``check`` returns the outcome in a word: the kind of value, or the framework's error. Any other error
    is a finding. ``weight``: its share of the inputs.
    """

    name: str
    weight: int
    make: Callable[[Random], Any]
    check: Callable[[Any], str]


def expect(holds: object, what: str) -> None:
    """Raise WrongError unless the property holds."""
    if not holds:
        raise WrongError(what)
