"""The bases of sections and of settings, and the schema that is read from the composed class: keys, files, allowed values."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Self, Union, cast, get_args, get_origin
from urllib.parse import unquote

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from framework.settings import validators
from framework.settings.urls import mask_secrets
from framework.settings.validators import format_value

ENV_PREFIX = "FRAMEWORK_"
DEVELOPMENT_ENVIRONMENTS = ("development", "test")
"""Environments for developers and test suites. Every other environment behaves as production, whatever its name."""


class Section(BaseModel):
    """One section: frozen, without unknown keys. A part that may be a secret has ``Field(repr=False)``: no message shows it."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FileKey(NamedTuple):
    """Metadata of a setting: the file that holds it, and what it must be, for a value that is no section or list at all."""

    file: str = "application.yml"
    expected: str | None = None


class SettingsBase(BaseSettings):
    """The settings that one feature or the core declares: a base of ``framework.all_settings.Settings``.

    The fields here are given by ``load``. The fields of subclasses are keys of the files, and variables.
    """

    model_config = SettingsConfigDict(
        # Only the composed class is made, so only that one needs a validator.
        defer_build=True,
        frozen=True,
        extra="forbid",
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
    )

    env_name: Annotated[str, AfterValidator(validators.environment_name)] = "development"
    config_dir: Path
    """The folder from which the files were read, or would be."""
    config_label: str = "config"
    """The name of that folder in messages: relative to the working directory, or absolute."""
    root: Path
    """The project: the parent of the config folder."""
    unknown_variables: dict[str, str | None] = Field(default_factory=dict[str, str | None])
    """Variables that begin with FRAMEWORK_ and have no effect, with the nearest name that has one."""
    origins: dict[tuple[str, ...], str] = Field(default_factory=dict[tuple[str, ...], str], repr=False)
    """The file or the variable that gives the value at each path; a value without one is the built-in default."""
    var_dir: Path
    """The folder for what a run writes: stores, logs, reports."""

    @property
    def production(self) -> bool:
        """Whether mistakes of application code are reported instead of raised."""
        return self.env_name not in DEVELOPMENT_ENVIRONMENTS

    def config_file_label(self, name: str) -> str:
        return f"{self.config_label}/{name}"

    @classmethod
    def of(cls, settings: "SettingsBase") -> Self:
        """Return the settings as those of this class, for a feature that was given those of the core."""
        if not isinstance(settings, cls):
            raise TypeError(f"{type(settings).__name__} has no base {cls.__name__}: framework/all_settings.py lists it")
        return settings

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take only what ``load`` passes: it has merged files and environment, so that errors can name the source."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)


class SettingsSchema:
    """The keys of a class of settings. Files, variables and messages follow it, so no list repeats what features declare."""

    def __init__(self, settings_class: type[SettingsBase]) -> None:
        self.settings_class = settings_class
        keys = {
            name: _file_key(field)
            for name, field in settings_class.model_fields.items()
            if name not in SettingsBase.model_fields
        }
        self.file_by_key: Mapping[str, str] = {name: key.file for name, key in keys.items()}
        self.keys_by_file: Mapping[str, tuple[str, ...]] = {
            file: tuple(name for name, its_file in self.file_by_key.items() if its_file == file)
            for file in dict.fromkeys(self.file_by_key.values())
        }
        self.expected_by_key: Mapping[str, str] = {name: key.expected for name, key in keys.items() if key.expected}

    def keys_at(self, location: Sequence[int | str]) -> list[str]:
        """Return the keys of the section at this path; none where there is no section."""
        section = _model_class(self._annotation_at(location))
        return list(_fields(section)) if section is not None else []

    def has_nested_keys(self, key: str) -> bool:
        """Whether the setting holds keys and values, fixed ones or the user's own names."""
        kind = self._annotation_at([key])
        return _model_class(kind) is not None or get_origin(kind) is dict

    def is_settings_path(self, location: Sequence[int | str]) -> bool:
        """Whether a setting, a part of one, or a user's own name is allowed at this path."""
        kind: Any = self.settings_class
        for step in location:
            # One of several types may have parts.
            if get_origin(kind) in (Union, UnionType):
                return True
            kind = _inner_annotation(kind, step)
            if kind is None:
                return False
        return True

    def choices_at(self, location: Sequence[int | str]) -> tuple[Any, ...]:
        """Return the allowed values at this path, where they are few."""
        kind = self._annotation_at(location)
        return get_args(kind) if get_origin(kind) is Literal else (True, False) if kind is bool else ()

    def actual_value_note(self, value: Any, location: Sequence[int | str]) -> str:
        """Return the end of a message about a wrong value: the value as JSON, shortened, without anything that may be secret."""
        is_shard = location[0] == "shards"
        secret = is_shard or self._may_hold_secret(location)
        if secret and not (
            value is None or {"tls", "sentinel_tls"}.intersection(location) or self.choices_at(location)
        ):
            is_place = is_shard and (location[-1] == "url" or "sentinels" in location)
            if not isinstance(value, str) or not is_place:
                return " (the value is not shown: it may be a secret)"
            value = mask_secrets(value)
        return f", not {format_value(value)}"

    def _may_hold_secret(self, location: Sequence[int | str]) -> bool:
        """Whether a secret is at this path, above it, or below it. A path that leads nowhere counts as its last known part."""
        if location[0] not in self.file_by_key:
            return False
        kind: Any = self.settings_class
        for step in location:
            section = _model_class(kind)
            field = _fields(section).get(str(step)) if section is not None else None
            if field is not None and _is_secret(field):
                return True
            inner = _inner_annotation(kind, step)
            if inner is None:
                break
            kind = inner
        return _has_secret_below(kind)

    def _annotation_at(self, location: Sequence[int | str]) -> Any:
        kind: Any = self.settings_class
        for step in location:
            kind = _inner_annotation(kind, step)
        return kind


def _file_key(field: FieldInfo) -> FileKey:
    return next((one for one in field.metadata if isinstance(one, FileKey)), FileKey())


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


def _is_secret(field: FieldInfo) -> bool:
    return field.repr is False


def _has_secret_below(kind: Any) -> bool:
    section = _model_class(kind)
    if section is not None:
        return any(_is_secret(field) or _has_secret_below(field.annotation) for field in section.model_fields.values())
    return kind is SecretStr or any(_has_secret_below(inner) for inner in get_args(kind))


def unwrap_annotation(annotation: Any) -> Any:
    """Return the annotation without its validators and without None."""
    if get_origin(annotation) is Annotated:
        return unwrap_annotation(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        return unwrap_annotation(members[0]) if len(members) == 1 else annotation
    return annotation


def secrets_of(value: Any) -> Iterator[str]:
    """Yield the secrets in settings or a part of them: values that are never shown, and the credentials in URLs."""
    if isinstance(value, SecretStr):
        text = value.get_secret_value()
        yield text
        # Sentry has the secret in place of a user.
        yield from _credentials_of(text, user_is_secret=True)
    elif isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            part: Any = getattr(value, name)
            if isinstance(part, str):
                # A part that may be a secret, and has no type that says so, is a URL.
                yield from () if field.repr else _credentials_of(part)
            else:
                yield from secrets_of(part)
    elif isinstance(value, Mapping):
        for part in cast("Mapping[Any, Any]", value).values():
            yield from secrets_of(part)
    elif isinstance(value, list | tuple):
        for part in cast("Sequence[Any]", value):
            yield from secrets_of(part)


def _credentials_of(url: str, *, user_is_secret: bool = False) -> Iterator[str]:
    """Yield the password of a URL, or its user if that is a secret."""
    _, separator, rest = url.partition("://")
    user_info, at, _ = rest.partition("/")[0].rpartition("@")
    if separator and at:
        user, _, password = user_info.partition(":")
        secret = password or (user if user_is_secret else "")
        yield from {secret, unquote(secret)}
