"""Test the reference of keys: every key of the code has a row."""

import ast
import re
from pathlib import Path

from tests.reference_pages import names
from tests.syntax import tree_of

ROOT = Path(__file__).resolve().parents[2]
PLACEHOLDER = re.compile(r"[A-Z]{3,}")


def known_keys() -> set[str]:
    """Return the constant prefixes of the keys in the files `keys.py`."""
    keys = set()
    files = [ROOT / "framework" / "wire" / "keys.py", *(ROOT / "framework" / "features").glob("*/keys.py")]
    for node in (node for path in files for node in ast.walk(tree_of(path))):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            keys.add(node.value.value)
        if isinstance(node, ast.FunctionDef) and not node.name.endswith("_field"):
            keys |= {start.value for start in _starts(node) if isinstance(start, ast.Constant)}
    return keys


def _starts(function: ast.FunctionDef) -> list[ast.expr]:
    """Return the first parts of the f-strings that the function returns."""
    returned = (node.value for node in ast.walk(function) if isinstance(node, ast.Return))
    return [value.values[0] for value in returned if isinstance(value, ast.JoinedStr)]


def test_keys_page_has_a_row_for_every_key() -> None:
    rows = {PLACEHOLDER.split(name)[0] for name in names("Keys")}
    missing = {key for key in known_keys() if not any(key in row for row in rows)}
    assert missing == set()
