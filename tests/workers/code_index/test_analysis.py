"""Analyse one file, for any bytes in it."""

import ast
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.syntax import nodes_of
from tests.tables import each_row
from workers.code_index.analysis import Measured, Unparsable, analyse, analyse_source
from workers.code_index.printable_text import printable

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = ROOT / "workers" / "code_index" / "samples"

SOURCE = b'''\
"""Docs."""
import os


class Outer:
    class Inner:
        async def fetch(self):
            return 1

    def long(self):
        if os:
            def nested(): pass
            return nested
        return lambda: 0


def short(): ...
try:
    pass
except OSError:
    def fallback(): ...
match 1:
    case 1:
        def matched(): ...
'''


def test_analysis_counts_each_source() -> None:
    assert analyse_source(SOURCE) == Measured(
        size=len(SOURCE), lines=24, functions=6, classes=2, longest_name="Outer.long", longest_lines=5
    )


@each_row(
    ("source", "lines"),
    [(b"", 0), (b"\n", 1), (b"x=1", 1), (b"x=1\n", 1), (b"x=1\r\ny=2\r\n", 2), (b"x=1\ry=2", 2), (b"x='\x0c'\n", 1)],
)
def test_analysis_counts_lines(source: bytes, lines: int) -> None:
    found = analyse_source(source)
    assert isinstance(found, Measured)
    assert (found.lines, found.longest_name, found.longest_lines) == (lines, None, 0)


@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 9))
def test_analysis_counts_what_was_written(functions: int, classes: int, body: int) -> None:
    parts = [f"def f{i}():\n" + "    pass\n" * (body + i) for i in range(functions)]
    parts += [f"class C{i}:\n    async def m(self): ...\n" for i in range(classes)]
    found = analyse_source("".join(parts).encode())
    assert isinstance(found, Measured)
    assert (found.functions, found.classes) == (functions + classes, classes)
    if functions:
        assert (found.longest_name, found.longest_lines) == (f"f{functions - 1}", body + functions)


def test_analysis_agrees_with_a_walk_over_the_syntax() -> None:
    for path in sorted((ROOT / "framework" / "declare").glob("*.py")):
        found = analyse(str(path))
        assert isinstance(found, Measured)
        assert found.functions == len(nodes_of(path, ast.FunctionDef, ast.AsyncFunctionDef))
        assert found.classes == len(nodes_of(path, ast.ClassDef))


@each_row(
    ("name", "kind", "reason"),
    [
        ("sample_unclosed_bracket", "syntax", "never closed"),
        ("sample_python_two", "syntax", "print"),
        ("sample_merge_conflict", "syntax", "invalid syntax"),
        ("sample_unfinished", "indentation", "indented block"),
        ("sample_tabs_and_spaces", "indentation", "tabs and spaces"),
        ("sample_bad_encoding", "encoding", "0xfc"),
        ("sample_unknown_encoding", "encoding", "klingon-8"),
        ("sample_nul_byte", "nul_byte", "offset"),
        ("sample_deep_nesting", "too_deep", "nested"),
    ],
)
def test_analysis_of_samples_has_their_finding(name: str, kind: str, reason: str) -> None:
    found = analyse(str(SAMPLES / f"{name}.py"))
    assert isinstance(found, Unparsable)
    assert found.kind == kind
    assert reason in found.reason
    assert found.size == (SAMPLES / f"{name}.py").stat().st_size


def test_sample_files_are_broken_and_in_the_readme() -> None:
    readme = (SAMPLES / "README.md").read_text()
    samples = sorted(SAMPLES.glob("*.py"))
    assert len(samples) >= 8
    for sample in samples:
        found = analyse(str(sample))
        assert isinstance(found, Unparsable)
        assert f"`{sample.name}`" in readme
        assert f"| {found.kind} |" in next(line for line in readme.splitlines() if sample.name in line)


@each_row(
    ("source", "kind"),
    [
        (b"# coding: hex\nx=1\n", "encoding"),
        (b"# coding: punycode\nx=1\n", "encoding"),
        (b"# coding: idna\nx=1\n", "encoding"),
        (b"# coding: undefined\nx=1\n", "encoding"),
        (b"\xff\xfex\x00", "nul_byte"),
        (b"\xef\xbb\xbf# coding: latin-1\n", "encoding"),
        (b"1+" * 500_000 + b"1", "too_deep"),  # Python 3.14 reads 50,000
        (b"a" + b".b" * 500_000, "too_deep"),
        (b"(" * 300, "syntax"),
        (b"x = " + b"9" * 5_000, "syntax"),
        ("x = 1\u202e".encode(), "syntax"),
        (b"  x = 1\n y = 2", "indentation"),
    ],
)
def test_analysis_of_hostile_sources_has_a_finding(source: bytes, kind: str) -> None:
    found = analyse_source(source)
    assert isinstance(found, Unparsable)
    assert found.kind == kind
    assert found.reason.isprintable()


@pytest.mark.parametrize("source", [b"\xef\xbb\xbfx = 1\n", b"# coding: latin-1\nx = '\xfc'\n", b"x = '\xc3\xbc'\n"])
def test_encodings_that_are_valid_are_decoded(source: bytes) -> None:
    assert isinstance(analyse_source(source), Measured)


@given(st.binary(max_size=400))
@example(b"# coding: utf-16\n")
@example(b"# coding: utf-7\n+")
@example(b"# coding: rot13\n")
@example(b"# coding: unicode_escape\n\\N{x}")
def test_analysis_of_any_bytes_has_a_finding(source: bytes) -> None:
    found = analyse_source(source)
    assert found.size == len(source)
    if isinstance(found, Unparsable):
        assert found.reason.isprintable()


@given(st.text(alphabet=st.sampled_from("ab():=\n\t '\"\\#@,.[]{}0f\x0c\u202eé\ud800"), max_size=80))
def test_analysis_of_any_text_has_a_finding(source: str) -> None:
    assert isinstance(analyse_source(source.encode("utf-8", "surrogatepass")), Measured | Unparsable)


def test_parser_warnings_stay_silent_in_any_thread() -> None:
    # The suite runs with warnings as errors, and this source has one; a filter set by one thread and taken back by
    # another would let some through.
    source = b"x = '\\d'\ny = 1if 1 else 2\n" * 20
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(analyse_source, [source] * 200))
    assert all(isinstance(one, Measured) for one in found)


def test_parser_filter_leaves_other_warnings() -> None:
    analyse_source(b"'\\d'")
    with pytest.warns(DeprecationWarning, match="mine"):
        warnings.warn("mine", DeprecationWarning, stacklevel=1)


def test_analysis_above_the_size_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "big.py"
    path.write_bytes(b"x = 1\n" * 10)
    assert isinstance(analyse(str(path), size_cap=60), Measured)
    found = analyse(str(path), size_cap=59)
    assert isinstance(found, Unparsable)
    assert (found.kind, found.size) == ("too_large", 60)


def test_analysis_of_no_file_is_a_finding(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "gone.py").symlink_to("nowhere")
    (tmp_path / "folder.py").mkdir()
    for name in ("pipe.py", "loop.py", "gone.py", "folder.py", "never.py", "x" * 300):
        found = analyse(str(tmp_path / name))
        assert isinstance(found, Unparsable)
        assert found.kind == "unreadable"
    assert isinstance(analyse("/dev/zero"), Unparsable)


def test_analysis_of_names_outside_utf8_works(tmp_path: Path) -> None:
    path = bytes(tmp_path) + b"/caf\xe9.py"
    Path(os.fsdecode(path)).write_bytes(b"x = 1\n")
    assert isinstance(analyse(path), Measured)


def test_analysis_raises_faults_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(OSError, match="Input/output"):
        analyse("/any.py")


@given(st.text(st.characters(), max_size=60), st.integers(1, 40))
@example("\ud800\x00\x1b[31m\u202e<b>", 40)
def test_printable_text_is_safe(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit
    shown.encode("utf-8")
    if text.isprintable() and len(text) <= limit:
        assert shown == text
