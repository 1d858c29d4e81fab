"""Declare what a policy tells ``jobs explain``: its reasons why jobs of a class do not run."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias


class Blocker(NamedTuple):
    """A reason why a job does not run, with a ``code`` for programs, and the remedy: a command, an event or a time."""

    code: str
    why: str
    remedy: str


BlockerReader: TypeAlias = Callable[[str, str], list[Blocker]]
"""Returns what blocks jobs of a class (the first argument) that a process fetches from a queue (the second)."""
