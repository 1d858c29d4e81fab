"""The bases of sections, and of the settings that the core and each feature declare."""

from pathlib import Path
from typing import Annotated, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from framework.settings import validators

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
    var_dir: Path
    """The folder for what a run writes: stores, logs, reports."""

    @property
    def production(self) -> bool:
        """Whether mistakes of application code are reported instead of raised."""
        return self.env_name not in DEVELOPMENT_ENVIRONMENTS

    def config_file_label(self, name: str) -> str:
        """Return the name of a config file in messages."""
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
