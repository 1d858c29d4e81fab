"""Merge files and environment into one object of settings, or into one error that lists every fault."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from framework.errors import ConfigurationError, ConfigurationProblem
from framework.settings.base import SettingsBase
from framework.settings.environment import (
    ENVIRONMENT_SOURCE,
    apply_external_variables,
    drop_overridden_urls,
    merge_nested,
    read_environment,
)
from framework.settings.error_messages import ValueSources, to_problems
from framework.settings.files import display_path, find_config_dir, read_files
from framework.settings.redis_url import EMBEDDED
from framework.settings.schema import SettingsSchema
from framework.settings.unknown_variables import unknown_variables

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
    }
    problems += _problems_behind_variables(schema, from_files, common, label)
    try:
        settings = settings_class(**common, **merge_nested(under, own))
    except ValidationError as error:
        problems += to_problems(error, ValueSources(schema, label, from_files, {**known_origins, **own_origins}))
        raise ConfigurationError(list(dict.fromkeys(problems))) from None
    if problems:
        raise ConfigurationError(list(dict.fromkeys(problems)))
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
