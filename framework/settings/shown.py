"""Say which settings hold and where each comes from, with secrets masked."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias, cast

from pydantic import BaseModel, SecretStr

from framework.known_secrets import MASK, known_secrets
from framework.settings.base import SettingsBase
from framework.settings.urls import EMBEDDED, shown_url
from framework.typeguards import is_mapping

Path: TypeAlias = tuple[str, ...]

Origins: TypeAlias = Mapping[Path, str]
"""The file or the variable that gives the value at each path of the settings."""


class ShownSetting(NamedTuple):
    """One setting with its value as JSON, without secrets."""

    name: str
    """Its path: ``size_limit.mode``."""
    value: str
    origin: str
    """The name of the file or of the variable; empty for a built-in default."""


class GivenValues(NamedTuple):
    """The values that files and variables give, unchecked, and the names of these."""

    files: Mapping[str, Any]
    """Without the addresses of Redis that a variable replaces."""
    file_by_key: Mapping[str, str]
    variables: Mapping[str, Any]
    variable_names: Origins
    foreign_names: Origins
    """The variables of other programs: each replaces all that files say about its setting."""

    def origins(self) -> dict[Path, str]:
        """Return the origin of each value."""
        found = {path: self.file_by_key[path[0]] for path in _paths(self.files) if not _above(self.foreign_names, path)}
        found |= self.foreign_names
        return found | {path: _above(self.variable_names, path) for path in _paths(self.variables)}


def shown_settings(settings: SettingsBase, keys: Iterable[str]) -> list[ShownSetting]:
    """Return each setting of these keys, in their order."""
    return [
        ShownSetting(".".join(path), known_secrets.masked(text), _origin(settings.origins, path))
        for key in keys
        for path, text in _leaves(getattr(settings, key), (key,), is_secret=False)
    ]


def _paths(value: Any, above: Path = ()) -> Iterator[Path]:
    if is_mapping(value) and value:
        for key, part in value.items():
            yield from _paths(part, (*above, str(key)))
    elif above:
        yield above


def _origin(origins: Origins, path: Path) -> str:
    # The parts of a value that is a mapping have origins of their own.
    below = (name for known, name in origins.items() if known[: len(path)] == path)
    return _above(origins, path) or next(below, "")


def _above(origins: Origins, path: Path) -> str:
    """Return the origin of the longest path that leads to this one; empty without any."""
    lengths = range(len(path), 0, -1)
    return next((origins[path[:length]] for length in lengths if path[:length] in origins), "")


def _leaves(value: Any, path: Path, *, is_secret: bool) -> Iterator[tuple[Path, str]]:
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            yield from _leaves(getattr(value, name), (*path, field.alias or name), is_secret=field.repr is False)
    elif is_mapping(value) and any(isinstance(part, BaseModel | SecretStr) for part in value.values()):
        for name, part in value.items():
            yield from _leaves(part, (*path, str(name)), is_secret=is_secret)
    else:
        yield path, json.dumps(_plain(value, is_secret=is_secret), ensure_ascii=False, default=str)


def _plain(value: Any, *, is_secret: bool) -> Any:
    """Return a value for JSON. A text that may be a secret is a URL, of which the place is shown, or it is masked."""
    if isinstance(value, SecretStr):
        return MASK
    if isinstance(value, str):
        return value if not is_secret or value in ("", EMBEDDED) else shown_url(value) if "://" in value else MASK
    if is_mapping(value):
        return {str(key): _plain(part, is_secret=is_secret) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part, is_secret=is_secret) for part in cast("list[Any]", value)]
    return value
