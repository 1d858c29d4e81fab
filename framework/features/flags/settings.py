"""Settings of feature flags."""

from typing import Annotated, Literal

from framework.settings import validators
from framework.settings.base import Section, SettingsBase


class FlagSection(Section):
    """Other sources of feature flags than the operators' own, and how long a job waits while a flag defers its class."""

    provider: Literal["redis", "openfeature"] = "redis"
    defer_delay: Annotated[float, validators.bounded_number(1, 86_400)] = 300.0
    """Seconds, half more or less (GitLab's ``SIDEKIQ_DEFER_JOBS_DELAY``)."""


class FlagSettings(SettingsBase):
    """The source of flags, and what a flag that defers a class does."""

    flags: FlagSection = FlagSection()
