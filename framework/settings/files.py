"""The files of the config folder: which there are, what each may hold, and names that are nearly theirs."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from framework.errors import Problem
from framework.settings.shapes import is_mapping
from framework.settings.suggest import did_you_mean, nearest
from framework.settings.yaml_file import YamlError, read_yaml

FILES: Mapping[str, tuple[str, ...]] = {
    "redis.yml": ("shards",),
    "routing.yml": ("routing_rules",),
    "feature_categories.yml": ("feature_categories",),
    "queues.yml": ("queues",),
    "application.yml": (
        "workers_module",
        "generated_files",
        "namespace_weights",
        "logging",
        "concurrency",
        "timeout",
        "tag",
        "labels",
        "max_retries",
        "max_retries_after_interruption",
        "dead",
        "size_limit",
        "strict_arguments",
        "limits",
        "process_limits",
        "sidekiq_metrics",
        "concurrency_limit_by_urgency",
        "poll_interval",
        "parked_alert_after",
        "sentry",
        "flags",
        "databases",
        "health",
        "unknown_class_max_wait",
        "foreign_classes",
        "retired_workers",
    ),
}
"""Each file and its keys."""

FILE_OF = {key: file for file, keys in FILES.items() for key in keys}


def find_folder(named: str | None, here: Path, problems: list[Problem]) -> Path | None:
    """The config folder: the named one, else ``config`` of ``here``, else ``config`` beside the package, the first that
    holds one of our files or one that was meant to be. None when there is none.
    """
    if named is not None:
        folder = (here / named).resolve()
        place = Problem("environment", "FRAMEWORK_CONFIG_DIR", "")
        if not folder.is_dir():
            hint = "" if folder.exists() else did_you_mean(folder.name, _names(folder.parent))
            problems.append(place._replace(message=f"there is no folder {folder}{hint}"))
        return folder
    beside_package = Path(__file__).resolve().parent.parent.parent / "config"
    return next((folder for folder in ((here / "config").resolve(), beside_package) if _holds_ours(folder)), None)


def read_files(folder: Path, label: str, problems: list[Problem]) -> dict[str, Any]:
    """Every known key of the folder's files, unchecked; what cannot be read or is not known is among the problems.

    ``label`` is how the problems call the folder.
    """
    values: dict[str, Any] = {}
    present = _names(folder)
    problems.extend(Problem(f"{label}/{name}", "", message) for name, message in _nearly_ours(folder, present))
    for file in FILES:
        if file in present:
            values |= _read(folder / file, Problem(f"{label}/{file}", "", ""), problems)
    return values


def label_of(folder: Path, here: Path) -> str:
    """How messages call a folder: as seen from the working folder where it is below that, else by its whole path."""
    here = here.resolve()
    below = folder != here and folder.is_relative_to(here)
    return folder.relative_to(here).as_posix() if below else folder.as_posix()


def _holds_ours(folder: Path) -> bool:
    names = _names(folder)
    return any(file in names for file in FILES) or any(_nearly_ours(folder, names))


def _names(folder: Path) -> frozenset[str]:
    try:
        return frozenset(path.name for path in folder.iterdir())
    except OSError:
        return frozenset()


def _read(path: Path, place: Problem, problems: list[Problem]) -> dict[str, Any]:
    keys = FILES[path.name]
    try:
        content = read_yaml(path)
    except YamlError as error:
        problems.append(place._replace(message=str(error)))
        return {}
    if content is None:
        return {}
    if not is_mapping(content):
        problems.append(place._replace(message=f"must hold keys and values; allowed keys: {', '.join(keys)}"))
        return {}
    for key in content:
        if key not in keys:
            elsewhere = f"; it belongs to {FILE_OF[key]}" if key in FILE_OF else ""
            hint = did_you_mean(key, keys) or elsewhere
            message = f"unknown key{hint}; allowed: {', '.join(keys)}"
            problems.append(place._replace(key=key if isinstance(key, str) else _yaml_word(key), message=message))
    return {key: value for key, value in content.items() if key in keys}


def _yaml_word(value: object) -> str:
    """A plain value as YAML writes it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _nearly_ours(folder: Path, present: Collection[str]) -> Iterator[tuple[str, str]]:
    """Files that nobody would read although they were meant for us, each with what to do about it.

    A file is meant for us when its name is one of ours but for capitals or ``.yaml``, or nearly the name of one that is
    missing, and it holds a key of that one: files of other programs stay out of it.
    """
    missing = {file.removesuffix(".yml"): file for file in FILES if file not in present}
    for name in sorted(present):
        stem, _, ending = name.rpartition(".")
        if name in FILES or name.startswith(".") or ending.lower() not in ("yml", "yaml"):
            continue
        same = f"{stem.lower()}.yml"
        file = same if same in FILES else missing.get(nearest(stem.lower(), missing, cutoff=0.8) or "")
        if file is not None and _has_key_of(folder / name, FILES[file]):
            yield (
                name,
                f"nobody reads a file of this name (did you mean {file!r}?): rename it, or merge it into that one",
            )


def _has_key_of(path: Path, keys: Collection[str]) -> bool:
    try:
        content = read_yaml(path)
    except YamlError:
        return False
    return is_mapping(content) and any(nearest(key, keys) for key in content)
