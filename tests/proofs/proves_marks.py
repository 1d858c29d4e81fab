"""Find which test shows which row: read the marker ``proves`` from the sources of the tests, without importing them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MARKER = "proves"

_DEFINITION = re.compile(r"^\s*(?:async def|def|class) (\w+)", re.MULTILINE)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Shown(NamedTuple):
    """A test (``test_name``, or ``TestClass`` for all of its methods) whose marker names a row."""

    row: str
    path: Path
    test: str
    line: int


class UnreadableMarkError(Exception):
    """A marker whose rows are no literal strings, so that no search finds them; the text starts with its place."""


def shown_by(tests: Path) -> list[Shown]:
    """Return every row that a marker below ``tests`` names, in the order of files and lines. Raises UnreadableMarkError."""
    return [
        Shown(row, path.relative_to(tests), test, line)
        for path in sorted(tests.rglob("test_*.py"))
        if f"mark.{MARKER}" in (text := path.read_text())
        for row, test, line in _of_module(ast.parse(text), path.relative_to(tests))
    ]


def names(tests: Path) -> set[str]:
    """Return the name of every file, class and function of tests below ``tests``."""
    return {name for path in tests.rglob("test_*.py") for name in (path.stem, *_DEFINITION.findall(path.read_text()))}


def _of_module(module: ast.Module, path: Path) -> Iterator[tuple[str, str, int]]:
    """Yield row, test and line. A test has the marks of its module, its class, its own, and of its parameters."""
    assigned = {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    of_all = assigned.get("pytestmark")
    for holder in [module, *(node for node in module.body if isinstance(node, ast.ClassDef))]:
        of_class = holder.decorator_list if isinstance(holder, ast.ClassDef) else []
        for test in holder.body:
            if isinstance(test, _FUNCTIONS) and test.name.startswith("test_"):
                cases = [
                    assigned[name.id]
                    for mark in test.decorator_list
                    for name in ast.walk(mark)
                    if isinstance(name, ast.Name) and name.id in assigned
                ]
                marks = [*([of_all] if of_all else []), *of_class, *test.decorator_list, *cases]
                for row in dict.fromkeys(row for mark in marks for row in _rows(mark, path)):
                    yield row, test.name, test.lineno


def _rows(expression: ast.expr, path: Path) -> Iterator[str]:
    for node in ast.walk(expression):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == MARKER:
            for argument in node.args:
                if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
                    raise UnreadableMarkError(f"{path}:{node.lineno}: the rows of a mark are written out as strings")
                yield argument.value
