"""Settings from the environment: ``FRAMEWORK_`` and the key, ``__`` for nesting, and two variables that other programs read too.

A variable that begins with ``FRAMEWORK_`` and names no setting has no effect, and is warned about.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource, SettingsError

from framework.errors import ConfigurationProblem
from framework.settings.base import ENV_PREFIX, SettingsSchema
from framework.settings.model import DEFAULT_URL
from framework.text import nearest
from framework.typeguards import is_mapping

ENVIRONMENT_SOURCE = "environment"

VariableOrigins: TypeAlias = dict[tuple[str, ...], str]
"""The keys of each setting that a variable sets, and the name of the variable."""


class _VariableSource(EnvSettingsSource):
    """The library's reading of one variable, with JSON that refuses duplicate keys."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        decoded = super().decode_complex_value(field_name, field, value)
        if decoded is not value:
            json.loads(value, object_pairs_hook=_reject_duplicate_keys)
        return decoded


def read_environment(
    schema: SettingsSchema, environment: Mapping[str, str], problems: list[ConfigurationProblem]
) -> tuple[dict[str, Any], VariableOrigins]:
    """Return the settings that known variables give, unchecked, and the origin of each. Faults go to ``problems``."""
    values: dict[str, Any] = {}
    origins: VariableOrigins = {}
    # A variable with more parts wins over the JSON of one with fewer.
    for name in sorted(environment, key=lambda name: (name.count("__"), name)):
        path = key_path(name)
        message = _rejection_reason(schema, name, path, environment[name])
        if message is not None:
            problems.append(ConfigurationProblem(ENVIRONMENT_SOURCE, name, message))
        elif name.startswith(ENV_PREFIX) and path[0] in schema.file_by_key:
            try:
                values = merge_nested(values, _parse_variable(schema, name, environment[name]))
                origins[path] = name
            except ValueError as error:
                problems.append(ConfigurationProblem(ENVIRONMENT_SOURCE, name, str(error)))
    return values, origins


def drop_overridden_urls(from_files: dict[str, Any], from_environment: dict[str, Any]) -> dict[str, Any]:
    """Return the files' values without the addresses of Redis, also of the built-in shard main, that a variable replaces.

    A url and sentinels exclude each other, so one of them in a variable replaces the other in a file.
    """
    shards, overrides = from_files.get("shards", {"main": {"url": DEFAULT_URL}}), from_environment.get("shards")
    if not is_mapping(shards) or not is_mapping(overrides):
        return {**from_files, "shards": shards}
    kept = {name: _drop_overridden_url(shard, overrides.get(name)) for name, shard in shards.items()}
    return {**from_files, "shards": kept}


def _drop_overridden_url(shard: Any, variable: Any) -> Any:
    if not is_mapping(shard) or not is_mapping(variable):
        return shard
    if "url" in variable:
        return {key: value for key, value in shard.items() if not str(key).startswith("sentinel")}
    return {key: value for key, value in shard.items() if key != "url" or "sentinels" not in variable}


def apply_external_variables(
    values: dict[str, Any], environment: Mapping[str, str]
) -> tuple[dict[str, Any], VariableOrigins]:
    """Put the variables that other programs read too, REDIS_URL and SENTRY_DSN, under the values.

    An empty variable counts as not set, as in those programs.
    """
    url, dsn = environment.get("REDIS_URL"), environment.get("SENTRY_DSN")
    origins: VariableOrigins = {}
    shards = values["shards"]
    if url and is_mapping(shards):
        # The whole address: a password or sentinels of the file belong to another server.
        shards = {**shards, "main": {"url": url}}
        origins["shards", "main"] = "REDIS_URL"
    if dsn:
        section = values.get("sentry")
        values = {**values, "sentry": {**section, "dsn": dsn} if is_mapping(section) else {"dsn": dsn}}
        origins["sentry", "dsn"] = "SENTRY_DSN"
    return {**values, "shards": shards}, origins


def merge_nested(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge both, key by key to any depth; ``over`` wins where they differ."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge_nested(below, value) if is_mapping(below) and is_mapping(value) else value
    return merged


def _parse_variable(schema: SettingsSchema, name: str, text: str) -> dict[str, Any]:
    """Return the value of one variable as nested keys. Raises ValueError."""
    source = _VariableSource(schema.settings_class)
    source.env_vars = {name.lower(): text}
    try:
        values = source()
    except RecursionError:
        raise ValueError("is nested deeper than any setting") from None
    except SettingsError as error:
        key = name.removeprefix(ENV_PREFIX).lower().partition("__")[0]
        reason = f"must be JSON, because this setting is a list or has keys ({error.__cause__})"
        raise ValueError(f"{reason}{schema.actual_value_note(text, [key])}") from None
    if not values:
        raise ValueError(
            "null is not a value: unset the variable"
            if "__" not in name
            else "no setting has this name: the setting has no nested keys"
        )
    return values


def _rejection_reason(schema: SettingsSchema, name: str, path: Sequence[str], value: str) -> str | None:
    """Return why the value of a known variable is wrong, or ``None``."""
    if not name.startswith(ENV_PREFIX) or path[0] not in (*schema.file_by_key, "env", *FOLDER_VARIABLES):
        return None
    if len(path) > 1 and path[0] in CASE_SENSITIVE_KEYS:
        return f"a variable loses the capitals of a class name: write {ENV_PREFIX}{path[0].upper()} as one JSON object"
    return None if value else "is empty: give it a value, or unset it"


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} occurs for the second time")
        found[key] = value
    return found


FOLDER_VARIABLES = ("config_dir", "var_dir")
CASE_SENSITIVE_KEYS = ("retired_workers",)
"""Keys whose inner keys have capitals, which the name of a variable cannot have."""
INTERNAL_VARIABLES = frozenset(
    {
        *("at_terminal", "from_checkout", "isolation_mark", "process_nonce", "shared_counts", "shared_state"),
        *("supervisor_pid", "worker_id"),
    },
)
"""Variables by which processes of the framework talk to their children."""

_KUBERNETES = re.compile(r"(^|_)(SERVICE_HOST|SERVICE_PORT\w*|PORT|PORT_\d+_\w+)$")
"""Variables that Kubernetes makes for a service called ``framework-...``, a dozen for each: a warning would not help."""
_SYNONYMS = {
    "environment": "FRAMEWORK_ENV",
    "env_name": "FRAMEWORK_ENV",
    "config": "FRAMEWORK_CONFIG_DIR",
    "redis_url": "REDIS_URL",
}


# Warned about, because they may belong to other programs.
def unknown_variables(schema: SettingsSchema, names: Collection[str]) -> dict[str, str | None]:
    """Return each variable that has no effect, with the nearest name that has one, or ``None`` when none is near."""
    found: dict[str, str | None] = {}
    for name in sorted(names):
        path = key_path(name)
        if not name.upper().startswith(ENV_PREFIX) or _is_known(schema, name, path):
            continue
        near = _nearest_variable(schema, path)
        # A name in lower case is another program's, unless it is nearly one of these.
        if (near is not None or name.startswith(ENV_PREFIX)) and not _KUBERNETES.search(name):
            found[name] = near
    return found


def key_path(name: str) -> tuple[str, ...]:
    return tuple(name.upper().removeprefix(ENV_PREFIX).lower().split("__"))


def _is_known(schema: SettingsSchema, name: str, path: Sequence[str]) -> bool:
    if name.startswith(ENV_PREFIX) and path[0] in CASE_SENSITIVE_KEYS:
        # Its capitals are lost, so it is refused, with the right way to set it.
        return True
    if name != name.upper():
        return False
    if len(path) == 1 and path[0] in ("env", *FOLDER_VARIABLES, *INTERNAL_VARIABLES):
        return True
    return path[0] in schema.file_by_key and schema.is_settings_path(path)


def _nearest_variable(schema: SettingsSchema, path: Sequence[str]) -> str | None:
    """Return the variable with an effect that is most like one without."""
    if path[0] not in schema.file_by_key:
        return _nearest_to_word(schema, "__".join(path))
    for count in range(1, len(path)):
        if not schema.is_settings_path(path[: count + 1]):
            key = nearest(path[count], schema.keys_at(path[:count]))
            return _variable_name((*path[:count], key, *path[count + 1 :]) if key else path[:count])
    return _variable_name(path)


def _nearest_to_word(schema: SettingsSchema, word: str) -> str | None:
    known = {"_".join(path): _variable_name(path) for path in _key_paths(schema)} | _SYNONYMS
    near = nearest(word.replace("__", "_").strip("_"), known, cutoff=0.8)
    if near is not None:
        return known[near]
    first, _, rest = word.partition("__")
    top = nearest(first, schema.file_by_key, cutoff=0.8) if rest else None
    if top is not None:
        return _variable_name((top, rest))
    section = next(
        (key for key in schema.file_by_key if schema.has_nested_keys(key) and word.startswith(f"{key}_")), None
    )
    return _variable_name((section, word.removeprefix(f"{section}_"))) if section is not None else None


def _variable_name(path: Sequence[str]) -> str:
    return ENV_PREFIX + "__".join(path).upper()


def _key_paths(schema: SettingsSchema) -> Iterator[tuple[str, ...]]:
    """Return every variable as its keys; in mappings with free names, the keys up to the mapping."""
    yield from (("env",), *((folder,) for folder in FOLDER_VARIABLES))
    for key in schema.file_by_key:
        yield (key,)
        yield from ((key, inner) for inner in schema.keys_at([key]))
