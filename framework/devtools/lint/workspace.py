"""Read the modules that are linted together, and resolve names across files without importing."""

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
"""The package of the framework. The linter knows its names and does not read its files."""

UNKNOWN = object()
"""A value that only running code shows."""

T = TypeVar("T")


@dataclass(frozen=True)
class ApplicationFacts:
    """Facts from configuration and generated files of the application."""

    categories: Collection[str] | None = None
    """The feature categories; None without a file of categories."""
    categories_file: str = "config/feature_categories.yml"
    released: Mapping[str, str] = field(default_factory=dict[str, str])
    """Each wire name of the last release -> the dotted name of its class then, "" if the file does not have it."""
    released_file: str = "workers/released.yml"
    retired: Collection[str] = ()
    """The wire names of classes that were removed on purpose."""
    modules: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Each module that a process loads -> its file or folder."""


# Lint reads and never imports: an import stops at the first DeclarationError, needs all dependencies and runs code.
class Workspace:
    """The modules of the linted files, and modules that names in them refer to."""

    def __init__(self, folders: Iterable[Path] = (), known: ApplicationFacts | None = None) -> None:
        self.modules: list[Module] = []
        """The linted modules."""
        self.unlinted: list[Module] = []
        """Other modules that a process loads. They are not linted, but their classes have wire names."""
        self.unreadable: list[tuple[Path, UnreadableError]] = []
        self.facts = known or ApplicationFacts()
        self._folders = list(dict.fromkeys(folders))
        self._by_path: dict[Path, Module | None] = {}
        self._by_name: dict[str, Module | None] = {}

    def add(self, path: Path) -> None:
        """Add a file to the linted modules, or to the unreadable files."""
        path = path.resolve()
        try:
            module = read_module(path, module_name(path))
        except UnreadableError as error:
            self.unreadable.append((path, error))
            self._by_path[path] = None
            return
        self.add_module(module)

    def add_module(self, module: Module) -> None:
        """Add a parsed module to the linted ones."""
        module.linted = True
        self.modules.append(module)
        self._by_path[module.path] = self._by_name[module.name] = module

    def add_unlinted(self, path: Path) -> None:
        """Add a file that a process loads, unless it is linted or no Python source."""
        path = path.resolve()
        if path not in self._by_path:
            module = self._by_path[path] = _read(path, module_name(path))
            if module is not None:
                self.unlinted.append(module)

    def import_names(self, module: Module) -> list[str]:
        """Return every dotted name under which a process may import a module, the most likely first.

        A file in a loaded module has one name. Elsewhere a folder without ``__init__.py`` does not show where its package
        begins, so each searched folder gives a name.
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
        """Return the class of a dotted name, also through re-exports; None if these files do not have it."""
        return self._find(name, lambda module: module.classes)

    def has_option(self, module: Module, name: str) -> bool:
        """Return whether a linted module, or one that ``module`` imports, declares the option of the application."""
        names = {path for _, path in module.imported} | {path.rpartition(".")[0] for _, path in module.imported}
        imported = (self._module(one) for one in sorted(names) if one and one.partition(".")[0] != FRAMEWORK)
        found = (*self.modules, *self.unlinted, *(one for one in imported if one is not None))
        return any(name in one.declared_options for one in found)

    def evaluate(self, module: Module, expression: ast.expr, depth: int = 8) -> object:
        """Return the value of an expression of literals and constants; UNKNOWN for any other expression."""
        try:
            return ast.literal_eval(expression)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            name = module.dotted(expression)
        found = self._find(name, lambda module: module.values) if name is not None and depth else None
        return self.evaluate(*found, depth - 1) if found is not None else UNKNOWN

    def resolve_name(self, module: Module, expression: ast.expr) -> str | None:
        """Return the dotted name of an expression, also for a name of a star import."""
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
    """Read the whole packages of the paths, so that bases and subclasses in other files are known.

    Also returns the requested files.
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
    """Return the file or folder of a module in ``folders``, without importing it."""
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
    """Return the import name of a file seen from ``folder``; "" if the file is not below it."""
    if not path.is_relative_to(folder):
        return ""
    steps = path.relative_to(folder).with_suffix("").parts
    return ".".join(steps[:-1] if len(steps) > 1 and steps[-1] == "__init__" else steps)


def _read(path: Path, name: str) -> Module | None:
    try:
        return read_module(path, name)
    except UnreadableError:
        return None
