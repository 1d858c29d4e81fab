"""Spreadsheets as programs write them."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape
from zipfile import ZIP_DEFLATED, ZipFile

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"


def csv_file(path: Path, *lines: str, header: str = "sku,name,category,price") -> Path:
    path.write_text("\n".join([header, *lines, ""]), encoding="utf-8")
    return path


def xlsx_file(path: Path, sheet: str, *, strings: str = "", head: str = "") -> Path:
    """Write an archive with the required parts and with ``sheet`` as the rows of its only sheet."""
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        archive.writestr(
            "xl/workbook.xml",
            f'<workbook xmlns="{MAIN}" xmlns:r="{OFFICE}"><sheets><sheet name="A" sheetId="1" r:id="rId7"/></sheets></workbook>',
        )
        archive.writestr(
            "xl/_rels/workbook.xml.rels",
            f'<Relationships xmlns="{PACKAGE}"><Relationship Id="rId2" Type="{OFFICE}/sharedStrings" Target="sharedStrings.xml"/>'
            f'<Relationship Id="rId7" Type="{OFFICE}/worksheet" Target="/xl/worksheets/sheet1.xml"/></Relationships>',
        )
        archive.writestr("xl/sharedStrings.xml", f'<sst xmlns="{MAIN}">{strings}</sst>')
        archive.writestr(
            "xl/worksheets/sheet1.xml",
            f'{head}<x:worksheet xmlns:x="{MAIN}"><x:sheetData>{sheet}</x:sheetData></x:worksheet>',
        )
    return path


def inline_rows(rows: Iterable[Sequence[str]]) -> str:
    """Return rows of inline strings without references, the shortest valid form."""
    cells = (
        "".join(f'<x:c t="inlineStr"><x:is><x:t>{escape(cell)}</x:t></x:is></x:c>' for cell in row) for row in rows
    )
    return "".join(f"<x:row>{row}</x:row>" for row in cells)
