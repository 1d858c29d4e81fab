"""Settings of limits of classes."""

from framework.settings.base import SettingsBase


class ConcurrencySettings(SettingsBase):
    """The limits of classes that declare none."""

    concurrency_limit_by_urgency: bool = False
    """Whether classes without a limit may use 35 % (high urgency), 25 % (low) or 15 % (throttled) of all slots (GitLab)."""
