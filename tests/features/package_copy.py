"""Copy the package without some rooms, or with another one: to show that no file of the core knows a feature.

What names a room outside of its folder is its line in ``features/order.py``, its bases in the composed classes, and its front
doors. All other files of a copy are unchanged.
"""

import ast
import re
import shutil
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent.parent / "framework"

ORDER = "features/order.py"
COMPOSED = ("application_worker.py", "all_settings.py", "worker_attributes.py", "function_jobs.py")
"""The files that compose what worker classes and settings have from the rooms."""

FRONT_DOORS = {
    "batches": ("batches",),
    "breaker": ("breaker",),
    "concurrency": ("throttling",),
    "consistency": ("databases",),
    "cron": ("leader",),
    "flags": ("flags",),
    "health": ("health",),
    "leases": ("lease",),
    "limiters": ("limiter",),
    "observability": ("metrics",),
    "pause": ("pause",),
    "results": ("results",),
    "status": ("status",),
    "tasks": ("tasks",),
    "workflows": ("workflows",),
}
"""The public modules of a room at the top of the package."""

_PAIR = re.compile(r'"framework\.features\.(\w+)\.\*\* -> framework\.features\.(\w+)\.\*\*"')
NEEDS = sorted(set(_PAIR.findall((PACKAGE.parent / "pyproject.toml").read_text())))
"""The pairs of rooms of which the first imports the second."""


def rooms() -> list[str]:
    """Return the names of all rooms."""
    return sorted(one.parent.name for one in (PACKAGE / "features").glob("*/__init__.py"))


def with_dependents(room: str) -> list[str]:
    """Return the room, and those that import it: none of them can stay without it."""
    found = [room]
    for name in found:
        found += [one for one, needed in NEEDS if name == needed and one not in found]
    return found


def removals() -> list[list[str]]:
    """Return few sets of rooms, each with its dependents: for each two rooms, one set has the first and leaves the second.

    With every set removed once, each room has been gone beside each room that may not need it. This says as much about pairs as
    the removal of each room alone, in a third of the runs.
    """
    closed = {name: frozenset(with_dependents(name)) for name in rooms()}
    open_pairs = {gone: closed.keys() - needed for gone, needed in closed.items()}
    found = []
    while any(open_pairs.values()):
        chosen = _with_most_of(open_pairs, list(closed.values()))
        found.append(sorted(chosen))
        for gone in chosen:
            open_pairs[gone] &= chosen
    return found


def _with_most_of(pairs: Mapping[str, AbstractSet[str]], closed: Collection[frozenset[str]]) -> frozenset[str]:
    """Add the rooms of ``closed`` to one set, the best first, as long as it parts more pairs."""
    chosen: frozenset[str] = frozenset()
    parted = -1
    while (now := _parted(chosen, pairs)) > parted:
        parted, before = now, chosen
        chosen = max((before | one for one in closed), key=lambda one: _parted(one, pairs))
    return before


def _parted(chosen: frozenset[str], pairs: Mapping[str, AbstractSet[str]]) -> int:
    """Return how many pairs have their first room in ``chosen`` and their second room outside."""
    return sum(len(pairs[gone] - chosen) for gone in chosen)


def names_of(removed: Collection[str]) -> set[str]:
    """Return the words by which a test uses these rooms: attributes, options, base classes, front doors, the rooms themselves."""
    found = {*removed, *(door for room in removed for door in FRONT_DOORS.get(room, ()))}
    for room in removed:
        for path in (PACKAGE / "features" / room).glob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found.add(node.name)
                    declared = node.body if path.name in ("attributes.py", "settings.py") else []
                    found |= {ast.unparse(one.target) for one in declared if isinstance(one, ast.AnnAssign)}
    return found


def copy_without(removed: Collection[str], folder: Path) -> Path:
    """Make a package ``framework`` in the folder, without these rooms. Return the folder, for ``PYTHONPATH``."""
    package = folder / "framework"
    names = [door for room in removed for door in FRONT_DOORS.get(room, ())]
    doors = {*names, *(f"{name}.py" for name in names)}
    _copy(PACKAGE, package, left_out={*doors, *COMPOSED, "features"})
    _copy(PACKAGE / "features", package / "features", left_out={*removed, "order.py"})
    for name in (ORDER, *COMPOSED):
        without = _Without(removed)
        tree = without.visit(ast.parse((PACKAGE / name).read_text()))
        if without.names:
            (package / name).write_text(ast.unparse(tree))
        else:
            shutil.copy2(PACKAGE / name, package / name)
    return folder


def copy_with(room: Path, bases: dict[str, dict[str, str]], folder: Path) -> Path:
    """Make a package ``framework`` in the folder with one more room, the last of ``FEATURES``.

    ``bases`` names the classes of ``attributes.py`` and ``settings.py`` that the composed classes get as bases.
    """
    copy_without((), folder)
    package = folder / "framework"
    shutil.copytree(room, package / "features" / room.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (ORDER, *bases):
        path, text = package / name, (package / name).read_text().rstrip()
        if name == ORDER:
            record = room.name.upper()
            text = text.replace("\nFEATURES", f"\nfrom framework.features.{room.name} import {record}\nFEATURES")
            text = text.removesuffix(")") + f"    {record},\n)\n"
        for composed, base in bases.get(name, {}).items():
            module = "settings" if name == "all_settings.py" else "attributes"
            text = text.replace(f"class {composed}(", f"class {composed}({base}, ")
            text = f"from framework.features.{room.name}.{module} import {base}\n{text}"
        path.unlink()
        path.write_text(text)
    return folder


def _copy(source: Path, target: Path, left_out: Collection[str]) -> None:
    target.mkdir(parents=True)
    for one in source.iterdir():
        # The folders __pycache__ too: Python compares the time of each source with what it has compiled.
        if one.name not in left_out:
            (shutil.copytree if one.is_dir() else shutil.copy2)(one, target / one.name)


class _Without(ast.NodeTransformer):
    """Remove the imports of some rooms, and the bases, elements and annotations that they name."""

    def __init__(self, removed: Collection[str]) -> None:
        self._removed = removed
        self.names: set[str] = set()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom | None:
        if not any(f"{node.module}.".startswith(f"framework.features.{room}.") for room in self._removed):
            return node
        self.names |= {alias.name for alias in node.names}
        return None

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.bases = [base for base in node.bases if not self._names_in(base)]
        return self.generic_visit(node)

    def visit_Tuple(self, node: ast.Tuple) -> ast.Tuple:
        node.elts = [one for one in node.elts if not (isinstance(one, ast.Name) and one.id in self.names)]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        return None if self._names_in(node.annotation) else self.generic_visit(node)

    def _names_in(self, node: ast.AST) -> bool:
        return any(isinstance(one, ast.Name) and one.id in self.names for one in ast.walk(node))
