"""List the files of a scan: every ``*.py`` below its roots, each once, in a stable order."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from workers.code_index.printable_text import printable

SINGLE_MODULES: Final = "(single modules)"
_PRUNED: Final = frozenset({"__pycache__", "node_modules"})
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
"""Installed packages below a root are another tree: name them as a root of their own to take them."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a scan: its path, the name to show, and its top-level package."""

    path: bytes
    shown: str
    package: str


def find_files(roots: Sequence[str]) -> list[SourceFile]:
    """The Python files below ``roots``; a root that is a file is taken whatever its name. Missing roots hold none."""
    found: dict[bytes, SourceFile] = {}
    for root in map(Path, roots):
        for path in _paths_below(root.absolute()):
            found.setdefault(bytes(path), _to_source_file(path, root.absolute()))
    return list(found.values())


def _paths_below(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _PRUNED | _INSTALLED and not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))


def _to_source_file(path: Path, root: Path) -> SourceFile:
    inside = path.relative_to(root).parts
    package = inside[0] if len(inside) > 1 else SINGLE_MODULES
    return SourceFile(bytes(path), printable("/".join((root.name or "/", *inside)), 500), printable(package, 100))
