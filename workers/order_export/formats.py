"""Write rows as parts of a CSV or .xlsx file, and join parts. Parts are written in parallel; the join only copies bytes."""

import csv
import io
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Final
from xml.sax.saxutils import escape
from zipfile import ZIP_DEFLATED, ZipFile

FORMATS: Final = ("csv", "xlsx")
MAX_SHEET_ROWS: Final = 1_048_576
"""Excel opens no sheet with more, its header among them."""

_BUFFERED_ROWS: Final = 1_000
_COPY_BYTES: Final = 1 << 20
_MAIN: Final = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE: Final = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE: Final = "http://schemas.openxmlformats.org/package/2006"
_TYPE: Final = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_XML: Final = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>'
_BEFORE_ROWS: Final = f'{_XML}<worksheet xmlns="{_MAIN}"><sheetData>'
_AFTER_ROWS: Final = "</sheetData></worksheet>"
_FIXED_PARTS: Final = {
    "[Content_Types].xml": f'{_XML}<Types xmlns="{_PACKAGE}/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    f'<Override PartName="/xl/workbook.xml" ContentType="{_TYPE}.sheet.main+xml"/>'
    f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{_TYPE}.worksheet+xml"/></Types>',
    "_rels/.rels": f'{_XML}<Relationships xmlns="{_PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{_OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    "xl/workbook.xml": f'{_XML}<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}">'
    '<sheets><sheet name="orders" sheetId="1" r:id="rId1"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": f'{_XML}<Relationships xmlns="{_PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{_OFFICE}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
}
# XML 1.0 has no such characters, not even escaped.
_NOT_IN_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def write_part(file: IO[bytes], kind: str, rows: Iterable[Sequence[Any]]) -> int:
    """Write rows to a part and return their number."""
    encode = _csv_text if kind == "csv" else _sheet_text
    count, buffered = 0, list[Sequence[Any]]()
    for row in rows:
        buffered.append(row)
        count += 1
        if len(buffered) == _BUFFERED_ROWS:
            file.write(encode(buffered).encode())
            buffered.clear()
    file.write(encode(buffered).encode())
    return count


def join_parts(file: IO[bytes], kind: str, columns: Sequence[str], parts: Iterable[Path]) -> None:
    """Write the whole file: the header, and the parts in their order. Raises OSError."""
    if kind == "csv":
        file.write(b"\xef\xbb\xbf")  # Excel reads UTF-8 only behind this mark
        file.write(_csv_text([columns]).encode())
        _copy(parts, file)
        return
    with ZipFile(file, "w", ZIP_DEFLATED, compresslevel=1) as archive:
        for name, text in _FIXED_PARTS.items():
            archive.writestr(name, text)
        with archive.open("xl/worksheets/sheet1.xml", "w", force_zip64=True) as sheet:
            sheet.write((_BEFORE_ROWS + _sheet_text([columns])).encode())
            _copy(parts, sheet)
            sheet.write(_AFTER_ROWS.encode())


def _copy(parts: Iterable[Path], file: IO[bytes]) -> None:
    for part in parts:
        with part.open("rb") as source:
            shutil.copyfileobj(source, file, _COPY_BYTES)


def _csv_text(rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([[_no_formula(value) for value in row] for row in rows])
    return text.getvalue()


def _no_formula(value: Any) -> Any:
    """Return a text that a spreadsheet program shows and does not compute: a customer may have written a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _sheet_text(rows: Sequence[Sequence[Any]]) -> str:
    return "".join(f"<row>{''.join(map(_cell, row))}</row>" for row in rows)


def _cell(value: Any) -> str:
    if isinstance(value, int | float):
        return f"<c><v>{value}</v></c>"
    text = escape(_NOT_IN_XML.sub("\ufffd", str(value)))
    return f'<c t="inlineStr"><is><t xml:space="preserve">{text}</t></is></c>'
