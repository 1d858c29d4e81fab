"""Parse the files that several checks read."""

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar

N = TypeVar("N", bound=ast.AST)


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file. The checks of a process share it, and must not change it."""
    return ast.parse(path.read_text())


def nodes_of(path: Path, *kinds: type[N]) -> list[N]:
    """Return the nodes of a file that have exactly these types, type by type."""
    nodes = _nodes_by_type(path)
    return [node for kind in kinds for node in nodes.get(kind, ())]  # type: ignore[misc]


@cache
def _nodes_by_type(path: Path) -> Mapping[type[ast.AST], list[ast.AST]]:
    """One walk for all checks: it costs more than the parse."""
    nodes: dict[type[ast.AST], list[ast.AST]] = {}
    for node in ast.walk(tree_of(path)):
        nodes.setdefault(type(node), []).append(node)
    return nodes
