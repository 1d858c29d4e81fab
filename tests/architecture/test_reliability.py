"""Check the reliability page: each row has a test or a reason, each named test exists, and the tables are current."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.proofs.matrix import PAGE, filled, read, unknown_tests
from tests.proofs.proves_marks import UnreadableMarkError, names, shown_by

ROOT = Path(__file__).resolve().parent.parent.parent


def test_matrix_has_each_row_with_a_test_or_a_reason() -> None:
    matrix, wrong = read(ROOT)
    assert wrong == []
    assert {table: [row.name for row in rows] for table, rows in matrix.items()} == {
        "faults": [f"F{number}" for number in range(1, 53)],
        "requirements": [f"R{number}" for number in range(1, 73)],
        "invariants": [f"I{number}" for number in range(1, 26)],
        "mutants": [f"m{number}" for number in range(1, 11)],
    }


def test_reliability_page_has_the_current_tables() -> None:
    page = (ROOT / PAGE).read_text()
    assert page == filled(page, read(ROOT)[0]), "run scripts/prove matrix --write"


def test_reliability_page_names_only_existing_tests() -> None:
    page = (ROOT / PAGE).read_text()
    assert unknown_tests(page, ROOT) == set()
    assert unknown_tests(f"{page} test_that_does_not_exist", ROOT) == {"test_that_does_not_exist"}


def test_matrix_check_reports_each_error_with_status_1(tmp_path: Path) -> None:
    """Use a checkout with other tests: rows without tests, a mark for a missing row, a page with a missing test."""
    for name in ("scripts", "framework", ".venv"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / PAGE).parent.mkdir(parents=True)
    (tmp_path / PAGE).write_text(f"{(ROOT / PAGE).read_text()}\nShown by test_that_does_not_exist.\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text("@pytest.mark.proves('F53')\ndef test_it(): ...\n")
    code = (
        "import sys, argparse; from pathlib import Path; from tests.proofs.matrix import run\n"
        "sys.exit(run(Path.cwd(), argparse.Namespace(write=False, check=True), None))"
    )
    command = [sys.executable, "-c", code]
    env = {"PYTHONPATH": str(ROOT / "scripts")}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "tests/test_one.py:2: there is no row F53" in done.stderr
    assert "prove: F1: no test shows it and nothing says why" in done.stderr
    assert "R71: no test" not in done.stderr  # row R71 has a reason instead
    assert "is out of date: scripts/prove matrix --write" in done.stderr
    assert "docs/internals/reliability.md: there is no test_that_does_not_exist" in done.stderr


MARKED = """
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.proves("I1")]
CASES = [pytest.param(1, marks=pytest.mark.proves("m1")), pytest.param(2, marks=[pytest.mark.proves("m2", "m3")])]

@pytest.mark.proves("F1", "I1")
@pytest.mark.parametrize("number", CASES)
def test_cases(number): ...

@pytest.mark.proves("F2")
class TestClass:
    @pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.proves("R1"))])
    async def test_within(self, number): ...

def helper(): ...
"""


def test_proves_mark_is_found_at_every_place(tmp_path: Path) -> None:
    (tmp_path / "test_marked.py").write_text(MARKED)
    found = [(one.test, one.row) for one in shown_by(tmp_path)]
    assert found == [
        *(("test_cases", row) for row in ("I1", "F1", "m1", "m2", "m3")),
        *(("test_within", row) for row in ("I1", "F2", "R1")),
    ]
    assert names(tmp_path) == {"test_marked", "test_cases", "TestClass", "test_within", "helper"}


def test_unreadable_proves_mark_is_an_error_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "test_computed.py").write_text("@pytest.mark.proves(*ROWS)\ndef test_it(): ...\n")
    with pytest.raises(UnreadableMarkError, match=r"^test_computed\.py:1: "):
        shown_by(tmp_path)
