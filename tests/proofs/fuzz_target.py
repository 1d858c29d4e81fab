"""What is fuzzed: a target makes inputs from a random source, and checks what the framework does with one."""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple


class WrongError(AssertionError):
    """What came out contradicts what must hold of any input."""


class Target(NamedTuple):
    """``check`` returns the outcome in a word: what was read, or which of our errors said no. Whatever else it raises is a
    finding. ``weight``: its share of the inputs.
    """

    name: str
    weight: int
    make: Callable[[Random], Any]
    check: Callable[[Any], str]


def expect(holds: object, what: str) -> None:
    """Raise WrongError unless it holds."""
    if not holds:
        raise WrongError(what)
