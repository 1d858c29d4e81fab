"""Compose the settings of the core and of all features, and load them."""

from collections.abc import Mapping
from pathlib import Path

from pydantic_settings import SettingsConfigDict

from framework.declare.own_features import load_features
from framework.feature import use_own_features
from framework.features.concurrency.settings import ConcurrencySettings
from framework.features.cron.settings import CronSettings
from framework.features.encryption.settings import EncryptionSettings
from framework.features.flags.settings import FlagSettings
from framework.features.health.settings import HealthSettings
from framework.features.iteration.settings import IterationSettings
from framework.features.observability.settings import ObservabilitySettings
from framework.features.packing.settings import PackingSettings
from framework.features.reliable_push.settings import ReliablePushSettings
from framework.features.tasks.settings import TaskSettings
from framework.features.tracing.settings import TracingSettings
from framework.settings.load import load_as
from framework.settings.model import CoreSettings
from framework.wire.context_fields import allow_keys


# The core stands last, so its fields are validated first: validators of features may read them.
class Settings(  # pyright: ignore[reportIncompatibleVariableOverride] - see HealthSettings
    ConcurrencySettings,
    CronSettings,
    EncryptionSettings,
    FlagSettings,
    HealthSettings,
    IterationSettings,
    ObservabilitySettings,
    PackingSettings,
    ReliablePushSettings,
    TaskSettings,
    TracingSettings,
    CoreSettings,
):
    """Everything configurable. Made by ``load``; a function takes the base or the section that it reads, never the whole."""

    model_config = SettingsConfigDict(defer_build=False)


def load(env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Settings:
    """Return the settings of this process (see ``load_as``), and load the features that they name.

    Raises:
        ConfigurationError: with every problem, its file and its key.
    """
    settings = load_as(Settings, env, cwd)
    allow_keys(settings.context.keys)
    use_own_features(load_features(settings.features, settings.config_file_label("application.yml")))
    return settings
