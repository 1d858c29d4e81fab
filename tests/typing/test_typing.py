"""Both strict type checkers report wrong pushes and declarations. `scripts/test` runs them on `accepted.py`."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def marked(file: Path) -> set[int]:
    lines = file.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if "# refused" in line}


def mypy(file: Path) -> dict[int, str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--show-absolute-path", str(file)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 1), result.stdout + result.stderr
    found: dict[int, str] = {}
    for path, number, message in re.findall(r"^(.+?):(\d+): error: (.+)$", result.stdout, re.MULTILINE):
        assert Path(path) == file, f"{path}:{number}: {message}"
        found[int(number)] = message
    return found


def pyright(file: Path) -> dict[int, str]:
    # The project's own settings, which are strict, as it runs in the project's folder.
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(file)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 1), result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert report["summary"]["filesAnalyzed"] == 1, result.stdout
    errors = [finding for finding in report["generalDiagnostics"] if finding["severity"] == "error"]
    return {
        number + 1: finding["message"]
        for finding in errors
        for number in (finding["range"]["start"]["line"],)
        if Path(finding["file"]) == file
    }


@pytest.fixture(scope="module")
def refused() -> Path:
    # Kept as text, so that checking the whole tree does not stumble over it; always at one path, as mypy's cache goes by it.
    file = ROOT / "var" / "typing" / "refused.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text((HERE / "refused.py.txt").read_text())
    return file


# Not `slow`, so that it runs when the step mypy of `scripts/test` has filled the cache: 3 s of a processor, otherwise 16.
def test_mypy_refuses_every_marked_line_and_no_other(refused: Path) -> None:
    found = mypy(refused)
    assert set(found) == marked(refused), found


@pytest.mark.slow
def test_pyright_refuses_every_marked_line_and_no_other(refused: Path) -> None:
    found = pyright(refused)
    assert set(found) == marked(refused), found
