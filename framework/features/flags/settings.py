"""Settings of feature flags."""

from typing import Annotated, Literal

from framework.settings import validators
from framework.settings.base import Section, SettingsBase


class FlagSection(Section):
    """Other sources of feature flags than the operators' own, and how long a job waits while a flag defers its class."""

    provider: Literal["redis", "openfeature"] = "redis"
    defer_delay: Annotated[float, validators.bounded_number(1, 86_400)] = 300.0
    """Seconds, half more or less (GitLab's ``SIDEKIQ_DEFER_JOBS_DELAY``)."""
    release_rate: Annotated[float, validators.bounded_number(1, 100_000)] = 1_000.0
    """The jobs of a class that become due per second once its flag lets jobs run: a deferred backlog that became due at once was an
    incident at GitLab (June 2023)."""


class FlagSettings(SettingsBase):
    """The source of flags, and what a flag that defers a class does."""

    flags: FlagSection = FlagSection()
