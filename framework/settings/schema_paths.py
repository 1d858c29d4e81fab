"""Read the allowed keys and values from the classes of the settings, and show actual values in messages."""

from collections.abc import Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from framework.settings.model import Settings
from framework.settings.redis_url import mask_secrets
from framework.settings.validators import format_value

_PARTS_WITH_SECRETS = {"health": "prometheus", "encryption": "keys", "signatures": "keys", "tasks": "url"} | {
    "payload_offload": "url"
}
"""Sections of which one part may hold secrets."""


def keys_at(location: Sequence[int | str]) -> list[str]:
    """Return the keys of the section at this path; none where there is no section."""
    section = _model_class(_annotation_at(location))
    return list(_fields(section)) if section is not None else []


def has_nested_keys(key: str) -> bool:
    """Whether the setting holds keys and values, fixed ones or the user's own names."""
    kind = _annotation_at([key])
    return _model_class(kind) is not None or get_origin(kind) is dict


def is_settings_path(location: Sequence[int | str]) -> bool:
    """Whether a setting, a part of one, or a user's own name is allowed at this path."""
    kind: Any = Settings
    for step in location:
        # One of several types may have parts.
        if get_origin(kind) in (Union, UnionType):
            return True
        kind = _inner_annotation(kind, step)
        if kind is None:
            return False
    return True


def choices_at(location: Sequence[int | str]) -> tuple[Any, ...]:
    """Return the allowed values at this path, where they are few."""
    kind = _annotation_at(location)
    return get_args(kind) if get_origin(kind) is Literal else (True, False) if kind is bool else ()


def actual_value_note(value: Any, location: Sequence[int | str]) -> str:
    """Return the end of a message about a wrong value: the value as JSON, shortened, without anything that may be secret."""
    first = location[0]
    part = _PARTS_WITH_SECRETS.get(str(first))
    secret = first in ("shards", "sentry", "databases") or (part is not None and location[1:2] in ([], [part]))
    if secret and not (value is None or {"tls", "sentinel_tls"}.intersection(location) or choices_at(location)):
        is_place = first == "shards" and (location[-1] == "url" or "sentinels" in location)
        if not isinstance(value, str) or not is_place:
            return " (the value is not shown: it may be a secret)"
        value = mask_secrets(value)
    return f", not {format_value(value)}"


def _annotation_at(location: Sequence[int | str]) -> Any:
    kind: Any = Settings
    for step in location:
        kind = _inner_annotation(kind, step)
    return kind


def _inner_annotation(kind: Any, step: int | str) -> Any:
    """Return the type of one part of a section or of a mapping; ``None`` where there is no such part."""
    section = _model_class(kind)
    if section is not None:
        field = _fields(section).get(str(step))
        return unwrap_annotation(field.annotation) if field is not None else None
    return unwrap_annotation(get_args(kind)[1]) if get_origin(kind) is dict else None


def _fields(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the parts of a section by their names in files, which may be no names in Python (``class``)."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def _model_class(kind: Any) -> type[BaseModel] | None:
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def unwrap_annotation(annotation: Any) -> Any:
    """Return the annotation without its validators and without None."""
    if get_origin(annotation) is Annotated:
        return unwrap_annotation(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        return unwrap_annotation(members[0]) if len(members) == 1 else annotation
    return annotation
