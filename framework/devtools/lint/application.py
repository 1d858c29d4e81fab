"""Read the files of an application for ``lint-workers``; unreadable files are skipped, because a boot reports them."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from framework.all_settings import Settings
from framework.devtools.lint.workspace import ApplicationFacts, find_module
from framework.settings import validators
from framework.settings.environment import merge_nested, read_environment
from framework.settings.files import display_path, find_config_dir, read_files
from framework.settings.schema import SettingsSchema
from framework.settings.yaml_file import YamlError, read_yaml
from framework.typeguards import is_list, is_mapping

_SCHEMA = SettingsSchema(Settings)
MAX_BYTES = 16 * 1024 * 1024
"""The size limit of a generated file; enough for tens of thousands of workers."""


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
        return read_yaml(path, max_bytes=MAX_BYTES)
    except YamlError:
        return None


def _text(entry: Any, key: str) -> str:
    value = entry.get(key) if is_mapping(entry) else None
    return value if isinstance(value, str) else ""


def _names(table: Any) -> list[str]:
    return [str(name) for name in table] if is_mapping(table) else []
