"""Enumerate the rows of a CSV file or of a sheet of an .xlsx file. The cursor is the number of the row, from 0 behind the header.

The file must be the same in every run, on every host that may run the job.
"""

import csv
from collections.abc import Generator, Iterable, Iterator, Sequence
from importlib import import_module
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from framework.enumerators.enumerator import Enumerator, position_of
from framework.version import install_extra
from framework.wire.iteration_state import CursorError

T = TypeVar("T")


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
