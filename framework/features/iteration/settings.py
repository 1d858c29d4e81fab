"""Settings of iteration."""

from typing import Annotated

from framework.settings import validators
from framework.settings.base import SettingsBase
from framework.settings.model import MAX_TIMEOUT_S


class IterationSettings(SettingsBase):
    """How long iterable jobs run."""

    max_iteration_runtime: Annotated[float, validators.bounded_number(0.001, MAX_TIMEOUT_S)] | None = None
    """Seconds for which an iterable job runs before it goes behind the other jobs of its queue; a class may say otherwise."""
