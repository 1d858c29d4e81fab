"""Turn pydantic's errors into problems that name the place, the value, the allowed values and the nearest right spelling."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from framework.errors import ConfigurationProblem
from framework.messages import did_you_mean
from framework.settings.base import ENV_PREFIX
from framework.settings.environment import ENVIRONMENT_SOURCE, VariableOrigins
from framework.settings.schema import SettingsSchema
from framework.typeguards import is_mapping

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
