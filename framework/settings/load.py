"""From files and the environment to one ``Settings``, or to one error that lists everything wrong."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import EnvSettingsSource, SettingsError

from framework.errors import ConfigurationError, Problem
from framework.settings.model import DEFAULT_URL, ENV_PREFIX, Settings
from framework.settings.shapes import is_mapping
from framework.settings.suggest import did_you_mean, nearest
from framework.settings.yaml_file import YamlError, read_yaml

_FILES: Mapping[str, tuple[str, ...]] = {
    "redis.yml": ("shards",),
    "routing.yml": ("routing_rules",),
    "feature_categories.yml": ("feature_categories",),
    "queues.yml": ("queues",),
    "application.yml": (
        "workers_module",
        "namespace_weights",
        "logging",
        "concurrency",
        "timeout",
        "max_retries",
        "dead",
        "size_limit",
        "strict_arguments",
        "poll_interval",
        "sentry",
        "retired_workers",
    ),
}
_FILE_OF = {key: file for file, keys in _FILES.items() for key in keys}
_ENVIRONMENT = "environment"
_RETIRED = f"{ENV_PREFIX}RETIRED_WORKERS"
_QUOTED = re.compile(r'"(\w+)"')
_SECRET = ("url", "username", "password", "dsn")


def load(env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Settings:
    """The settings of this process: built-in defaults, under the files of the config folder, under the environment.

    The folder is FRAMEWORK_CONFIG_DIR, else ``config`` of the working directory when it holds one of our files, else
    ``config`` beside the package. Raises ConfigurationError listing every problem with its file and key.
    """
    environment = os.environ if env is None else env
    here = Path.cwd() if cwd is None else cwd
    problems: list[Problem] = []
    folder = _config_dir(environment, here, problems)
    from_files = _read_files(folder, problems) if folder else {}
    from_environment = _read_environment(environment, problems)
    values = _merge(_with_known_variables(from_files, environment), from_environment)
    values["config_dir"] = folder or here / "config"
    values["root"] = folder.parent if folder else here
    values["env_name"] = environment.get("FRAMEWORK_ENV") or "development"
    values["var_dir"] = here / (environment.get("FRAMEWORK_VAR_DIR") or values["root"] / "var")
    try:
        settings = Settings(**values)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
        problems.extend(_to_problem(detail, from_environment, environment, folder) for detail in details)
        raise ConfigurationError(problems) from None
    if problems:
        raise ConfigurationError(problems)
    return settings


def _config_dir(environment: Mapping[str, str], here: Path, problems: list[Problem]) -> Path | None:
    named = environment.get("FRAMEWORK_CONFIG_DIR")
    if named:
        folder = (here / named).resolve()
        if not folder.is_dir():
            problems.append(Problem(_ENVIRONMENT, "FRAMEWORK_CONFIG_DIR", f"there is no folder {folder}"))
        return folder
    beside_package = Path(__file__).resolve().parent.parent.parent / "config"
    for folder in ((here / "config").resolve(), beside_package):
        if any((folder / file).is_file() for file in _FILES):
            return folder
    return None


def _read_files(folder: Path, problems: list[Problem]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for file, keys in _FILES.items():
        path = folder / file
        if not path.exists():
            continue
        label = _label(folder, file)
        try:
            content = read_yaml(path)
        except YamlError as error:
            problems.append(Problem(label, "", str(error)))
            continue
        if content is None:
            continue
        if not is_mapping(content):
            problems.append(Problem(label, "", f"must hold keys and values; allowed keys: {', '.join(keys)}"))
            continue
        for key, value in content.items():
            if key in keys:
                values[key] = value
            else:
                problems.append(
                    Problem(label, str(key), f"unknown key{did_you_mean(key, keys)}; allowed: {', '.join(keys)}")
                )
    return values


def _read_environment(environment: Mapping[str, str], problems: list[Problem]) -> dict[str, Any]:
    problems.extend(_misspelt(environment))
    source = EnvSettingsSource(Settings)
    source.env_vars = {name.lower(): value for name, value in environment.items()}
    try:
        values = source()
    except SettingsError as error:
        field = _QUOTED.search(str(error))
        key = ENV_PREFIX + field[1].upper() if field else ""
        problems.append(Problem(_ENVIRONMENT, key, "is no JSON, in which a list or an object is written here"))
        return {}
    return {key: value for key, value in values.items() if key in _FILE_OF}


def _misspelt(environment: Mapping[str, str]) -> Iterator[Problem]:
    # A name that is like none of ours may belong to somebody else (Kubernetes makes such names from services).
    known = [*_FILE_OF, "env", "config_dir", "var_dir"]
    for name in environment:
        if not name.startswith(ENV_PREFIX):
            continue
        if name.startswith(f"{_RETIRED}__"):
            yield Problem(
                _ENVIRONMENT, name, f"a class name's capitals are lost here; write {_RETIRED} as one JSON object"
            )
        key = name.removeprefix(ENV_PREFIX).lower().partition("__")[0]
        if key not in known and nearest(key, known, cutoff=0.8):
            hint = did_you_mean(key, known)
            yield Problem(_ENVIRONMENT, name, f"unknown setting {key!r}{hint}")


def _with_known_variables(values: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """The values under those that other programs read from the environment too: REDIS_URL and SENTRY_DSN."""
    url, dsn = environment.get("REDIS_URL"), environment.get("SENTRY_DSN")
    shards = values.get("shards", {"main": {"url": DEFAULT_URL}})
    if url and is_mapping(shards):
        # Whole, as a password or sentinels of the file belong to another server.
        shards = {**shards, "main": {"url": url}}
    return {**values, "shards": shards, **({"sentry": {"dsn": dsn}} if dsn else {})}


def _merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if is_mapping(below) and is_mapping(value) else value
    return merged


def _to_problem(
    detail: ErrorDetails, from_environment: dict[str, Any], environment: Mapping[str, str], folder: Path | None
) -> Problem:
    location = [step for step in detail["loc"] if step != "[key]"]
    message = _message(detail, location)
    variable = _variable(location, from_environment, environment)
    if variable:
        # A variable that holds JSON has an inside of its own.
        inner = location[variable.count("__") + 1 :] if variable.startswith(ENV_PREFIX) else []
        return Problem(_ENVIRONMENT, variable + _path(inner), message)
    key = _path(location).removeprefix(".")
    file = _FILE_OF.get(str(location[0]), "") if location else ""
    return Problem(_label(folder, file) if folder and file else _ENVIRONMENT, key, message)


def _path(steps: list[int | str]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


def _message(detail: ErrorDetails, location: list[int | str]) -> str:
    if detail["type"] == "extra_forbidden":
        known = _known_keys(location[:-1])
        return f"unknown key{did_you_mean(location[-1], known)}; allowed: {', '.join(known)}"
    if detail["type"] == "model_type":
        return f"must hold keys and values; allowed keys: {', '.join(_known_keys(location))}"
    text = detail["msg"].removeprefix("Value error, ")
    value = detail["input"]
    if isinstance(value, (str, int, float)) and not (location and location[-1] in _SECRET):
        return f"{text[0].lower()}{text[1:]}, not {value!r}"
    return f"{text[0].lower()}{text[1:]}"


def _variable(
    location: list[int | str], from_environment: dict[str, Any], environment: Mapping[str, str]
) -> str | None:
    """The environment variable a value came from, if it came from one."""
    if location[:1] == ["env_name"]:
        return "FRAMEWORK_ENV"
    inner: Any = from_environment
    names: list[str] = []
    for step in location:
        if not is_mapping(inner) or step not in inner:
            break
        inner = inner[step]
        names.append(str(step).upper())
    if not names:
        if location[:1] == ["sentry"] and environment.get("SENTRY_DSN"):
            return "SENTRY_DSN"
        return "REDIS_URL" if location[:2] == ["shards", "main"] and environment.get("REDIS_URL") else None
    whole = [ENV_PREFIX + "__".join(names[: count + 1]) for count in range(len(names))]
    upper = {name.upper() for name in environment}
    return next((name for name in reversed(whole) if name in upper), None)


def _known_keys(location: list[int | str]) -> list[str]:
    kind: Any = Settings
    for step in location:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = _section(kind.model_fields[str(step)].annotation)
        elif get_origin(kind) is dict:
            kind = _section(get_args(kind)[1])
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []


def _section(annotation: Any) -> Any:
    """The section class behind an optional annotation."""
    members = [member for member in get_args(annotation) if member is not type(None)]
    return members[0] if len(members) == 1 else annotation


def _label(folder: Path | None, file: str) -> str:
    return f"{folder.name}/{file}" if folder else file
