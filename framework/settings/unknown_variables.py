"""Find the variables that begin with ``FRAMEWORK_`` and name no setting: they have no effect, and are warned about."""

import re
from collections.abc import Collection, Iterator, Sequence

from framework.messages import nearest
from framework.settings.base import ENV_PREFIX
from framework.settings.schema import SettingsSchema

FOLDER_VARIABLES = ("config_dir", "var_dir")
CASE_SENSITIVE_KEYS = ("retired_workers",)
"""Keys whose inner keys have capitals, which the name of a variable cannot have."""
INTERNAL_VARIABLES = frozenset(
    {"at_terminal", "from_checkout", "isolation_mark", "shared_state", "process_nonce", "supervisor_pid", "worker_id"},
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
    """Return the keys that a variable names."""
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
