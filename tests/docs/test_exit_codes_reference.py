"""Test the reference of exit codes: one row for each code, and only existing commands."""

import re
from pathlib import Path

from framework import command_line
from tests.cli.test_help import COMMANDS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "exit_codes.md"


def test_exit_codes_page_has_a_row_for_each_code() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert [(int(code), name) for code, name in rows] == [
        (code, name) for name, code in vars(command_line).items() if name.startswith("EXIT_")
    ]


def test_exit_codes_page_names_only_existing_commands() -> None:
    code_1 = PAGE.read_text().partition("\n## Code 1\n")[2]
    cells = re.findall(r"^\| (`[^|]*`) \|", code_1, re.MULTILINE)
    names = {name.split(" --")[0] for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    assert names - COMMANDS.keys() == set()
