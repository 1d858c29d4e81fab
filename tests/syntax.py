"""Parse the files that several checks read."""

import ast
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file. The checks of a process share it, and must not change it."""
    return ast.parse(path.read_text())


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of the tree of a file, in the order of ``ast.walk``: a walk costs more than the parse."""
    return tuple(ast.walk(tree_of(path)))
