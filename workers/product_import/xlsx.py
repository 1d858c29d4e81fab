"""The rows of the first sheet of an .xlsx file: XML in a zip archive, as ECMA-376 lays it down.

Any user can upload a file, so no part of it is trusted: a document type is refused (no entities, no expansion attacks),
and the number of unpacked bytes is limited, for any sizes in the archive.
"""

import posixpath
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from xml.parsers import expat
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

ZIP_MAGIC: Final = b"PK\x03\x04"
MAX_UNPACKED: Final = 512 * 1024 * 1024
MAX_COLUMNS: Final = 256

_CHUNK: Final = 256 * 1024
_REFERENCE: Final = re.compile(r"([A-Z]{1,3})[0-9]+")


class NotXlsxError(Exception):
    """The file is not what it should be; the text says how."""


class _Event(NamedTuple):
    """An event of the parser: ``start`` or ``end`` of an element (without its namespace), or ``text``."""

    kind: str
    name: str
    attributes: Mapping[str, str]


def xlsx_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Number and cells of each row; cells that are left out are empty. Raises ``NotXlsxError``."""
    try:
        with ZipFile(path) as archive:
            sheet, strings = _places(archive)
            yield from _rows(archive, sheet, list(_shared_strings(archive, strings)) if strings else [])
    # RuntimeError: encrypted. KeyError: a part or an attribute is missing. ValueError: a number is malformed.
    except (BadZipFile, KeyError, ValueError, EOFError, RuntimeError, zlib.error, expat.ExpatError) as error:
        raise NotXlsxError(f"it looks like .xlsx, but cannot be read ({error})") from error


def _places(archive: ZipFile) -> tuple[str, str | None]:
    """The parts that hold the first sheet, and the strings that its cells share."""
    relations = [
        event.attributes for event in _events(archive, "xl/_rels/workbook.xml.rels") if event.name == "Relationship"
    ]
    targets = {
        each["Id"]: posixpath.join("/xl", each["Target"]).removeprefix("/") for each in relations if "Id" in each
    }
    strings = [targets[each["Id"]] for each in relations if each.get("Type", "").endswith("/sharedStrings")]
    for event in _events(archive, "xl/workbook.xml"):
        if event.kind == "start" and event.name == "sheet":
            return targets[event.attributes["id"]], strings[0] if strings else None
    raise NotXlsxError("it has no sheet")


def _shared_strings(archive: ZipFile, part: str) -> Iterator[str]:
    text = _Text()
    for event in _events(archive, part):
        text.take(event)
        if event.name == "si" and event.kind == "end":
            yield text.taken()


def _rows(archive: ZipFile, part: str, strings: list[str]) -> Iterator[tuple[int, list[str]]]:
    number, cells, text = 0, list[str](), _Text()
    cell: Mapping[str, str] = {}
    for event in _events(archive, part):
        text.take(event)
        match event.kind, event.name:
            case "start", "row":
                number, cells = int(event.attributes.get("r", number + 1)), []
            case "start", "c":
                cell = event.attributes
                text.taken()
            case "end", "c":
                _put(cells, cell.get("r"), _value(cell.get("t", "n"), text.taken(), strings))
            case "end", "row":
                yield number, cells
            case _:
                pass


def _put(cells: list[str], reference: str | None, value: str) -> None:
    found = _REFERENCE.fullmatch(reference or "")
    column = _column(found[1]) if found else len(cells)
    if column >= MAX_COLUMNS:
        raise NotXlsxError(f"it has more than {MAX_COLUMNS} columns")
    cells.extend([""] * (column - len(cells)))
    cells.append(value)


def _column(letters: str) -> int:
    """From 0: A is 0, Z is 25, AA is 26."""
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - ord("A") + 1
    return number - 1


def _value(kind: str, text: str, strings: list[str]) -> str:
    if not text:
        return ""
    try:
        if kind == "s":
            return strings[int(text)]
        # Programs store the nearest binary fraction (12.499999999999998) and show fifteen digits of it (12.5).
        return format(float(text), ".15g") if kind == "n" else text
    except (ValueError, IndexError):
        raise NotXlsxError(f"a cell holds {text[:40]!r}, which does not fit its type") from None


class _Text:
    """The text of the elements that hold a value: ``v`` and ``t``, but not how a ``t`` is pronounced (``rPh``)."""

    def __init__(self) -> None:
        self._inside = False
        self._phonetic = False
        self._pieces: list[str] = []

    def take(self, event: _Event) -> None:
        if event.kind == "text":
            if self._inside and not self._phonetic:
                self._pieces.append(event.name)
        elif event.name in ("v", "t"):
            self._inside = event.kind == "start"
        elif event.name == "rPh":
            self._phonetic = event.kind == "start"

    def taken(self) -> str:
        """The text since the last call."""
        text = "".join(self._pieces)
        self._pieces.clear()
        return text


def _events(archive: ZipFile, part: str) -> Iterator[_Event]:
    """Return the events of one part of the archive, read piece by piece."""
    found: list[_Event] = []
    parser = _parser(found)
    unpacked = 0
    if archive.getinfo(part).compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise NotXlsxError("it is packed in a way that no spreadsheet program uses")
    with archive.open(part) as file:
        while chunk := file.read(_CHUNK):
            unpacked += len(chunk)
            if unpacked > MAX_UNPACKED:
                raise NotXlsxError(f"it unpacks to more than {MAX_UNPACKED:,} bytes")
            parser.Parse(chunk, False)
            yield from found
            found.clear()
    parser.Parse(b"", True)
    yield from found


def _parser(found: list[_Event]) -> expat.XMLParserType:
    def local(name: str) -> str:
        return name.rpartition(" ")[2]

    def start(name: str, attributes: Mapping[str, str]) -> None:
        found.append(_Event("start", local(name), {local(key): value for key, value in attributes.items()}))

    def refuse(*_: object) -> None:
        raise NotXlsxError("it has a document type, which no spreadsheet program writes")

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda name: found.append(_Event("end", local(name), {}))
    parser.CharacterDataHandler = lambda text: found.append(_Event("text", text, {}))
    parser.StartDoctypeDeclHandler = refuse
    return parser
