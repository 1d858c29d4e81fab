"""Find the variables that begin with ``FRAMEWORK_`` and name no setting: they have no effect, and are warned about."""

import re
from collections.abc import Collection, Iterator, Sequence

from framework.settings.files import FILE_OF
from framework.settings.model import ENV_PREFIX
from framework.settings.outline import has_parts, keys_at, names_a_place
from framework.settings.suggest import nearest

FOLDERS = ("config_dir", "var_dir")
CAPITALS = ("retired_workers",)
"""Keys whose inner keys have capitals, which the name of a variable cannot say."""
BETWEEN_PROCESSES = frozenset(
    {"from_checkout", "process_board", "process_nonce", "supervisor_pid", "worker_id"},
)
"""Names of variables by which a supervisor speaks to its children."""

_KUBERNETES = re.compile(r"(^|_)(SERVICE_HOST|SERVICE_PORT\w*|PORT|PORT_\d+_\w+)$")
"""Names that Kubernetes makes for a service called ``framework-...``, a dozen for each: no warning helps there."""
_ALSO_CALLED = {
    "environment": "FRAMEWORK_ENV",
    "env_name": "FRAMEWORK_ENV",
    "config": "FRAMEWORK_CONFIG_DIR",
    "redis_url": "REDIS_URL",
}


def unknown_variables(names: Collection[str]) -> dict[str, str | None]:
    """Return each variable that has no effect, with the nearest name that has one, or ``None`` when none is near."""
    found: dict[str, str | None] = {}
    for name in sorted(names):
        path = path_of(name)
        if not name.upper().startswith(ENV_PREFIX) or _is_known(name, path):
            continue
        near = _near(path)
        # A name in lower case is another program's, unless it is nearly one of these.
        if (near is not None or name.startswith(ENV_PREFIX)) and not _KUBERNETES.search(name):
            found[name] = near
    return found


def path_of(name: str) -> tuple[str, ...]:
    """Return the keys that a variable names."""
    return tuple(name.upper().removeprefix(ENV_PREFIX).lower().split("__"))


def _is_known(name: str, path: Sequence[str]) -> bool:
    if name.startswith(ENV_PREFIX) and path[0] in CAPITALS:
        return True  # its capitals are lost: refused with the way to say it
    if name != name.upper():
        return False
    if len(path) == 1 and path[0] in ("env", *FOLDERS, *BETWEEN_PROCESSES):
        return True
    return path[0] in FILE_OF and names_a_place(path)


def _near(path: Sequence[str]) -> str | None:
    """Return the variable with an effect that is most like one without."""
    if path[0] not in FILE_OF:
        return _meant("__".join(path))
    for count in range(1, len(path)):
        if not names_a_place(path[: count + 1]):
            key = nearest(path[count], keys_at(path[:count]))
            return _variable((*path[:count], key, *path[count + 1 :]) if key else path[:count])
    return _variable(path)


def _meant(word: str) -> str | None:
    known = {"_".join(path): _variable(path) for path in _paths()} | _ALSO_CALLED
    near = nearest(word.replace("__", "_").strip("_"), known, cutoff=0.8)
    if near is not None:
        return known[near]
    first, _, rest = word.partition("__")
    top = nearest(first, FILE_OF, cutoff=0.8) if rest else None
    if top is not None:
        return _variable((top, rest))
    section = next((key for key in FILE_OF if has_parts(key) and word.startswith(f"{key}_")), None)
    return _variable((section, word.removeprefix(f"{section}_"))) if section is not None else None


def _variable(path: Sequence[str]) -> str:
    return ENV_PREFIX + "__".join(path).upper()


def _paths() -> Iterator[tuple[str, ...]]:
    """Every variable as its keys; those of a mapping with names of its own without them."""
    yield from (("env",), *((folder,) for folder in FOLDERS))
    for key in FILE_OF:
        yield (key,)
        yield from ((key, inner) for inner in keys_at([key]))
