"""Define ``Enumerator``, an iterator of items with their cursors that may know how many there are."""

from collections.abc import Generator, Iterator
from typing import Any, Generic, TypeVar

from framework.typeguards import short_repr
from framework.wire.iteration_state import CursorError

T = TypeVar("T")


class Enumerator(Iterator[tuple[T, Any]], Generic[T]):
    """Pairs (item, cursor). The framework takes ``total`` for the progress of a job that sets none.

    ``done`` is the number of items before the cursor, where the cursor tells it: also those that a process of Ruby has run.
    """

    def __init__(self, pairs: Generator[tuple[T, Any]], total: int | None = None, done: int | None = None) -> None:
        self._pairs = pairs
        self.total = total
        self.done = done

    def __next__(self) -> tuple[T, Any]:
        """Return the next item and its cursor."""
        return next(self._pairs)

    def close(self) -> None:
        """Close files and connections of an enumerator that is not read to its end."""
        self._pairs.close()


def position_of(cursor: object, name: str) -> int:
    """Return the position in a cursor that counts items, 0 for none. Raises CursorError for one of another kind."""
    if cursor is None:
        return 0
    if type(cursor) is not int or cursor < 0:
        raise CursorError(f"is none of {name}(), whose cursors are whole numbers: {short_repr(cursor)}")
    return cursor
