"""Declare the reasons for which a policy lets no job of a class run, as ``jobs explain`` shows them."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias


class Blocker(NamedTuple):
    """A reason why a job does not run, with a ``code`` for programs, and the remedy: a command, an event or a time."""

    code: str
    why: str
    remedy: str


BlockerReader: TypeAlias = Callable[[str, str], list[Blocker]]
"""Returns what blocks jobs of a class (the first argument) that a process fetches from a queue (the second)."""
