"""Load the features of the application: the records that the setting ``features`` names."""

from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module

from framework.declare.registry import add_working_directory
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.feature import Feature, features

_ALLOWED = (
    *("name", "push", "worker", "problems", "explain", "causes", "commands"),
    *("pages", "job_columns", "class_actions"),
)
"""The parts that an application may write: none needs a Lua script, or is there once for all jobs."""


def load_features(names: Sequence[str], source: str) -> list[Feature]:
    """Return the records, in the order of their names: ``shop.features:TENANT``. Imports their modules, not their late parts.

    Raises:
        ConfigurationError: with every record that does not exist, or that is not allowed.
    """
    found: list[Feature] = []
    problems: list[ConfigurationProblem] = []
    if names:
        add_working_directory()
    for name in names:
        try:
            record = _load(name)
            _check(record, [*features(), *found])
        except ValueError as error:
            problems.append(ConfigurationProblem(source, "features", f"{name}: {error}"))
        else:
            found.append(record)
    if problems:
        raise ConfigurationError(problems)
    return found


def _load(name: str) -> Feature:
    module, _, attribute = name.partition(":")
    try:
        record = getattr(import_module(module), attribute)
    except Exception as error:  # the module is code of the application, which may raise anything
        raise ValueError(f"cannot be loaded: {error!r}") from error
    if not isinstance(record, Feature):
        raise ValueError("is no Feature (framework.extending)")  # noqa: TRY004 - the value of a setting
    return record


def _check(record: Feature, others: Sequence[Feature]) -> None:
    refused = [one.name for one in fields(record) if one.name not in _ALLOWED and getattr(record, one.name)]
    if refused:
        raise ValueError(
            f"has {', '.join(refused)}, which only features of the framework may have. Allowed: {', '.join(_ALLOWED)}"
        )
    if any(one.name == record.name for one in others):
        raise ValueError(f"the name {record.name!r} belongs to another feature")
    taken = {command.name for one in others if one not in features() for command in one.commands}
    if same := sorted(taken & {command.name for command in record.commands}):
        raise ValueError(f"another feature has the command {same[0]}")
