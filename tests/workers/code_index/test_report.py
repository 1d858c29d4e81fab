"""Check the report page: complete, safe for any file name, and rendered by a real browser."""

import os
import struct
import subprocess
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chromium import browser, browser_command
from workers.atomic_write import write_atomically
from workers.code_index.report.markup import Column, breakable, table, tag
from workers.code_index.report.page import LISTED_REFUSALS, render
from workers.code_index.run_statistics import FileRow, HistogramBar, PackageRow, RefusedRow, RunStatistics, Totals

__all__ = ["browser"]

HOSTILE_NAME = "</title></style><script>alert(1)</script><img src=x onerror=alert(2)>\"' onload='alert(3)&amp;/a_b.py"


def figures(name: str = "package/module.py", refused: int = 3, files: int = 40) -> RunStatistics:
    rows = [FileRow(name, 1000 * i, 100 * i, 0.001 * i, name, 10 * i) for i in range(12, 0, -1)]
    return RunStatistics(
        run_id=name,
        roots=(name, "/usr/lib/python3.11"),
        created_at=1_790_000_000.0,
        totals=Totals(files, files - refused, refused, 81_000, 12_345, 678, 90, 1.5, 2.0),
        slowest=rows,
        largest=rows,
        longest_functions=rows,
        packages=[PackageRow(name, 9, 9_000, 1), PackageRow("other", 1, 10, 0)],
        packages_total=2,
        refused=[RefusedRow(name, "syntax", name) for _ in range(refused)],
        sizes=[HistogramBar(str(i), f"{i} lines", i * i) for i in range(9)],
        completions=[HistogramBar(str(i), f"from {i} s", 7 * i % 11) for i in range(40)],
        bar_width_s=0.5,
    )


class Reader(HTMLParser):
    """Parses a page as a browser does, and keeps the parts that the tests check."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize("name", ["package/module.py", HOSTILE_NAME])
def test_page_loads_and_runs_nothing(name: str) -> None:
    page = Reader(render(figures(name)))
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "img", "link", "iframe", "object", "embed", "base", "form", "a", "image", "use"}
    attributes = {attribute for _, attributes in page.tags for attribute in attributes}
    assert not {attribute for attribute in attributes if attribute.startswith("on")}
    assert not attributes & {"src", "href", "xlink:href", "srcset", "action", "style"}
    assert any("default-src 'none'" in (attributes.get("content") or "") for _, attributes in page.tags)
    assert "url(" not in render(figures(name))
    assert "@import" not in render(figures(name))


def test_hostile_names_are_text() -> None:
    page = Reader(render(figures(HOSTILE_NAME)))
    assert HOSTILE_NAME in "".join(page.text)
    assert HOSTILE_NAME in [
        attributes.get("aria-label") for _, attributes in Reader(tag("p", aria_label=HOSTILE_NAME)).tags
    ]


def test_chart_has_a_name_and_a_table() -> None:
    page = Reader(render(figures()))
    pictures = [attributes for name, attributes in page.tags if name == "svg"]
    assert len(pictures) == 3
    assert all(picture["role"] == "img" and picture["aria-label"] for picture in pictures)
    text = " ".join(page.text)
    for number in ("9,000", "64", "from 39 s"):
        assert number in text


def test_table_has_a_caption_and_named_rows() -> None:
    page = Reader(render(figures()))
    count = sum(name == "table" for name, _ in page.tags)
    assert count == 7
    assert sum(name == "caption" for name, _ in page.tags) == count
    scopes = {attributes.get("scope") for name, attributes in page.tags if name == "th"}
    assert scopes == {"col", "row"}


def test_page_of_an_empty_run() -> None:
    empty = RunStatistics("r", (), 0.0, Totals(0, 0, 0, 0, 0, 0, 0, 0.0, 0.0), [], [], [], [], 0, [], [], [], 0.1)
    text = " ".join(Reader(render(empty)).text)
    assert "No Python file was found" in text
    assert "None: every file was read and parsed." in text


def test_page_of_one_file_of_each_kind() -> None:
    assert "1 file, 12,345 lines; one does not parse" in render(figures(refused=1, files=1))
    assert "1 file, 12,345 lines; it parses" in render(figures(refused=0, files=1))


def test_page_of_many_failures_names_the_rest() -> None:
    text = " ".join(Reader(render(figures(refused=LISTED_REFUSALS + 7, files=1000))).text)
    assert "7 more are in the database" in text


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_markup_escapes_text(text: str) -> None:
    made = table(text, [Column[str]("Name", lambda row: row), Column[str]("Again", breakable)], [text])
    assert "".join(Reader(made).text) == f"{text}NameAgain{text}{text}"


def test_write_that_fails_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "reports" / "page.html"
    write_atomically(page, "old")

    def fail(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(page, "new")
    assert page.read_text() == "old"
    assert list(page.parent.iterdir()) == [page]
    assert page.stat().st_mode & 0o777 == 0o600


# --- in a browser ---------------------------------------------------------------------------------------------------


def opened(browser: str, folder: Path, page: Path, *flags: str) -> str:
    """Open the page without a window and return the output of the browser."""
    command = browser_command(browser, folder, *flags, page.as_uri())
    done = subprocess.run(command, capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode(errors="replace")


def picture(path: Path) -> tuple[int, int, tuple[int, ...], int]:
    """Return the width, the height, the first pixel, and the number of nonzero bytes in the rows of the picture."""
    data = path.read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    position, rows = 8, b""
    while position < len(data):
        (length,) = struct.unpack(">I", data[position : position + 4])
        if data[position + 4 : position + 8] == b"IDAT":
            rows += data[position + 8 : position + 8 + length]
        position += 12 + length
    raw = zlib.decompress(rows)
    return width, height, tuple(raw[1:4]), len(raw) - raw.count(0)


@pytest.mark.slow
def test_browser_shows_the_page_light_and_dark(browser: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_atomically(page, render(figures()))
    size = "--window-size=1200,1600"
    opened(browser, tmp_path, page, size, f"--screenshot={tmp_path / 'light.png'}")
    dark = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"]
    opened(browser, tmp_path, page, size, *dark, f"--screenshot={tmp_path / 'dark.png'}")
    light, dark_picture = picture(tmp_path / "light.png"), picture(tmp_path / "dark.png")
    assert light[:2] == dark_picture[:2] == (1200, 1600)
    assert light[2] == (0xF7, 0xF6, 0xF2)  # the color --paper in the light theme
    assert dark_picture[2] == (0x14, 0x17, 0x16)  # and in the dark theme
    assert min(light[3], dark_picture[3]) > 20_000  # something is drawn on it


@pytest.mark.slow
def test_browser_runs_nothing_of_a_hostile_name(browser: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_atomically(page, render(figures("<script>document.title='owned'</script><img src=x onerror=alert(1)>")))
    document = opened(browser, tmp_path, page, "--dump-dom")
    assert "<title>Code index" in document
    assert "<img" not in document
    assert "<script" not in document
