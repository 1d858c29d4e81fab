"""Enumerate lists, the rows of files, and the members of Redis sets and hashes, with a cursor for each item.

The cursor of a list or of a file is the position; both must be the same in every run, a file on every host that may run the job.

The cursor of a set or a hash names the server and a page: an interrupted page runs again. A scan of another server, also of the same
one after its restart, would skip members, so it begins again. A member that is there all the time comes at least once; others may
or may not.
"""

import csv
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from importlib import import_module
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from framework.text import format_count
from framework.typeguards import short_repr
from framework.version import install_extra
from framework.wire.iteration_state import CursorError

if TYPE_CHECKING:
    import redis

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


def redis_set(client: "redis.Redis", key: str, *, cursor: Any, page_size: int = 100) -> Enumerator[Any]:
    """Return the members of a set, as ``client`` decodes them. Raises redis errors."""
    connection: Any = client

    def page(at: int) -> tuple[int, Iterable[Any]]:
        found: tuple[int, Iterable[Any]] = connection.sscan(key, at, count=page_size)
        return found

    return Enumerator(_scan(client, page, _checked(cursor, "redis_set")), connection.scard(key))


def redis_hash(client: "redis.Redis", key: str, *, cursor: Any, page_size: int = 100) -> Enumerator[tuple[Any, Any]]:
    """Return the pairs (field, value) of a hash, as ``client`` decodes them. Raises redis errors."""
    connection: Any = client

    def page(at: int) -> tuple[int, Iterable[tuple[Any, Any]]]:
        following, found = connection.hscan(key, at, count=page_size)
        return following, found.items()

    return Enumerator(_scan(client, page, _checked(cursor, "redis_hash")), connection.hlen(key))


def _checked(cursor: Any, name: str) -> tuple[str, int]:
    if cursor is None:
        return "", 0
    parts = cast("list[Any]", cursor) if isinstance(cursor, list) else []
    if [type(part) for part in parts] != [str, int]:
        raise CursorError(f"is none of {name}(): {short_repr(cast('object', cursor))}")
    server, at = parts
    return server, at


def _scan(
    client: "redis.Redis", page: Callable[[int], tuple[int, Iterable[T]]], start: tuple[str, int]
) -> Generator[tuple[T, list[Any]]]:
    connection: Any = client
    server = str(connection.info("server")["run_id"])
    at = start[1] if start[0] == server else 0
    while True:
        following, found = page(at)
        for member in found:
            yield member, [server, at]
        if not following:
            return
        at = int(following)


def csv_rows(
    path: str | PathLike[str], *, cursor: int | None, encoding: str = "utf-8-sig", delimiter: str = ","
) -> Enumerator[dict[str, str]]:
    """Return the rows of a CSV file with a header, each as a dict.

    Raises:
        OSError: the file cannot be read.
        ValueError: two columns of the header have the same name.
    """
    start = position_of(cursor, "csv_rows")

    def pairs() -> Generator[tuple[dict[str, str], int]]:
        with Path(path).open(newline="", encoding=encoding) as file:
            rows = csv.DictReader(file, delimiter=delimiter)
            _check_header(rows.fieldnames or (), path)
            yield from _from_row(rows, start, path)

    return Enumerator(pairs(), done=start)


def xlsx_rows(path: str | PathLike[str], *, cursor: int | None, sheet: str | None = None) -> Enumerator[dict[str, Any]]:
    """Return the rows of a sheet with a header, each as a dict; without ``sheet`` those of the active one.

    Cells have the types of Excel: numbers, texts, datetimes; formulas have their last value.

    Raises:
        ModuleNotFoundError: openpyxl is not installed.
        KeyError: the file has no such sheet.
        OSError: the file cannot be read.
        ValueError: two columns of the header have the same name.
    """
    start = position_of(cursor, "xlsx_rows")
    try:
        openpyxl: Any = import_module("openpyxl")
    except ImportError as error:
        raise ModuleNotFoundError(f"xlsx_rows() needs openpyxl ({error}): {install_extra('xlsx')}") from None

    def pairs() -> Generator[tuple[dict[str, Any], int]]:
        book: Any = openpyxl.load_workbook(path, read_only=True, data_only=True)
        try:
            if sheet is not None and sheet not in book.sheetnames:
                raise KeyError(f"{path} has no sheet {sheet!r}; its sheets: {', '.join(book.sheetnames)}")
            rows: Iterator[Any] = (book[sheet] if sheet is not None else book.active).iter_rows(values_only=True)
            names = ["" if name is None else str(name) for name in next(rows, ())]
            _check_header(names, path)
            yield from _from_row((dict(zip(names, row, strict=False)) for row in rows), start, path)
        finally:
            book.close()

    return Enumerator(pairs(), done=start)


def _check_header(names: Sequence[str], path: object) -> None:
    """Raise ValueError for a name that occurs twice: a dict would silently keep the last column. Empty names name nothing."""
    twice = next((name for index, name in enumerate(names) if name and name in names[:index]), None)
    if twice is not None:
        raise ValueError(
            f"{path} has several columns {twice!r}, and a row is a dict: give each column a name of its own"
        )


def _from_row(rows: Iterable[T], start: int, path: object) -> Iterator[tuple[T, int]]:
    found = False
    for index, row in enumerate(islice(rows, start, None), start):
        found = True
        yield row, index
    if start and not found:
        raise CursorError(f"is behind the last row of {path}: the file has changed meanwhile")
