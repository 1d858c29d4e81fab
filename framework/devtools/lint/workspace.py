"""The modules that are linted together. Names are resolved across files by reading, never by importing."""

import ast
import builtins
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TypeVar

from framework.devtools.lint.module import (
    Module,
    UnreadableError,
    module_name,
    package_root,
    python_files,
    read_module,
)

FRAMEWORK = "framework"
"""The package of the framework: its names are known, its files are not read."""

UNKNOWN = object()
"""A value that cannot be known without running the code."""

T = TypeVar("T")


@dataclass(frozen=True)
class ApplicationFacts:
    """What files of the application tell about its workers."""

    categories: Collection[str] | None = None
    """The feature categories; None where no file says them."""
    categories_file: str = "config/feature_categories.yml"
    released: Mapping[str, str] = field(default_factory=dict[str, str])
    """The wire names of the last release -> the dotted name of the class then, "" where the file does not say it."""
    released_file: str = "workers/released.yml"
    retired: Collection[str] = ()
    """The wire names of classes that were removed on purpose."""
    modules: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """The modules that a process loads -> the file or folder of each."""


# Lint reads and never imports: an import stops at the first DeclarationError, needs all dependencies and runs code.
class Workspace:
    """The modules of some files, and those that are found by name beside them."""

    def __init__(self, folders: Iterable[Path] = (), known: ApplicationFacts | None = None) -> None:
        self.modules: list[Module] = []
        """Those that are linted."""
        self.unlinted: list[Module] = []
        """Others that a process loads: they are not linted, and their classes have wire names too."""
        self.unreadable: list[tuple[Path, UnreadableError]] = []
        self.facts = known or ApplicationFacts()
        self._folders = list(dict.fromkeys(folders))
        self._by_path: dict[Path, Module | None] = {}
        self._by_name: dict[str, Module | None] = {}

    def add(self, path: Path) -> None:
        """The file is among those that are linted, or among the unreadable ones."""
        path = path.resolve()
        try:
            module = read_module(path, module_name(path))
        except UnreadableError as error:
            self.unreadable.append((path, error))
            self._by_path[path] = None
            return
        self.add_module(module)

    def add_module(self, module: Module) -> None:
        """A module that has been read is among those that are linted."""
        module.linted = True
        self.modules.append(module)
        self._by_path[module.path] = self._by_name[module.name] = module

    def add_unlinted(self, path: Path) -> None:
        """The file is among those that a process loads; one that is linted, or is no Python, is left out."""
        path = path.resolve()
        if path not in self._by_path:
            module = self._by_path[path] = _read(path, module_name(path))
            if module is not None:
                self.unlinted.append(module)

    def import_names(self, module: Module) -> list[str]:
        """Every dotted name under which a process may import a module, the likeliest first.

        Inside of a module that a process loads there is one. Elsewhere a folder without ``__init__.py`` does not show where its
        package begins, which may be in any of the folders that are searched.
        """
        folders: list[Path] = []
        for name, path in self.facts.modules.items():
            place, steps = path.resolve(), name.count(".")
            begins = place.parents[steps : steps + 1]
            if begins and module.path.is_relative_to(place):
                return [_dotted(module.path, begins[0])]
            folders += begins
        names = [_dotted(module.path, folder) for folder in (*folders, *self._folders)]
        return [name for name in dict.fromkeys([module.name, *names]) if name]

    def class_of(self, name: str) -> tuple[Module, ast.ClassDef] | None:
        """The class of a dotted name, through re-exports; None when it is not to be found in these files."""
        return self._find(name, lambda module: module.classes)

    def evaluate(self, module: Module, expression: ast.expr, depth: int = 8) -> object:
        """What an expression of literals and constants is; UNKNOWN for everything else."""
        try:
            return ast.literal_eval(expression)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            name = module.dotted(expression)
        found = self._find(name, lambda module: module.values) if name is not None and depth else None
        return self.evaluate(*found, depth - 1) if found is not None else UNKNOWN

    def resolve_name(self, module: Module, expression: ast.expr) -> str | None:
        """The dotted name of an expression, also where a star import brought it."""
        name = module.dotted(expression)
        if name is None or not module.star_imports or name.partition(".")[0] != name or hasattr(builtins, name):
            return name
        for star in module.star_imports:
            if star == FRAMEWORK or self._find(f"{star}.{name}", lambda module: module.classes) is not None:
                return f"{star}.{name}"
        return name

    def _find(self, name: str, table: Callable[[Module], dict[str, T]], hops: int = 16) -> tuple[Module, T] | None:
        owner, _, last = name.rpartition(".")
        if not owner or not hops or owner.partition(".")[0] == FRAMEWORK:
            return None
        module = self._module(owner)
        if module is None:
            return None
        if last in table(module):
            return module, table(module)[last]
        candidates = (
            [module.imports[last]] if last in module.imports else [f"{star}.{last}" for star in module.star_imports]
        )
        found = (self._find(candidate, table, hops - 1) for candidate in candidates)
        return next((one for one in found if one is not None), None)

    def _module(self, name: str) -> Module | None:
        if name not in self._by_name:
            self._by_name[name] = self._find_module(name)
        return self._by_name[name]

    def _find_module(self, name: str) -> Module | None:
        steps = name.split(".")
        for folder in self._folders:
            place = folder.joinpath(*steps)
            for path in (place.with_suffix(".py"), place / "__init__.py"):
                if path not in self._by_path and path.is_file():
                    self._by_path[path] = _read(path, name)
                if self._by_path.get(path) is not None:
                    return self._by_path[path]
        return None


def read_workspace(
    paths: Iterable[Path], here: Path, excluded: Callable[[Path], bool], facts: ApplicationFacts | None = None
) -> tuple[Workspace, set[Path]]:
    """The tree around some files and folders: whole packages, so that a base or a child elsewhere is known.

    Also returns the files that were asked for.
    """
    wanted: set[Path] = set()
    roots: dict[Path, None] = {}
    for path in (path.resolve() for path in paths):
        wanted.update(python_files(path) if path.is_dir() else [path])
        roots[package_root(path)] = None
    wanted = {path for path in wanted if not excluded(path)}
    files = dict.fromkeys(sorted(wanted))
    for root in roots:
        if (root / "__init__.py").exists():
            files |= dict.fromkeys(path for path in python_files(root) if not excluded(path))
    bases = [root.parent if (root / "__init__.py").exists() else root for root in roots]
    tree = Workspace([*bases, here.resolve()], facts)
    for path in files:
        tree.add(path)
    if tree.facts.released:
        for place in tree.facts.modules.values():
            for path in python_files(place) if place.is_dir() else [place]:
                tree.add_unlinted(path)
    return tree, wanted


def find_module(name: str, folders: Sequence[str]) -> Path | None:
    """The file, or the folder, of a module that would be imported from ``folders``; nothing is imported."""
    top, *steps = name.split(".")
    spec = PathFinder.find_spec(top, folders)
    if spec is None:
        return None
    inside = list(spec.submodule_search_locations or ())
    place = Path(inside[0] if inside else spec.origin or "")
    for step in steps:
        place /= step
    found = (one for one in (place, place.with_suffix(".py")) if one.exists())
    return next(found, None)


def _dotted(path: Path, folder: Path) -> str:
    """The dotted name of a file as an import from ``folder`` has it; "" when it is not below that."""
    if not path.is_relative_to(folder):
        return ""
    steps = path.relative_to(folder).with_suffix("").parts
    return ".".join(steps[:-1] if len(steps) > 1 and steps[-1] == "__init__" else steps)


def _read(path: Path, name: str) -> Module | None:
    try:
        return read_module(path, name)
    except UnreadableError:
        return None
