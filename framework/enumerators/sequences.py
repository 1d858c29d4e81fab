"""Enumerate a list, item by item or in batches. The cursor is the position in the list."""

from collections.abc import Generator, Sequence
from typing import TypeVar

from framework.enumerators.enumerator import Enumerator, position_of
from framework.text import format_count
from framework.wire.iteration_state import CursorError

T = TypeVar("T")


def items(sequence: Sequence[T], *, cursor: int | None) -> Enumerator[T]:
    """Return the items of a list that is the same in every run, such as an argument of the job."""
    start = _start(sequence, cursor, "items")

    def pairs() -> Generator[tuple[T, int]]:
        for index in range(start, len(sequence)):
            yield sequence[index], index

    return Enumerator(pairs(), len(sequence), start)


def batches(sequence: Sequence[T], size: int, *, cursor: int | None) -> Enumerator[Sequence[T]]:
    """Return the items of such a list in slices of ``size``. An interrupted batch runs again as a whole.

    Raises:
        ValueError: ``size`` is below 1.
    """
    if size < 1:
        raise ValueError(f"batches(size={size}): give a whole number from 1")
    start = _start(sequence, cursor, "batches")

    def pairs() -> Generator[tuple[Sequence[T], int]]:
        for index in range(start, len(sequence), size):
            yield sequence[index : index + size], index

    return Enumerator(pairs())


def _start(sequence: Sequence[T], cursor: int | None, name: str) -> int:
    start = position_of(cursor, name)
    if start and start >= len(sequence):
        raise CursorError(
            f"is behind the end of the list, which has {format_count(len(sequence), 'item')} now: it has changed meanwhile"
        )
    return start
