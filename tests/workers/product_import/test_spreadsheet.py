"""Read uploaded files: spreadsheets of several programs, and files that are no spreadsheet."""

import random
from pathlib import Path

import pytest

from framework import BusinessError
from tests.workers.sheets import csv_file, inline_rows, xlsx_file
from workers.product_import import spreadsheet, xlsx
from workers.product_import.spreadsheet import SURPLUS, read_spreadsheet

HEADER = ["sku", "name", "category", "price"]
PRODUCT = {"sku": "H-1", "name": "Hammer", "category": "tools", "price": "12.5"}


def read(path: Path) -> list[tuple[int, dict[str, str]]]:
    return [tuple(row) for row in read_spreadsheet(path).rows]


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("sku,name,category,price\r\nH-1,Hammer,tools,12.5\r\n", "utf-8"),
        (" SKU ;Name;Category;Price;\nH-1;Hammer;tools;12.5;\n", "utf-8-sig"),
        ("sku\tname\tcategory\tprice\nH-1\tHammer\ttools\t12.5", "utf-16"),
    ],
    ids=["comma", "semicolon, byte order mark, capitals", "tab, UTF-16"],
)
def test_csv_of_several_programs(tmp_path: Path, text: str, encoding: str) -> None:
    assert read(written(tmp_path / "a.csv", text.encode(encoding))) == [(2, PRODUCT)]


def test_csv_lines_are_those_of_the_file(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "a.csv", "", '1,"two\nlines",tools,1', ",,,", "2,b,tools,2,,x, y")
    assert [(line, cells["sku"]) for line, cells in read(path)] == [(3, "1"), (6, "2")]
    assert read(path)[1][1][SURPLUS] == "x |  y"


def test_xlsx_with_rare_cell_forms_is_read(tmp_path: Path) -> None:
    """Shared, rich and inline text, numbers as binary fractions, gaps, and rows and cells without references."""
    strings = (
        "<si><t>sku</t></si><si><r><t>na</t></r><r><t>me</t></r><rPh><t>ne-mu</t></rPh></si><si><t>Hammer</t></si>"
    )
    rows = (
        '<x:row r="2"><x:c t="s"><x:v>0</x:v></x:c><x:c t="s"><x:v>1</x:v></x:c>'
        '<x:c t="inlineStr"><x:is><x:t>category</x:t></x:is></x:c><x:c t="str"><x:f>A1</x:f><x:v>price</x:v></x:c></x:row>'
        '<x:row r="5"><x:c r="A5"><x:v>4711</x:v></x:c><x:c r="B5" t="s"><x:v>2</x:v></x:c>'
        '<x:c r="D5"><x:v>12.499999999999998</x:v></x:c></x:row><x:row/>'
        '<x:row><x:c/><x:c r="AA7"><x:v>1E3</x:v></x:c></x:row>'
    )
    path = xlsx_file(tmp_path / "whatever.bin", rows, strings=strings)
    first = {"sku": "4711", "name": "Hammer", "category": "", "price": "12.5"}
    assert read(path) == [(5, first), (7, {"sku": "", "name": "", "category": "", "price": "", SURPLUS: "1000"})]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has no column sku, name, category, price in its first row; it has: nothing"),
        (b"sku,name,category\n", "has no column price in its first row; it has: sku, name, category"),
        (b"\x89PNG\r\n\x1a\n", "is no text in UTF-8; save it as"),
        ("sku,name,category,price\n1,Häkchen".encode("latin-1"), "is no text in UTF-8"),
        (b'sku,name,category,price\n1,"a" b,tools,1\n', "is no spreadsheet: '.' expected after"),
        (b"sku,name,category,price\n1," + b"x" * 200_000, "is no spreadsheet: field larger than"),
        (b"PK\x03\x04 and then nothing", "looks like .xlsx, but cannot be read"),
    ],
)
def test_file_that_is_no_spreadsheet_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(BusinessError, match=message):
        read(written(tmp_path / "a.csv", data))


@pytest.mark.parametrize(
    ("sheet", "head", "message"),
    [
        ("", '<!DOCTYPE x [<!ENTITY a "aaaa">]>', "it has a document type"),
        ("<x:row>", "", "cannot be read"),
        ('<x:row r="x"/>', "", "cannot be read"),
        ('<x:row><x:c t="s"><x:v>9</x:v></x:c></x:row>', "", "a cell holds '9', which does not fit its type"),
        ("<x:row><x:c><x:v>soon</x:v></x:c></x:row>", "", "a cell holds 'soon'"),
        ('<x:row><x:c r="ZZZ1"><x:v>1</x:v></x:c></x:row>', "", "more than 256 columns"),
    ],
)
def test_xlsx_with_false_sizes_is_refused(tmp_path: Path, sheet: str, head: str, message: str) -> None:
    with pytest.raises(BusinessError, match=message):
        read(xlsx_file(tmp_path / "a.xlsx", sheet, head=head))


def test_spreadsheet_that_fills_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xlsx, "MAX_UNPACKED", 1_000_000)
    with pytest.raises(BusinessError, match="unpacks to more than 1,000,000 bytes"):
        read(xlsx_file(tmp_path / "large.xlsx", inline_rows([HEADER]) + " " * 5_000_000))
    monkeypatch.setattr(spreadsheet, "MAX_ROWS", 2)
    with pytest.raises(BusinessError, match="more than 2 rows"):
        read(csv_file(tmp_path / "a.csv", *["1,a,tools,1"] * 3))


def test_xlsx_damaged_is_read_or_refused(tmp_path: Path) -> None:
    good = xlsx_file(tmp_path / "good.xlsx", inline_rows([HEADER, list(PRODUCT.values())])).read_bytes()
    rng = random.Random(7)
    refused = 0
    for _ in range(100):
        damaged = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(4, len(damaged))] = rng.randrange(256)
        try:
            read(written(tmp_path / "damaged.xlsx", bytes(damaged)))
        except BusinessError:
            refused += 1
    assert refused > 0
