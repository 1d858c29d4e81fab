"""The setting of the toy."""

from framework.settings.base import SettingsBase


class ToySettings(SettingsBase):
    """Which label is refused."""

    toy_refused: str = "refused"
