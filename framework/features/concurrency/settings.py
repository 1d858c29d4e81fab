"""Settings of limits of classes."""

from typing import Annotated

from framework.settings import validators
from framework.settings.base import SettingsBase


class ConcurrencySettings(SettingsBase):
    """The limits of classes that declare none."""

    concurrency_limit_by_urgency: bool = False
    """Whether classes without a limit may use 35 % (high urgency), 25 % (low) or 15 % (throttled) of all slots (GitLab)."""
    throttling_database_seconds: Annotated[int, validators.whole_number(0, 1_000_000_000)] = 20_000
    """The seconds of SQL on one database in a minute from which the limit of a class is lowered (GitLab's 20,000); 0 for never."""
    throttling_database_seconds_high: Annotated[int, validators.whole_number(0, 1_000_000_000)] = 100_000
    """The same for classes of high urgency (GitLab's 100,000)."""
