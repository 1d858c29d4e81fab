"""Settings of packing."""

from typing import Annotated

from framework.settings import validators
from framework.settings.base import SettingsBase


class PackingSettings(SettingsBase):
    """When the waiting jobs of a queue are packed."""

    packing_depth: Annotated[int, validators.whole_number(0, 1_000_000_000)] = 0
    """How many waiting jobs of a queue stay as they are; those behind them are packed, 1,000 in one value. 0: none is packed."""
