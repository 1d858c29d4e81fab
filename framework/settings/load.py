"""Merge files and environment into one object of settings, or into one error that lists every fault.

A fault names the place, the value, the allowed values and the nearest right spelling.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from framework.errors import ConfigurationError, ConfigurationProblem
from framework.known_secrets import known_secrets
from framework.settings.base import ENV_PREFIX, SettingsBase, SettingsSchema, secrets_of
from framework.settings.environment import (
    ENVIRONMENT_SOURCE,
    VariableOrigins,
    apply_external_variables,
    drop_overridden_urls,
    merge_nested,
    read_environment,
    unknown_variables,
)
from framework.settings.files import display_path, find_config_dir, read_files
from framework.settings.shown import GivenValues
from framework.settings.urls import EMBEDDED
from framework.text import did_you_mean
from framework.typeguards import is_mapping

S = TypeVar("S", bound=SettingsBase)


def load_as(settings_class: type[S], env: Mapping[str, str] | None, cwd: Path | None) -> S:
    """Return the settings of this process: built-in defaults, then the files of the config folder, then the environment.

    They are an object of ``settings_class``, which the caller passes, because the core does not know the composed class.
    The folder is FRAMEWORK_CONFIG_DIR, else ``config`` of the working directory, else, in a checkout, that of the checkout. Raises
    ConfigurationError listing every problem with its file and key.
    """
    schema = SettingsSchema(settings_class)
    environment = os.environ if env is None else env
    here = Path.cwd() if cwd is None else cwd
    problems: list[ConfigurationProblem] = []
    folder = find_config_dir(environment.get("FRAMEWORK_CONFIG_DIR") or None, here, problems)
    label = display_path(folder, here) if folder else None
    from_files = read_files(schema, folder, label, problems) if folder and label else {}
    unknown = unknown_variables(schema, environment)
    known = {name: value for name, value in environment.items() if name not in unknown}
    own, own_origins = read_environment(schema, known, problems)
    under, known_origins = apply_external_variables(drop_overridden_urls(from_files, own), environment)
    root = folder.parent if folder else here
    common: dict[str, Any] = {
        "config_dir": folder or here / "config",
        "config_label": label or "config",
        "root": root,
        "unknown_variables": unknown,
        "env_name": environment.get("FRAMEWORK_ENV") or "development",
        "var_dir": _var_dir(environment, here, root, problems),
        "origins": GivenValues(
            {key: under[key] for key in from_files},
            {key: f"{label}/{file}" for key, file in schema.file_by_key.items()},
            own,
            own_origins,
            known_origins,
        ).origins(),
    }
    problems += _problems_behind_variables(schema, from_files, common, label)
    try:
        settings = settings_class(**common, **merge_nested(under, own))
    except ValidationError as error:
        problems += to_problems(error, ValueSources(schema, label, from_files, {**known_origins, **own_origins}))
        raise ConfigurationError(list(dict.fromkeys(problems))) from None
    if problems:
        raise ConfigurationError(list(dict.fromkeys(problems)))
    known_secrets.add(secrets_of(settings))
    return settings


def _problems_behind_variables(
    schema: SettingsSchema, from_files: dict[str, Any], process_values: dict[str, Any], label: str | None
) -> list[ConfigurationProblem]:
    """Return faults of values in files that a variable replaces: the next process may run without that variable.

    Missing parts of sections are no faults here: files and environment may each give a part.
    """
    try:
        values: dict[str, Any] = {"shards": {"main": {"url": EMBEDDED}}} | process_values | from_files
        values["env_name"] = "development"
        schema.settings_class(**values)
    except ValidationError as error:
        return to_problems(error, ValueSources(schema, label, from_files, {}), include_section_errors=False)
    return []


def _var_dir(environment: Mapping[str, str], here: Path, root: Path, problems: list[ConfigurationProblem]) -> Path:
    named = environment.get("FRAMEWORK_VAR_DIR")
    folder = here / named if named else root / "var"
    if named and folder.exists() and not folder.is_dir():
        problems.append(ConfigurationProblem(ENVIRONMENT_SOURCE, "FRAMEWORK_VAR_DIR", f"{folder} is not a folder"))
    return folder


_EXPECTED_BY_ERROR = {
    "missing": "is missing",
    "string_type": "must be a text",
    "string_unicode": "must be a text of Unicode",
    "string_too_short": "must not be empty",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "invalid_key": "this key must be a text",
}
"""pydantic's kinds of errors in plain words."""


class ValueSources(NamedTuple):
    """The sources of the values: files and variables."""

    schema: SettingsSchema
    config_label: str | None
    """The name of the config folder in messages."""
    from_files: dict[str, Any]
    origins: VariableOrigins


def to_problems(
    error: ValidationError, sources: ValueSources, *, include_section_errors: bool = True
) -> list[ConfigurationProblem]:
    """Return every fault with its place; without ``include_section_errors`` not those of missing or contradictory parts."""
    details = error.errors(include_url=False, include_context=False)
    return [
        _to_problem(detail, sources)
        for detail in details
        if include_section_errors or not _is_section_error(detail, sources.schema)
    ]


def _is_section_error(detail: ErrorDetails, schema: SettingsSchema) -> bool:
    if detail["type"] == "value_error":
        return is_mapping(detail["input"]) and (detail["loc"] == ("shards",) or bool(schema.keys_at(detail["loc"])))
    return detail["type"] == "missing"


def _to_problem(detail: ErrorDetails, sources: ValueSources) -> ConfigurationProblem:
    location = [step for step in detail["loc"] if step != "[key]"]
    of_key = len(location) < len(detail["loc"])
    message = (
        f"this key {_expected(detail)}{sources.schema.actual_value_note(detail['input'], ['a key'])}"
        if of_key
        else _message(detail, location, sources.schema)
    )
    found = _origin_variable(location, sources)
    if found is not None:
        variable, depth = found
        # A variable that holds JSON has places of its own inside.
        inner = location[depth:] if variable.startswith(ENV_PREFIX) else []
        return ConfigurationProblem(ENVIRONMENT_SOURCE, variable + _format_path(inner), message)
    file = sources.schema.file_by_key.get(str(location[0]), "") if location else ""
    place = f"{sources.config_label}/{file}" if sources.config_label and file else ENVIRONMENT_SOURCE
    return ConfigurationProblem(place, _format_path(location).removeprefix("."), message)


def _format_path(steps: Sequence[int | str]) -> str:
    return "".join(
        f".{step}" if isinstance(step, str) and step and step.isprintable() else f"[{step!r}]" for step in steps
    )


def _origin_variable(location: Sequence[int | str], sources: ValueSources) -> tuple[str, int] | None:
    """Return the variable that gave the value at this place, and how many steps of the place the variable's name has; else None."""
    if list(location[:1]) == ["env_name"]:
        return "FRAMEWORK_ENV", 1
    steps = tuple(str(step) for step in location)
    above = [path for path in sources.origins if steps[: len(path)] == path]
    if above:
        path = max(above, key=len)
        return sources.origins[path], len(path)
    # A section that no file has, or that a variable replaces, consists of the variables below it.
    below = min((path for path in sources.origins if path[: len(steps)] == steps), default=None)
    if below is None or is_mapping(_value_at(sources.from_files, location)):
        return None
    return sources.origins[below], len(below)


def _value_at(values: Any, location: Sequence[int | str]) -> Any:
    for step in location:
        values = values.get(step) if is_mapping(values) else None
    return values


def _message(detail: ErrorDetails, location: Sequence[int | str], schema: SettingsSchema) -> str:
    kind, value = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        known = schema.keys_at(location[:-1])
        return f"unknown key{did_you_mean(location[-1], known)}; allowed: {', '.join(known)}"
    choices = schema.choices_at(location)
    if kind == "literal_error" and choices:
        words = ", ".join(map(str, choices))
        return (
            f"must be one of {words}{schema.actual_value_note(value, location)}{did_you_mean(value, map(str, choices))}"
        )
    if kind == "tuple_type" and len(location) > 1:
        return f"must be a list{schema.actual_value_note(value, location)}"
    if kind in ("model_type", "dict_type", "tuple_type"):
        allowed = ", ".join(schema.keys_at(location))
        keys = (
            f"must hold keys and values; allowed keys: {allowed}"
            if allowed
            else "must hold names, each with its keys and values"
        )
        expected = schema.expected_by_key.get(str(location[0]), keys) if len(location) == 1 else keys
        return f"{expected}{schema.actual_value_note(value, location)}"
    return (
        _expected(detail)
        if _is_section_error(detail, schema)
        else f"{_expected(detail)}{schema.actual_value_note(value, location)}"
    )


def _expected(detail: ErrorDetails) -> str:
    return _EXPECTED_BY_ERROR.get(detail["type"]) or detail["msg"].removeprefix("Value error, ").replace(
        "Input should", "must", 1
    )
