"""Variables of the environment: ``FRAMEWORK_`` and the key, ``__`` for nesting, and two that other programs read too."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource, SettingsError

from framework.errors import Problem
from framework.settings.files import FILE_OF
from framework.settings.model import DEFAULT_URL, ENV_PREFIX, Settings
from framework.settings.outline import has_parts, instead_of, keys_at
from framework.settings.shapes import is_mapping
from framework.settings.suggest import nearest

ENVIRONMENT = "environment"

Origins: TypeAlias = dict[tuple[str, ...], str]
"""Where in the settings a variable stands: its keys, and its name."""

_FOLDERS = ("config_dir", "var_dir")
_CAPITALS = ("retired_workers",)
"""Keys whose inner keys have capitals, which the name of a variable cannot say."""
_KUBERNETES = re.compile(r"(^|_)(SERVICE_HOST|SERVICE_PORT\w*|PORT|PORT_\d+_\w+)$")
"""Names that Kubernetes makes for a service called ``framework-...``."""
_ALSO_CALLED = {
    "environment": "FRAMEWORK_ENV",
    "env_name": "FRAMEWORK_ENV",
    "config": "FRAMEWORK_CONFIG_DIR",
    "redis_url": "REDIS_URL",
}


class _Source(EnvSettingsSource):
    """The library's reading of one variable, with JSON that must not say a thing twice."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        decoded = super().decode_complex_value(field_name, field, value)
        if decoded is not value:
            json.loads(value, object_pairs_hook=_once)
        return decoded


def read_environment(environment: Mapping[str, str], problems: list[Problem]) -> tuple[dict[str, Any], Origins]:
    """The settings that variables give, unchecked, and where each stands; what cannot be read is among the problems."""
    values: dict[str, Any] = {}
    origins: Origins = {}
    # A variable with more parts stands over the JSON of one with fewer.
    for name in sorted(environment, key=lambda name: (name.count("__"), name)):
        path = tuple(name.upper().removeprefix(ENV_PREFIX).lower().split("__"))
        message = _refusal(name, path, environment[name])
        if message is not None:
            problems.append(Problem(ENVIRONMENT, name, message))
        elif name.startswith(ENV_PREFIX) and path[0] in FILE_OF:
            try:
                values = merge(values, _value(name, environment[name]))
                origins[path] = name
            except ValueError as error:
                problems.append(Problem(ENVIRONMENT, name, str(error)))
    return values, origins


def with_known_variables(values: dict[str, Any], environment: Mapping[str, str]) -> tuple[dict[str, Any], Origins]:
    """The values under those that other programs read from the environment too: REDIS_URL and SENTRY_DSN.

    An empty one counts as not set, as those programs have it.
    """
    url, dsn = environment.get("REDIS_URL"), environment.get("SENTRY_DSN")
    origins: Origins = {}
    shards = values.get("shards", {"main": {"url": DEFAULT_URL}})
    if url and is_mapping(shards):
        # Whole, as a password or sentinels of the file belong to another server.
        shards = {**shards, "main": {"url": url}}
        origins["shards", "main"] = "REDIS_URL"
    if dsn:
        values = {**values, "sentry": {"dsn": dsn}}
        origins[("sentry",)] = "SENTRY_DSN"
    return {**values, "shards": shards}, origins


def merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Both, key by key to any depth; ``over`` counts where they differ."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if is_mapping(below) and is_mapping(value) else value
    return merged


def _value(name: str, text: str) -> dict[str, Any]:
    """What one variable says, as nested keys. Raises ValueError."""
    source = _Source(Settings)
    source.env_vars = {name.lower(): text}
    try:
        values = source()
    except RecursionError:
        raise ValueError("is nested deeper than anything here") from None
    except SettingsError as error:
        key = name.removeprefix(ENV_PREFIX).lower().partition("__")[0]
        reason = f"must be JSON, as a list or keys and values stand here ({error.__cause__})"
        raise ValueError(f"{reason}{instead_of(text, [key])}") from None
    if not values:
        raise ValueError(
            "null is no value: unset the variable" if "__" not in name else "no setting has this name: it has no parts"
        )
    return values


def _refusal(name: str, path: Sequence[str], value: str) -> str | None:
    """Why a variable is none of ours although it looks like one, or None."""
    if not name.upper().startswith(ENV_PREFIX):
        return None
    if path[0] in FILE_OF or path[0] in ("env", *_FOLDERS):
        if len(path) > 1 and path[0] in _CAPITALS:
            return f"a class name's capitals are lost here; write {ENV_PREFIX}{path[0].upper()} as one JSON object"
        if name != name.upper():
            return f"the names of variables are upper case: {name.upper()}"
        if not value:
            return "is empty: give it a value, or unset it"
        return None
    meant = _meant(name.upper().removeprefix(ENV_PREFIX).lower())
    return f"unknown setting (did you mean {meant}?)" if meant is not None else None


def _meant(word: str) -> str | None:
    """The variable of ours that is nearly called ``word``. One that is like none may belong to somebody else."""
    if _KUBERNETES.search(word.upper()):
        return None
    known = {"_".join(path): ENV_PREFIX + "__".join(path).upper() for path in _paths()} | _ALSO_CALLED
    near = nearest(word.replace("__", "_").strip("_"), known, cutoff=0.8)
    if near is not None:
        return known[near]
    first, _, rest = word.partition("__")
    top = nearest(first, FILE_OF, cutoff=0.8) if rest else None
    if top is not None:
        return f"{ENV_PREFIX}{top}__{rest}".upper()
    section = next((key for key in FILE_OF if has_parts(key) and word.startswith(f"{key}_")), None)
    return f"{ENV_PREFIX}{section}__{word.removeprefix(f'{section}_')}".upper() if section is not None else None


def _paths() -> Iterator[tuple[str, ...]]:
    """Every variable as its keys; those of a mapping with names of its own without them."""
    yield from (("env",), *((folder,) for folder in _FOLDERS))
    for key in FILE_OF:
        yield (key,)
        yield from ((key, inner) for inner in keys_at([key]))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands there for the second time")
        found[key] = value
    return found
