"""Read the files of the config folder, and find misspelt names."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from framework.command_line import started_from_checkout
from framework.errors import ConfigurationProblem
from framework.messages import did_you_mean, nearest
from framework.settings.schema import SettingsSchema
from framework.settings.yaml_file import YamlError, read_yaml
from framework.typeguards import is_list, is_mapping

_CATEGORIES = "feature_categories"


def find_config_dir(named: str | None, working_dir: Path, problems: list[ConfigurationProblem]) -> Path | None:
    """Return the config folder: the named one, else ``config`` of ``working_dir``, also an empty one; None without it.

    In a checkout, and for its commands, it is else the folder of the checkout. An application with an editable installation has
    nothing to do with that one: it would get the schedule and the rules of the checkout.
    """
    if named is not None:
        folder = (working_dir / named).resolve()
        place = ConfigurationProblem("environment", "FRAMEWORK_CONFIG_DIR", "")
        if not folder.is_dir():
            hint = "" if folder.exists() else did_you_mean(folder.name, _file_names(folder.parent))
            problems.append(place._replace(message=f"there is no folder {folder}{hint}"))
        return folder
    own = (working_dir / "config").resolve()
    if own.is_dir():
        return own
    parent = Path(__file__).resolve().parent.parent.parent
    belongs = started_from_checkout() or working_dir.resolve().is_relative_to(parent)
    return parent / "config" if belongs and (parent / "config").is_dir() else None


def read_files(
    schema: SettingsSchema, folder: Path, label: str, problems: list[ConfigurationProblem]
) -> dict[str, Any]:
    """Return every known key of the folder's files, unchecked. Unreadable files and unknown keys go to ``problems``.

    ``label`` is the name of the folder in the problems.
    """
    values: dict[str, Any] = {}
    present = _file_names(folder)
    problems.extend(
        ConfigurationProblem(f"{label}/{name}", "", message)
        for name, message in _misnamed_files(schema, folder, present)
    )
    for file in schema.keys_by_file:
        if file in present:
            values |= _read_file(schema, folder / file, ConfigurationProblem(f"{label}/{file}", "", ""), problems)
    return values


def display_path(folder: Path, working_dir: Path) -> str:
    """Return the name of a folder in messages: relative to the working directory if it is below that, else absolute."""
    working_dir = working_dir.resolve()
    below = folder != working_dir and folder.is_relative_to(working_dir)
    return folder.relative_to(working_dir).as_posix() if below else folder.as_posix()


def _file_names(folder: Path) -> frozenset[str]:
    try:
        return frozenset(path.name for path in folder.iterdir())
    except OSError:
        return frozenset()


def _read_file(
    schema: SettingsSchema, path: Path, place: ConfigurationProblem, problems: list[ConfigurationProblem]
) -> dict[str, Any]:
    keys = schema.keys_by_file[path.name]
    try:
        content = read_yaml(path)
    except YamlError as error:
        problems.append(place._replace(message=str(error)))
        return {}
    if content is None:
        return {}
    if _CATEGORIES in keys:
        content = _with_owners(content)
    if not is_mapping(content):
        problems.append(place._replace(message=f"must hold keys and values; allowed keys: {', '.join(keys)}"))
        return {}
    for key in content:
        if key not in keys:
            file = schema.file_by_key.get(key)
            elsewhere = f"; it belongs to {file}" if file is not None else ""
            hint = did_you_mean(key, keys) or elsewhere
            message = f"unknown key{hint}; allowed: {', '.join(keys)}"
            problems.append(place._replace(key=key if isinstance(key, str) else _as_yaml_scalar(key), message=message))
    return {key: value for key, value in content.items() if key in keys}


def _with_owners(content: Any) -> Any:
    """Return the content of a file of categories; a plain list of names, as GitLab's file is, has teams of the same names."""
    listed = content.get(_CATEGORIES) if is_mapping(content) else content
    if not is_list(listed) or not all(isinstance(name, str) for name in listed):
        return content
    others = content if is_mapping(content) else {}
    return {**others, _CATEGORIES: {name: {"owner": name} for name in listed}}


def _as_yaml_scalar(value: object) -> str:
    """Return a plain value as YAML writes it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _misnamed_files(schema: SettingsSchema, folder: Path, present: Collection[str]) -> Iterator[tuple[str, str]]:
    """Return files that are not read although they look like files of the framework, each with a remedy.

    Such a file has the name of one but for capitals or ``.yaml``, or nearly the name of a missing one, and holds a key of it:
    files of other programs are left out.
    """
    known = schema.keys_by_file
    missing = {file.removesuffix(".yml"): file for file in known if file not in present}
    for name in sorted(present):
        stem, _, ending = name.rpartition(".")
        if name in known or name.startswith(".") or ending.lower() not in ("yml", "yaml"):
            continue
        same = f"{stem.lower()}.yml"
        file = same if same in known else missing.get(nearest(stem.lower(), missing, cutoff=0.8) or "")
        if file is not None and _has_known_key(folder / name, known[file]):
            yield (
                name,
                f"the framework does not read a file of this name (did you mean {file!r}?): rename it, or merge it into that one",
            )


def _has_known_key(path: Path, keys: Collection[str]) -> bool:
    try:
        content = read_yaml(path)
    except YamlError:
        return False
    return is_mapping(content) and any(nearest(key, keys) for key in content)
