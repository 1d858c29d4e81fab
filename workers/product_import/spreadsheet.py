"""Read a spreadsheet, CSV or .xlsx, as rows of named cells, each with its line number."""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from framework import BusinessError
from workers.product_import.product_row import REQUIRED_COLUMNS
from workers.product_import.xlsx import ZIP_MAGIC, NotXlsxError, xlsx_lines

MAX_ROWS: Final = 200_000
SURPLUS: Final = "(surplus cells)"
"""The column of cells to the right of the last named one."""

_ENCODINGS: Final = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


class Row(NamedTuple):
    """A row that is not empty: its first line (from 1, as in spreadsheet programs) and its cells."""

    line: int
    cells: dict[str, str]


class Spreadsheet(NamedTuple):
    """The names of the columns, and the rows below them, which are read as they are taken."""

    columns: list[str]
    rows: Iterator[Row]


def read_spreadsheet(path: Path) -> Spreadsheet:
    """Return the spreadsheet at ``path``, whatever its name.

    Raises ``BusinessError`` when it is none or lacks a column, in words for the user who uploaded it; taking its rows may raise
    it as well. Raises ``OSError`` when the file cannot be read.
    """
    lines = _with_user_errors(path, _lines(path))
    _, header = next(lines, (0, list[str]()))
    columns = [cell.strip().lower() for cell in header]
    missing = [name for name in REQUIRED_COLUMNS if name not in columns]
    if missing:
        raise BusinessError(
            f"{path.name} has no column {', '.join(missing)} in its first row; it has: {_column_list(columns)}"
        )
    return Spreadsheet([name for name in columns if name], _rows(path, columns, lines))


def _rows(path: Path, columns: list[str], lines: Iterable[tuple[int, list[str]]]) -> Iterator[Row]:
    for count, (line, cells) in enumerate(lines):
        if count == MAX_ROWS:
            raise BusinessError(f"{path.name} has more than {MAX_ROWS:,} rows; split it into several files")
        named = {name: cell for name, cell in zip(columns, cells, strict=False) if name}
        surplus = [cell for cell in cells[len(columns) :] if cell.strip()]
        yield Row(line, named | ({SURPLUS: " | ".join(surplus)} if surplus else {}))


def _with_user_errors(path: Path, lines: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines that are not empty; the readers' errors become words for the user who uploaded the file."""
    try:
        for line, cells in lines:
            if any(cell.strip() for cell in cells):
                yield line, cells
    except UnicodeError as error:
        raise BusinessError(f"{path.name} is no text in UTF-8; save it as 'CSV UTF-8' or as .xlsx") from error
    except (csv.Error, NotXlsxError) as error:
        raise BusinessError(f"{path.name} is no spreadsheet: {error}") from error


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    with path.open("rb") as file:
        magic = file.read(len(ZIP_MAGIC))
    return xlsx_lines(path) if magic == ZIP_MAGIC else _csv_lines(path, _ENCODINGS.get(magic[:2], "utf-8-sig"))


def _csv_lines(path: Path, encoding: str) -> Iterator[tuple[int, list[str]]]:
    with path.open(encoding=encoding, newline="") as file:
        first = file.readline()
        file.seek(0)
        # The header holds no prices, so its most frequent separator is the right one: a comma, or the separator of
        # countries with a decimal comma.
        reader = csv.reader(file, delimiter=max(",;\t", key=first.count), strict=True)
        begins = 1
        for cells in reader:
            yield begins, cells
            begins = reader.line_num + 1  # a quoted cell may hold line breaks


def _column_list(columns: list[str]) -> str:
    shown = ", ".join(name for name in columns if name)[:100]
    return shown or "nothing"
