"""Enumerate the rows of an SQL query in the order of a unique key, page by page (keyset pagination).

The cursor has the key of the row. Rows that are inserted or deleted meanwhile move no other row, as they do with OFFSET. Each page is
read on a connection of its own, which is closed before the rows are processed.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from datetime import date, datetime
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

from sqlalchemy import ColumnElement, Row, Select, and_, or_
from sqlalchemy.exc import NoSuchColumnError

from framework.enumerators.plain import Enumerator
from framework.typeguards import short_repr
from framework.wire.iteration_state import CursorError

_READERS: dict[type[Any], Callable[[str], Any]] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    UUID: UUID,
    Decimal: Decimal,
}
"""Types of keys that a cursor has as text."""


def sql_rows(
    connect: Callable[[], AbstractContextManager[Any]],
    statement: Select[Any],
    *,
    key: Any,
    cursor: Any,
    page_size: int = 1_000,
    total: int | None = None,
) -> Enumerator[Any]:
    """Return the rows of a query: of one column or entity its value, else a row.

    ``connect`` opens a connection or a session: ``engine.connect``, a ``sessionmaker``. ``key`` is a column of the query, or several,
    which are unique together and never NULL; an index must have them in this order. An order of the statement is replaced.

    Raises:
        ValueError: the statement has a limit, or the query lacks the key.
        CursorError: the cursor has another key. The job fails with its name.
    """
    pages = _Pages(connect, statement, key, cursor, page_size)

    def pairs() -> Generator[tuple[Any, list[Any]]]:
        for page in pages.read():
            for row in page:
                yield _item(row), pages.cursor_of(row)

    return Enumerator(pairs(), total)


def sql_batches(
    connect: Callable[[], AbstractContextManager[Any]],
    statement: Select[Any],
    *,
    key: Any,
    cursor: Any,
    size: int = 1_000,
    total: int | None = None,
) -> Enumerator[list[Any]]:
    """Return the rows in lists of ``size``; an interrupted list begins again with its first row. Otherwise as ``sql_rows``.

    Raises:
        ValueError: as ``sql_rows``.
    """
    pages = _Pages(connect, statement, key, cursor, size)

    def pairs() -> Generator[tuple[list[Any], list[Any]]]:
        for page in pages.read():
            yield [_item(row) for row in page], pages.cursor_of(page[0])

    return Enumerator(pairs(), total)


class _Pages:
    """The pages of one query from a cursor on."""

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[Any]],
        statement: Select[Any],
        key: Any,
        cursor: Any,
        size: int,
    ) -> None:
        if size < 1:
            raise ValueError(f"a page of {size} rows is not possible: give a whole number from 1")
        if statement._limit_clause is not None or statement._offset_clause is not None:  # pyright: ignore[reportPrivateUsage]
            raise ValueError("the statement has a limit or an offset, which would count in each page: leave it out")
        self._connect = connect
        self._columns = list(cast("Sequence[Any]", key)) if isinstance(key, list | tuple) else [key]
        self._statement = statement.order_by(None).order_by(*self._columns).limit(size)
        self._size = size
        self._start = None if cursor is None else self._decoded(cursor)

    def read(self) -> Generator[Sequence[Row[Any]]]:
        after, inclusive = self._start, True
        while True:
            statement = self._statement if after is None else self._statement.where(self._behind(after, inclusive))
            with self._connect() as connection:
                page: Sequence[Row[Any]] = connection.execute(statement).all()
            if page:
                yield page
            if len(page) < self._size:
                return
            after, inclusive = self._key_of(page[-1]), False

    def cursor_of(self, row: Row[Any]) -> list[Any]:
        return [_encoded(value) for value in self._key_of(row)]

    def _key_of(self, row: Row[Any]) -> list[Any]:
        found = [self._value(row, column) for column in self._columns]
        if any(value is None for value in found):
            raise ValueError(f"a row has NULL in its key {found}: a key must be unique and never NULL")
        return found

    def _value(self, row: Row[Any], column: Any) -> Any:
        try:
            return row._mapping[column]  # pyright: ignore[reportPrivateUsage] - its public name
        except (KeyError, NoSuchColumnError):
            if len(row) == 1 and hasattr(row[0], column.key):
                return getattr(row[0], column.key)
        raise ValueError(f"the query does not have its key {column}: select that column too")

    def _behind(self, values: list[Any], inclusive: bool) -> ColumnElement[bool]:  # noqa: FBT001 - of this class only
        """Return the condition for rows behind a key. Not every database compares rows, so it is written out."""
        conditions: list[Any] = []
        for at, (column, value) in enumerate(zip(self._columns, values, strict=True)):
            last = at == len(values) - 1
            step = column >= value if inclusive and last else column > value
            before = [one == other for one, other in zip(self._columns[:at], values, strict=False)]
            conditions.append(and_(*before, step))
        return or_(*conditions)

    def _decoded(self, cursor: Any) -> list[Any]:
        values = cast("list[Any]", cursor)
        if not isinstance(cursor, list) or len(values) != len(self._columns):
            raise CursorError(f"does not have the {len(self._columns)} values of the key: {short_repr(values)}")
        return [self._decoded_value(column, value) for column, value in zip(self._columns, values, strict=True)]

    def _decoded_value(self, column: Any, value: Any) -> Any:
        try:
            kind = column.type.python_type
        except (AttributeError, NotImplementedError):
            return value
        read = _READERS.get(kind)
        if read is None:
            if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
                return value
            raise CursorError(f"has {short_repr(value)} for the key {column}, which is of type {kind.__name__}")
        try:
            return read(value)
        except (TypeError, ValueError, ArithmeticError):
            reason = f"has {short_repr(value)} for the key {column}, which is of type {kind.__name__}"
            raise CursorError(reason) from None


def _item(row: Row[Any]) -> Any:
    return row[0] if len(row) == 1 else row


def _encoded(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, UUID | Decimal) else value
