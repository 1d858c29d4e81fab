"""The worker classes of this process, by the name that they have on the wire. A payload never imports anything."""

import importlib
import importlib.machinery
import importlib.util
import pkgutil
import sys
import threading
import traceback
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from framework.declare.declaration import Declaration
from framework.errors import ConfigurationError, ConfigurationProblem, DeclarationError, FrameworkError
from framework.text import nearest as nearest_word

_PACKAGE = Path(__file__).resolve().parent.parent
_PACKAGE_NAME = _PACKAGE.name

_SKIPPED_FRAME_PREFIXES = (str(_PACKAGE), "<", importlib.__file__)
"""File names of frames that are of no use to the author of a worker: the framework's, generated code, the import system."""


class _Registry:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.by_name: dict[str, type[Any]] = {}
        # Every class ever created. Loading a module again after ``isolated`` brings its workers back from here.
        self.by_qualified_name: dict[tuple[str, str], type[Any]] = {}
        self.loaded: set[str] = set()
        self.built_in: dict[str, type[Any]] = {}
        """The framework's own classes, whose jobs each process runs: no list of the application's classes has them."""


_registry = _Registry()


def register(worker: type[Any]) -> None:
    """Register the class by its wire name and aliases. A class of the same module and name is replaced (a reload).

    Raises DeclarationError when another class has one of the names.
    """
    declaration = _declaration(worker)
    names = (declaration.wire_name, *declaration.aliases)
    with _registry.lock:
        for name in names:
            holder = _registry.by_name.get(name) or _registry.built_in.get(name)
            if holder is not None and _declaration(holder).qualified_name != declaration.qualified_name:
                raise DeclarationError(
                    declaration.qualified_name,
                    f"the wire name {name!r} is already the name of {_declaration(holder).qualified_name}. Rename one of the two "
                    f"classes, or give one its own `wire_name`.",
                    attribute="wire_name" if name == declaration.wire_name else "aliases",
                )
        key = (declaration.module, declaration.class_name)
        _unregister(_registry.by_qualified_name.get(key))
        _registry.by_name.update(dict.fromkeys(names, worker))
        _registry.by_qualified_name[key] = worker


def find(wire_name: str) -> type[Any] | None:
    """Return the worker class of that wire name or alias, or None."""
    return _registry.by_name.get(wire_name) or _registry.built_in.get(wire_name)


def make_built_in(worker: type[Any]) -> None:
    """Remove a registered class of the framework from the application's classes. ``find`` still returns it."""
    declaration = _declaration(worker)
    with _registry.lock:
        _unregister(worker)
        del _registry.by_qualified_name[declaration.module, declaration.class_name]
        _registry.built_in[declaration.wire_name] = worker


def names() -> list[str]:
    """Return every registered wire name and alias."""
    return list(_registry.by_name)


def nearest_name(wire_name: str) -> str | None:
    """Return the registered name most like ``wire_name``, for messages."""
    return nearest_word(wire_name, names())


def workers() -> list[type[Any]]:
    """Return every registered class once, sorted by wire name."""
    with _registry.lock:
        classes = set(_registry.by_name.values())
    return sorted(classes, key=lambda worker: _declaration(worker).wire_name)


def load(modules: Sequence[str]) -> None:
    """Import the modules, packages with all their sub-packages, and register their workers.

    Installed packages come first on the import path and the working directory last; only the modules named here are
    looked for in the working directory first. Raises ConfigurationError naming every module that could not be imported.
    """
    add_working_directory()
    problems: list[ConfigurationProblem] = []
    for name in modules:
        taken = _name_conflict_message(name.partition(".")[0])
        if taken is not None:
            problems.append(ConfigurationProblem(name, "", taken))
        else:
            _load_package(name, problems)
    if problems:
        raise ConfigurationError(problems)
    _registry.loaded.update(modules)


def check_importable(modules: Sequence[str]) -> None:
    """Check that every module can be found, without importing it. Raises ConfigurationError otherwise."""
    add_working_directory()
    problems = [
        ConfigurationProblem(name, "", _missing_module_message(name))
        for name in modules
        if _find_local_spec(name.partition(".")[0]) is None and importlib.util.find_spec(name.partition(".")[0]) is None
    ]
    if problems:
        raise ConfigurationError(problems)


def loaded() -> frozenset[str]:
    """Return the modules that ``load`` was given in this process, each with all its sub-packages."""
    return frozenset(_registry.loaded)


@contextmanager
def isolated(workers: Iterable[type[Any]] = ()) -> Generator[None, None, None]:
    """For tests: within the block only ``workers`` and classes defined there are registered; the registry is restored afterwards."""
    with _registry.lock:
        saved = dict(_registry.by_name)
        _registry.by_name.clear()
    try:
        for worker in workers:
            register(worker)
        yield
    finally:
        with _registry.lock:
            _registry.by_name.clear()
            _registry.by_name.update(saved)


def add_working_directory() -> None:
    """Let modules of the working directory be imported. It goes to the end of the path, so no installed module is replaced."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)


def _find_local_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return the module or package of this name in the working directory, or ``None``."""
    spec = importlib.machinery.PathFinder.find_spec(name, [str(Path.cwd())])
    return spec if spec is not None and spec.has_location else None


def _name_conflict_message(name: str) -> str | None:
    """Return the message for a module of the working directory whose name another module has in this process, or ``None``."""
    spec, loaded = _find_local_spec(name), sys.modules.get(name)
    if spec is None or spec.origin is None or loaded is None:
        return None
    file = getattr(loaded, "__file__", None)
    if file is not None and Path(file).resolve() == Path(spec.origin).resolve():
        return None
    return f"{file or 'a built-in module'} has this name and is in use here, so {spec.origin} cannot be imported: rename it"


def _import_local(name: str) -> None:
    """Import a named module from the working directory, even if an installed module has its name, as a script there would."""
    if name in sys.modules:
        return
    spec = _find_local_spec(name)
    if spec is None:
        return
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        cast("importlib.machinery.SourceFileLoader", spec.loader).exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise


def _declaration(worker: type[Any]) -> Declaration:
    found: Declaration = worker.declaration()
    return found


def _unregister(worker: type[Any] | None) -> None:
    if worker is None:
        return
    declaration = _declaration(worker)
    for name in (declaration.wire_name, *declaration.aliases):
        if _registry.by_name.get(name) is worker:
            del _registry.by_name[name]


def _load_package(name: str, problems: list[ConfigurationProblem]) -> None:
    module = _import(name, problems)
    if module is None:
        return
    for (place, _), worker in list(_registry.by_qualified_name.items()):
        if place == module.__name__ and find(_declaration(worker).wire_name) is None:
            register(worker)
    for child in pkgutil.iter_modules(getattr(module, "__path__", [])):
        # Importing ``__main__`` would start a program.
        if child.name != "__main__":
            _load_package(f"{name}.{child.name}", problems)


def _import(name: str, problems: list[ConfigurationProblem]) -> ModuleType | None:
    try:
        _import_local(name.partition(".")[0])
        return importlib.import_module(name)
    except (ImportError, AttributeError) as error:
        message = _import_error_message(name, error)
    except SyntaxError as error:
        message = f"{error.msg} ({error.filename}, line {error.lineno})"
    except DeclarationError as error:
        line = _error_location(error)
        problems += (
            ConfigurationProblem(file=name, key="", message=f"{problem} ({line})") for problem in error.problems
        )
        return None
    except FrameworkError as error:
        message = f"{error} ({_error_location(error)})"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a module may fail in any way; each becomes a finding
        message = f"importing it fails with {type(error).__name__}: {error} ({_error_location(error)})"
    problems.append(ConfigurationProblem(file=name, key="", message=message))
    return None


def _import_error_message(name: str, error: ImportError | AttributeError) -> str:
    """Return the message for a module ``name`` whose import failed with this error."""
    hidden = _shadowed_module_message(error)
    if hidden is not None:
        return f"{hidden} ({_error_location(error)})"
    if not isinstance(error, ModuleNotFoundError):
        return f"importing it fails with {type(error).__name__}: {error} ({_error_location(error)})"
    if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
        return _missing_module_message(name)
    return f"it imports {error.name!r}, which is not installed"


def _shadowed_module_message(error: ImportError | AttributeError) -> str | None:
    """Return the message for an error that a folder or file ``framework`` of the application explains, else ``None``."""
    if isinstance(error, AttributeError):
        asked = error.obj.__name__ if isinstance(error.obj, ModuleType) else ""
    else:
        asked = error.name or ""
    if asked.partition(".")[0] != _PACKAGE_NAME:
        return None
    places = (
        Path(entry or ".") / name
        for entry in (str(Path.cwd()), *sys.path)
        for name in (_PACKAGE_NAME, f"{_PACKAGE_NAME}.py")
    )
    theirs = next((place for place in places if place.exists() and place.resolve() != _PACKAGE), None)
    if theirs is None:
        return None
    return (
        f"{error}: `{_PACKAGE_NAME}` is the package of application-worker ({_PACKAGE}), and hides {theirs}, which has the same name; "
        f"rename that one, or move it into a package of your own, and import it by its new name"
    )


def _missing_module_message(name: str) -> str:
    parent, _, last = name.rpartition(".")
    folders = getattr(sys.modules.get(parent), "__path__", []) if parent else [str(Path.cwd())]
    siblings = [module.name for module in pkgutil.iter_modules(folders)]
    near = nearest_word(last, siblings)
    meant = near and f"{parent}.{near}".removeprefix(".")
    # The user gave the name of a file instead of the module's.
    if parent and last == "py":
        meant = parent
    hint = f" (did you mean {meant!r}?)" if meant else ""
    return (
        f"no module of that name{hint} (searched from {Path.cwd()}); name another with -r or the setting workers_module"
    )


def _error_location(error: BaseException) -> str:
    """Return the innermost line that led to ``error`` in the application's own code."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    places = [place for place in frames if not place[0].startswith(_SKIPPED_FRAME_PREFIXES)]
    filename, line = (places or frames)[-1]
    return f"{filename}, line {line}"
