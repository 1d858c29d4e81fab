"""Read the files of an application for ``lint-workers``, and check ``config/schedule.yml`` against the source of the workers.

Files that cannot be read are skipped, because a boot reports them.
"""

import ast
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from framework.all_settings import Settings, load
from framework.devtools.lint.classes import CURSOR, ENUMERATOR, ClassIndex, SourceClass
from framework.devtools.lint.workspace import ApplicationFacts, Workspace, find_module
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.settings import validators
from framework.settings.base import SettingsSchema
from framework.settings.environment import merge_nested, read_environment
from framework.settings.files import (
    MAX_GENERATED_BYTES,
    YamlError,
    display_path,
    find_config_dir,
    read_files,
    read_yaml,
)
from framework.text import did_you_mean, join_names
from framework.typeguards import is_list, is_mapping, short_repr

_SCHEMA = SettingsSchema(Settings)


class LintedApplication(NamedTuple):
    """The modules that a process loads (None if not found), the name of the config folder, and the facts for rules."""

    modules: Mapping[str, Path | None]
    config_label: str
    facts: ApplicationFacts
    schedule: Any
    """The value of ``schedule`` in the configuration; None without one."""


def read_application(here: Path) -> LintedApplication:
    """Read the settings and the generated files of the application that is started in ``here``."""
    folder = find_config_dir(os.environ.get("FRAMEWORK_CONFIG_DIR") or None, here, [])
    label = display_path(folder, here) if folder is not None else "config"
    from_files = read_files(_SCHEMA, folder, label, []) if folder is not None else {}
    configured = merge_nested(from_files, read_environment(_SCHEMA, os.environ, [])[0])
    modules = _modules(configured.get("workers_module"), here)
    released, retired, file = _released(
        configured.get("generated_files", "workers"), folder.parent if folder else here, label
    )
    known = ApplicationFacts(
        categories=_names(configured.get("feature_categories")) or None,
        categories_file=f"{label}/feature_categories.yml",
        released=released,
        released_file=file,
        retired={*retired, *_names(configured.get("retired_workers"))},
        modules={name: place for name, place in modules.items() if place is not None},
    )
    # Outside of a project the configuration of this checkout counts, whose schedule has other classes.
    is_own = folder is not None and (folder.parent == here.resolve() or "FRAMEWORK_CONFIG_DIR" in os.environ)
    return LintedApplication(modules, label, known, configured.get("schedule") if is_own else None)


def _modules(configured: Any, here: Path) -> dict[str, Path | None]:
    try:
        listed = validators.split_list(configured)
    except ValueError:
        listed = None
    names = [str(name) for name in listed] if is_list(listed) and listed else ["workers"]
    return {name: find_module(name, [str(here), *sys.path]) for name in names}


def _released(generated: Any, root: Path, label: str) -> tuple[dict[str, str], list[str], str]:
    """Return the wire names of the last release with their classes, the retired names, and the file they come from."""
    folder = Path(generated) if isinstance(generated, str) else Path("workers")
    manifest = _read_or_none(root / folder / "released.yml")
    file = (Path(label).parent / folder / "released.yml").as_posix()
    if is_mapping(manifest) and is_mapping(manifest.get("workers")):
        places = {str(name): _text(entry, "place") for name, entry in manifest["workers"].items()}
        return places, _names(manifest.get("retired")), file
    entries = _read_or_none(root / folder / "all_queues.yml")
    names = [_text(entry, "worker_name") for entry in entries] if is_list(entries) else []
    return {name: "" for name in names if name}, [], file.replace("released.yml", "all_queues.yml")


def _read_or_none(path: Path) -> Any:
    try:
        return read_yaml(path, max_bytes=MAX_GENERATED_BYTES)
    except YamlError:
        return None


def _text(entry: Any, key: str) -> str:
    value = entry.get(key) if is_mapping(entry) else None
    return value if isinstance(value, str) else ""


def _names(table: Any) -> list[str]:
    return [str(name) for name in table] if is_mapping(table) else []


_FILE = "schedule.yml"
_PLAIN_TYPES: Mapping[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "bool": (bool,), "float": (float, int)}


def schedule_problems(tree: Workspace, entries: Any, label: str) -> Iterator[ConfigurationProblem]:
    """Yield the problems of the file whose value of ``schedule`` is ``entries``; ``tree`` has all modules of the application."""
    if entries is None:
        return
    strict = "raise"
    try:
        strict = load().strict_arguments
    except ConfigurationError as error:
        yield from (one for one in error.problems if Path(one.file).name == _FILE)
    if not is_mapping(entries) or tree.unreadable:
        return
    classes = ClassIndex(tree)
    workers = {name: worker for worker in classes.workers if not worker.abstract for name in worker.wire_names}
    for name, entry in entries.items():
        wanted = entry.get("class") if is_mapping(entry) else None
        if not isinstance(wanted, str):
            continue
        if not classes.may_have_wire_name(wanted):
            message = f"no worker has the wire name {wanted!r}{did_you_mean(wanted, list(workers))}"
            yield ConfigurationProblem(f"{label}/{_FILE}", f"schedule.{name}.class", message)
        elif wanted in workers and is_list(given := entry.get("args", [])):
            for message in _argument_faults(workers[wanted], given, strict):
                yield ConfigurationProblem(f"{label}/{_FILE}", f"schedule.{name}.args", f"{wanted}: {message}")


def _argument_faults(worker: SourceClass, given: Sequence[Any], strict: str) -> Iterator[str]:
    """Yield why the arguments do not fit the worker's method, as far as its source shows: their number, and plain types.

    ``strict`` is the setting ``strict_arguments``, for classes without the attribute.
    """
    method = next((one for _, one in worker.handlers() if one.name in ("perform", ENUMERATOR)), None)
    if method is None or method.decorator_list:
        return
    arguments = method.args
    taken = [
        one for one in (*arguments.posonlyargs, *arguments.args)[1:] if one.arg != CURSOR or method.name != ENUMERATOR
    ]
    # Of an iterable worker the cursor has no default, and is passed by name.
    optional = len(arguments.defaults)
    missing = [one.arg for one in taken[len(given) : len(taken) - optional]]
    if missing:
        yield f"{join_names(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    if len(given) > len(taken) and arguments.vararg is None:
        yield f"{len(given)} arguments are given, and {method.name} takes {len(taken)}"
    if (worker.value("strict_arguments") or strict) == "raise":
        for one, value in zip(taken, given, strict=False):
            wanted = _PLAIN_TYPES.get(one.annotation.id) if isinstance(one.annotation, ast.Name) else None
            # A bool is an int to Python, and never one on the wire.
            if wanted is not None and type(value) not in wanted:
                yield f"argument {one.arg!r} is {short_repr(value)}, no {cast('ast.Name', one.annotation).id}"
